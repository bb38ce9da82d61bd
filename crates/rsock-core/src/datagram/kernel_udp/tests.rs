//! Two sockets of one process that find each other, and the fate of their datagrams.

mod at_once;
mod bytes_readable;
mod flood;
mod opening;

use crate::closing::Descriptor;
use crate::datagram::kernel_udp::*;
use rsock_verbs::Context;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::os::fd::AsFd;

/// A socket with its accelerated state, as the preload library keeps them.
struct End {
    socket: UdpSocket,
    udp: AcceleratedUdp,
}

impl End {
    fn new() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let udp = AcceleratedUdp::wrap(socket.as_fd()).expect("a UDP socket");
        Self { socket, udp }
    }

    fn addr(&self) -> SocketAddr {
        self.socket.local_addr().expect("address")
    }

    /// Sends, and returns whether the datagram went past the kernel.
    fn send(&self, data: &[u8], to: SocketAddr) -> bool {
        let is_past = self.udp.send(self.socket.as_fd(), &[IoSlice::new(data)], Some(to));
        if !is_past {
            rustix::net::sendto(&self.socket, data, SendFlags::empty(), &to).expect("sent");
        }
        is_past
    }

    fn recv(&self, flags: RecvFlags) -> io::Result<(Reception, Vec<u8>, Option<SocketAddr>)> {
        let mut buf = vec![0; 70_000];
        let mut source = None;
        let fd = self.socket.as_fd();
        let descriptor = Descriptor::new(fd, self.udp.closings().count());
        let bufs = &mut [IoSliceMut::new(&mut buf)];
        let got = self.udp.recv(descriptor, bufs, flags, |fd, bufs, flags| {
            let (n, _, from) = rustix::net::recvfrom(fd, &mut *bufs[0], flags)?;
            source = from.and_then(ip);
            Ok((n, source))
        })?;
        let n = match got {
            Reception::Kernel(n) => n,
            Reception::Queue(received) => {
                source = Some(received.from);
                received.len
            }
        };
        buf.truncate(n);
        Ok((got, buf, source))
    }
}

/// Two ends that send to each other past the kernel.
fn accelerated_pair() -> (End, End) {
    let (a, b) = (End::new(), End::new());
    loop {
        let there = a.send(b"there", b.addr());
        b.recv(RecvFlags::empty()).expect("received");
        let back = b.send(b"back", a.addr());
        a.recv(RecvFlags::empty()).expect("received");
        if there && back {
            return (a, b);
        }
    }
}

#[test]
fn datagrams_go_past_the_kernel_with_their_source() {
    let (a, b) = accelerated_pair();
    for n in [0, 1, 40, 41, 1400, 8000] {
        let data = vec![0x5a; n];
        assert!(a.send(&data, b.addr()), "{n}");
        let (got, received, from) = b.recv(RecvFlags::empty()).expect("received");
        assert!(matches!(got, Reception::Queue(_)), "{got:?}");
        assert_eq!((received, from), (data, Some(a.addr())));
    }
}

#[test]
fn a_datagram_of_the_kernel_between_two_of_the_queue_is_received_between_them() {
    let (a, b) = accelerated_pair();
    assert!(a.send(b"first", b.addr()));
    assert!(!a.send(&[7; 9000], b.addr()));
    let mut n = 0;
    while !a.send(b"last", b.addr()) {
        n += 1;
    }
    assert!(n > 0);
    assert_eq!(b.recv(RecvFlags::empty()).expect("first").1, b"first");
    assert_eq!(b.recv(RecvFlags::empty()).expect("second").1, [7; 9000]);
    for _ in 0..n {
        let (got, data, _) = b.recv(RecvFlags::empty()).expect("by the kernel");
        assert!(matches!(got, Reception::Kernel(_)) && data == b"last", "{got:?}");
    }
    assert!(matches!(b.recv(RecvFlags::empty()).expect("last").0, Reception::Queue(_)));
    assert!(b.recv(RecvFlags::DONTWAIT).is_err());
}

