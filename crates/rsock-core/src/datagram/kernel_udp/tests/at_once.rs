//! Calls that take the short way, and those that are left to the long one.

use super::*;

impl End {
    /// Sends by the short way, or by the long one. Returns whether it was the short one.
    fn send_shortly(&self, data: &[u8], to: SocketAddr) -> bool {
        let is_short = self.udp.send_at_once(data, Some(to));
        if !is_short {
            self.send(data, to);
        }
        is_short
    }

    fn recv_at_once(&self) -> Option<(Vec<u8>, SocketAddr)> {
        let (mut buf, mut source) = (vec![0; 9000], None);
        let len = self.udp.recv_at_once(&mut buf, false, |from| source = Some(from))?;
        buf.truncate(len);
        Some((buf, source.expect("a datagram has a source")))
    }
}

/// An [`accelerated_pair`] whose second end has just received by the short way, so that it does not
/// have to look at the kernel's socket soon.
fn pair() -> (End, End) {
    let (a, b) = accelerated_pair();
    loop {
        assert!(a.send_shortly(b"there", b.addr()));
        if b.recv_at_once().is_some() {
            return (a, b);
        }
        b.recv(RecvFlags::empty()).expect("received");
    }
}

#[test]
fn a_datagram_takes_the_short_way_once_the_route_is_in_use() {
    let (a, b) = (End::new(), End::new());
    assert!(!a.udp.send_at_once(b"unknown", Some(b.addr())));
    assert_eq!(b.recv_at_once(), None);
    let (a, b) = pair();
    assert_eq!(b.recv_at_once(), None);
    for n in [1, 8, 39, 40, 41, 1400, 8000] {
        let data: Vec<u8> = (0..n).map(|i| u8::try_from(i % 251).expect("small")).collect();
        assert!(a.udp.send_at_once(&data, Some(b.addr())), "{n}");
        assert_eq!(b.recv_at_once(), Some((data, a.addr())), "{n}");
    }
    assert!(!a.udp.send_at_once(b"no peer", None), "not connected");
    assert!(!a.udp.send_at_once(b"another", Some(End::new().addr())));
}

#[test]
fn a_datagram_that_is_longer_than_the_room_is_cut() {
    let (a, b) = pair();
    for n in [30, 3000] {
        assert!(a.udp.send_at_once(&vec![7; n], Some(b.addr())));
        let mut room = [0; 9];
        assert_eq!(b.udp.recv_at_once(&mut room, false, drop), Some(9));
        assert_eq!(room, [7; 9]);
        assert_eq!(b.recv_at_once(), None);
    }
}

#[test]
fn the_short_way_keeps_the_order_of_the_queue_and_the_kernel() {
    let (a, b) = accelerated_pair();
    assert!(!a.send_shortly(&[1; 9000], b.addr()), "too long for a queue");
    let mut n = 0;
    while !a.send_shortly(b"last", b.addr()) {
        n += 1;
    }
    assert!(n > 0);
    for _ in 0..=n {
        assert_eq!(b.recv_at_once(), None, "what went by the kernel is first");
        assert!(matches!(b.recv(RecvFlags::empty()).expect("received").0, Reception::Kernel(_)));
    }
    // The long way looks at the kernel's socket, and finds it empty.
    assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, b"last");
}

#[test]
fn a_receiver_by_the_short_way_looks_at_the_kernels_socket_too() {
    let (a, b) = accelerated_pair();
    let other = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    other.send_to(b"by the kernel", b.addr()).expect("sent");
    let mut n_short = 0;
    loop {
        assert!(a.send_shortly(b"by the queue", b.addr()));
        if b.recv_at_once().is_none() {
            // The kernel's socket is read where its time has come.
            let (_, data, _) = b.recv(RecvFlags::empty()).expect("received");
            if data == b"by the kernel" {
                break;
            }
        }
        n_short += 1;
    }
    assert!(n_short > 0);
}

#[test]
fn every_datagram_by_the_short_way_is_received_or_counted_once() {
    let (a, b) = accelerated_pair();
    let (before_a, before_b) = (a.udp.counters(), b.udp.counters());
    let n_short = (0..5000).filter(|_| a.send_shortly(&[1; 1000], b.addr())).count();
    while b.recv(RecvFlags::DONTWAIT).is_ok() {}
    let (a, b) = (a.udp.counters(), b.udp.counters());
    let (sent, dropped) = (a.n_sent - before_a.n_sent, a.n_dropped - before_a.n_dropped);
    let by_kernel = a.n_by_kernel - before_a.n_by_kernel;
    assert!(dropped > 0 && by_kernel > 0, "{a:?}");
    assert_eq!(sent + dropped, n_short as u64);
    assert_eq!(sent + dropped + by_kernel, 5000);
    assert_eq!(b.n_received - before_b.n_received, sent);
}
