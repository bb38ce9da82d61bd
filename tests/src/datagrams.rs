//! Blocking datagram sockets in tests: what is sent and received is whole, or the test ends.

use rsock_core::datagram::{Datagram, MessageFlags, Received};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{IpAddr, SocketAddr};
use std::thread;

/// A socket at a free port of `ip`, and its address.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn bound(ip: &str) -> (Datagram, SocketAddr) {
    let ip: IpAddr = ip.parse().expect("address");
    let socket = Datagram::bound((ip, 0).into()).expect("socket");
    let addr = socket.local_addr().expect("address");
    (socket, addr)
}

/// Sends one datagram.
///
/// # Panics
/// If it is not taken whole.
pub fn send(from: &Datagram, to: SocketAddr, bytes: &[u8]) {
    let sent = from.send_to(&[IoSlice::new(bytes)], Some(to), MessageFlags::empty()).expect("sent");
    assert_eq!(sent, bytes.len());
}

/// Waits for a datagram; returns it and its source, as a program sees them.
///
/// # Panics
/// On an error, and if the source is not of the socket's family.
#[must_use]
pub fn recv(at: &Datagram) -> (Vec<u8>, SocketAddr) {
    let mut buf = vec![0; LONGEST];
    let bufs = &mut [IoSliceMut::new(&mut buf)];
    let Received { len, full_len, from } =
        at.recv_from(bufs, MessageFlags::empty()).expect("received");
    assert_eq!((len, from.is_ipv6()), (full_len, at.is_v6()));
    buf.truncate(len);
    (buf, from)
}

/// A datagram that has come already.
///
/// # Panics
/// On an error other than that there is none.
#[must_use]
pub fn try_recv(at: &Datagram) -> Option<Vec<u8>> {
    let mut buf = vec![0; LONGEST];
    match at.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::DONT_WAIT) {
        Ok(received) => {
            buf.truncate(received.len);
            Some(buf)
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::WouldBlock, "{e}");
            None
        }
    }
}

/// Talks until both directions go past UDP: through memory, or over a device where `RSOCK_DEVICE`
/// leaves nothing else. Every datagram arrives once, with its source.
///
/// # Panics
/// If one does not.
pub fn talk_past_udp([(a, at_a), (b, at_b)]: [(&Datagram, SocketAddr); 2]) {
    let past_udp = |socket: &Datagram| {
        let counters = socket.counters();
        counters.local.n_sent + counters.remote.n_sent
    };
    let before = [a, b].map(past_udp);
    for i in 0u32.. {
        send(a, at_b, &i.to_ne_bytes());
        assert_eq!(recv(b), (i.to_ne_bytes().to_vec(), at_a));
        send(b, at_a, &[1; 3]);
        assert_eq!(recv(a), (vec![1; 3], at_b));
        let after = [a, b].map(past_udp);
        if after[0] > before[0] && after[1] > before[1] {
            return;
        }
    }
}

/// Sends as many datagrams as `rounds` says from `a` to `b`, which answers each in a thread of its
/// own, and takes the answers with `take`: both sleep until something comes.
///
/// # Panics
/// If one does not come back as it was sent.
pub fn ping_pong(
    [(a, at_a), (b, at_b)]: [(&Datagram, SocketAddr); 2],
    rounds: u32,
    mut take: impl FnMut() -> Vec<u8>,
) {
    thread::scope(|s| {
        s.spawn(|| {
            for _ in 0..rounds {
                let (got, from) = recv(b);
                assert_eq!(from, at_a);
                send(b, at_a, &got);
            }
        });
        for i in 0..rounds {
            send(a, at_b, &i.to_ne_bytes());
            assert_eq!(take(), i.to_ne_bytes());
        }
    });
}

/// Bytes: more than UDP carries.
const LONGEST: usize = 70_000;