#[test]
fn every_datagram_is_received_or_counted() {
    let (a, b) = accelerated_pair();
    let (before_a, before_b) = (a.udp.counters(), b.udp.counters());
    for _ in 0..5000 {
        a.send(&[1; 1000], b.addr());
    }
    let mut by_kernel = 0;
    while let Ok((got, ..)) = b.recv(RecvFlags::DONTWAIT) {
        by_kernel += u64::from(matches!(got, Reception::Kernel(_)));
    }
    let (a, b) = (a.udp.counters(), b.udp.counters());
    let sent = a.n_sent - before_a.n_sent;
    let dropped = a.n_dropped - before_a.n_dropped;
    let left_to_kernel = a.n_by_kernel - before_a.n_by_kernel;
    assert!(dropped > 0 && left_to_kernel > 0, "{a:?}");
    assert_eq!(sent + dropped + left_to_kernel, 5000);
    assert_eq!(b.n_received - before_b.n_received, sent);
    assert!(by_kernel <= left_to_kernel);
}

/// Whether the bell has rung.
fn has_rung(bell: &SoftBell) -> bool {
    let mut fds = [PollFd::new(bell, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
}

#[test]
fn datagrams_sent_in_a_row_wake_their_receiver_once_at_their_end() {
    let (a, b) = accelerated_pair();
    let bell = SoftContext::open().expect("a device").create_bell().expect("a bell");
    let armed = b.udp.arm(&bell).expect("nothing there");
    let mut batch = a.udp.begin_batch(a.socket.as_fd());
    for n in 0..20u8 {
        assert!(batch.send(&[IoSlice::new(&[n])], Some(b.addr())));
    }
    assert!(b.udp.is_ready() && !has_rung(&bell));
    // A peer that is sent to by the kernel does not delay the wake-up.
    let c = End::new();
    assert!(!batch.send(&[IoSlice::new(b"by the kernel")], Some(c.addr())));
    drop(batch);
    assert!(has_rung(&bell));
    drop(armed);
    for n in 0..20u8 {
        assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, [n]);
    }
}

#[test]
fn datagrams_to_two_peers_in_turn_wake_both() {
    let (a, b) = accelerated_pair();
    let c = End::new();
    while !a.send(b"there", c.addr()) {
        c.recv(RecvFlags::empty()).expect("received");
    }
    c.recv(RecvFlags::empty()).expect("received");
    let device = SoftContext::open().expect("a device");
    let bells = [(); 2].map(|()| device.create_bell().expect("a bell"));
    let armed = [(&b, &bells[0]), (&c, &bells[1])].map(|(end, bell)| end.udp.arm(bell));
    assert!(armed.iter().all(Option::is_some));
    let mut batch = a.udp.begin_batch(a.socket.as_fd());
    for end in [&b, &c, &b] {
        assert!(batch.send(&[IoSlice::new(b"hello")], Some(end.addr())));
    }
    drop(batch);
    assert!(bells.iter().all(has_rung));
    drop(armed);
}

#[test]
fn a_pinned_socket_drains_its_queue_and_is_sent_to_by_the_kernel() {
    let (a, b) = accelerated_pair();
    assert!(a.send(b"before", b.addr()));
    b.udp.pin(FallbackReason::Option);
    assert!(!b.udp.is_plain());
    assert!(!a.send(b"after", b.addr()));
    assert!(!b.send(b"back", a.addr()));
    assert_eq!(b.recv(RecvFlags::empty()).expect("of the queue").1, b"before");
    assert_eq!(b.recv(RecvFlags::empty()).expect("of the kernel").1, b"after");
    assert_eq!(a.recv(RecvFlags::empty()).expect("of the kernel").1, b"back");
}

#[test]
fn a_peek_takes_nothing() {
    let (a, b) = accelerated_pair();
    assert!(a.send(b"one", b.addr()) && a.send(b"two", b.addr()));
    assert_eq!(b.recv(RecvFlags::PEEK).expect("a peek").1, b"one");
    assert_eq!(b.recv(RecvFlags::PEEK).expect("a peek").1, b"one");
    assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, b"one");
    assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, b"two");
}

#[test]
fn no_queue_opens_while_a_thread_sleeps_in_the_kernel() {
    let (a, b) = (End::new(), End::new());
    let wait = b.udp.begin_kernel_wait().expect("not open");
    for _ in 0..64 {
        a.send(b"there", b.addr());
        b.recv(RecvFlags::empty()).expect("received");
    }
    assert_eq!(b.udp.state(), NOT_OPEN);
    drop(wait);
    for _ in 0..64 {
        a.send(b"there", b.addr());
        b.recv(RecvFlags::empty()).expect("received");
    }
    assert_eq!(b.udp.state(), OPEN);
    assert!(b.udp.begin_kernel_wait().is_none());
}

#[test]
fn malformed_and_foreign_datagrams_are_dropped_and_counted() {
    let (a, b) = accelerated_pair();
    // A hostile sender can post any bytes.
    let queue = a.udp.queue().expect("a queue");
    let route = a.udp.routes().route(b.addr()).expect("a route");
    for bytes in [&[][..], &[9], &[4, 2, 0, 0, 1, 2, 3, 4], &[6, 0, 1, 1, 5]] {
        queue.ud.post(&route.to, &[IoSlice::new(bytes)]).expect("posted");
    }
    // From addresses that do not belong to the sender.
    for from in ["192.0.2.1:53", "127.0.0.1:1"] {
        let from = from.parse().expect("address");
        let header = header::Header { from, is_after_kernel: false }.encode();
        let pieces = [IoSlice::new(header.as_bytes()), IoSlice::new(b"lie")];
        queue.ud.post(&route.to, &pieces).expect("posted");
    }
    assert!(a.send(b"honest", b.addr()));
    assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, b"honest");
    let counters = b.udp.counters();
    assert_eq!((counters.n_malformed, counters.n_foreign), (4, 2));
}

#[test]
fn a_socket_that_is_gone_is_sent_to_by_the_kernel_at_once() {
    let (a, b) = accelerated_pair();
    let to = b.addr();
    assert!(a.send(b"there", to));
    drop(b.udp);
    assert!(!a.send(b"there", to));
    assert_eq!(b.socket.recv(&mut [0; 10]).expect("by the kernel"), 5);
}

#[test]
fn the_peeked_datagram_is_received_next() {
    let (a, b) = accelerated_pair();
    let peeked = |expected: &[u8]| {
        assert_eq!(b.recv(RecvFlags::PEEK).expect("a peek").1, expected);
    };
    // By the kernel, without the mark in the next header.
    a.socket.send_to(b"kernel", b.addr()).expect("sent");
    peeked(b"kernel");
    assert!(a.send(b"queue", b.addr()));
    assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, b"kernel");
    peeked(b"queue");
    a.socket.send_to(b"kernel", b.addr()).expect("sent");
    assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, b"queue");
    assert_eq!(b.recv(RecvFlags::empty()).expect("received").1, b"kernel");
}

#[test]
fn abandoned_handshakes_do_not_block_others() {
    let a = End::new();
    // A handshake begins with the last of these datagrams, and never advances.
    let left_alone: Vec<End> = (0..8).map(|_| End::new()).collect();
    for end in &left_alone {
        for _ in 0..8 {
            a.send(b"there", end.addr());
            end.recv(RecvFlags::empty()).expect("received");
        }
    }
    let b = End::new();
    while !a.send(b"there", b.addr()) {
        b.recv(RecvFlags::empty()).expect("received");
    }
}

#[test]
fn a_receive_drops_a_bounded_number_of_malformed_datagrams() {
    let (a, b) = accelerated_pair();
    let queue = a.udp.queue().expect("a queue");
    let route = a.udp.routes().route(b.addr()).expect("a route");
    for _ in 0..1000 {
        queue.ud.post(&route.to, &[IoSlice::new(&[9])]).expect("posted");
    }
    assert!(a.send(b"honest", b.addr()));
    // The receive returns before it has dropped all of them.
    assert!(b.recv(RecvFlags::DONTWAIT).is_err());
    assert!(b.udp.is_ready() && b.udp.counters().n_malformed < 1000);
    let (_, honest, _) = b.recv(RecvFlags::empty()).expect("received");
    assert_eq!((honest, b.udp.counters().n_malformed), (b"honest".to_vec(), 1000));
}

/// One thread pins a socket while another finds that its queue cannot open yet.
#[test]
fn a_socket_that_is_pinned_while_it_opens_stays_pinned() {
    let a = End::new();
    for _ in 0..400 {
        let b = End::new();
        let wait = b.udp.begin_kernel_wait().expect("not open");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // The queue is open for a moment, or has ended.
                for _ in 0..100_000 {
                    if b.udp.state() != NOT_OPEN {
                        break;
                    }
                }
                b.udp.pin(FallbackReason::Option);
            });
            for _ in 0..8 {
                a.socket.send_to(b"there", b.addr()).expect("sent");
                b.recv(RecvFlags::empty()).expect("received");
            }
        });
        assert_eq!(b.udp.state(), ENDED);
        drop(wait);
    }
}

/// In a child, a thread that does not exist may hold the lock of the epoll proxy for ever.
#[test]
fn a_child_does_not_wait_for_the_threads_of_its_parent() {
    let (_a, b) = accelerated_pair();
    let held = b.udp.epoll_proxy.lock().expect("lock");
    // SAFETY: the child calls only what is safe after a fork in a threaded process: system calls
    // and atomics.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: ends the child if it hangs.
        unsafe { libc::alarm(20) };
        let is_refused = b.udp.epoll_proxy().is_err();
        b.udp.reset_epoll_proxy();
        // SAFETY: ends the child without running anything of the test harness.
        unsafe { libc::_exit(i32::from(!is_refused)) };
    }
    drop(held);
    let mut status = 0;
    // SAFETY: waits for the child made above; `status` is writable.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!(status, 0);
}

/// After a reader takes one of several datagrams of an edge, the rest is reported once.
#[test]
fn the_epoll_proxy_is_readable_while_the_queue_has_datagrams() {
    let (a, b) = accelerated_pair();
    let epoll_proxy = b.udp.epoll_proxy().expect("a bell").expect("open");
    // SAFETY: open as long as `b`.
    let epoll_proxy = unsafe { BorrowedFd::borrow_raw(epoll_proxy) };
    let is_readable = || {
        let mut fds = [PollFd::from_borrowed_fd(epoll_proxy, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll") == 1
    };
    let take = || b.recv(RecvFlags::DONTWAIT).expect("received");
    for _ in 0..3 {
        assert!(!is_readable());
        assert!(a.send(b"one", b.addr()) && a.send(b"two", b.addr()));
        assert!(is_readable());
        take();
        assert!(is_readable());
        take();
    }
    b.udp.note_edge_triggered();
    assert!(a.send(b"one", b.addr()) && a.send(b"two", b.addr()));
    take();
    rustix::net::recv(epoll_proxy, &mut [0; 9], RecvFlags::DONTWAIT).expect("rung once");
    assert!(!is_readable());
    b.udp.report_unreported();
    assert!(is_readable());
    take();
    assert!(!is_readable());
    b.udp.report_unreported();
    assert!(!is_readable());
}

/// The epoll sets get the proxy when the queue of a watched socket opens, as the preload library
/// does it.
#[test]
fn the_queue_of_a_watched_socket_opens_only_if_all_epoll_sets_get_its_proxy() {
    let b = End::new();
    b.udp.note_in_epoll_set();
    let a = End::new();
    for _ in 0..16 {
        a.socket.send_to(b"there", b.addr()).expect("sent");
        b.recv(RecvFlags::empty()).expect("received");
    }
    // No epoll sets are registered here.
    assert_eq!(b.udp.state(), ENDED);
    assert!(b.udp.epoll_proxy().expect("no error").is_none());
}
