//! More sources than a socket remembers.

use crate::datagram::kernel_udp::sending::{FIRST_LOOK, MAX_KNOWN};
use crate::datagram::kernel_udp::tests::*;
use std::net::Ipv4Addr;

/// Sockets of different addresses, one after the other, without queues.
fn plain_sockets(n: usize) -> impl Iterator<Item = UdpSocket> {
    let first = Ipv4Addr::new(127, 1, 0, 1).to_bits();
    (first..).take(n).map(|ip| UdpSocket::bind((Ipv4Addr::from_bits(ip), 0)).expect("a socket"))
}

#[test]
fn a_server_with_more_peers_than_it_remembers_keeps_its_accelerated_peer() {
    const N: usize = 2 * MAX_KNOWN + MAX_KNOWN / 2;
    let (a, b) = accelerated_pair();
    let before = b.udp.counters();
    let mut most = 0;
    for (i, plain) in plain_sockets(N).enumerate() {
        let from = plain.local_addr().expect("address");
        plain.send_to(b"hello there!", b.addr()).expect("sent");
        let (got, data, source) = b.recv(RecvFlags::empty()).expect("received");
        assert_eq!(
            (got, &*data, source),
            (Reception::Kernel(12), &b"hello there!"[..], Some(from))
        );
        // As often as it takes until the sender looks for a queue.
        for _ in 0..=FIRST_LOOK {
            assert!(!b.send(b"me", from));
            assert_eq!(plain.recv(&mut [0; 10]).expect("answered"), 2);
        }
        most = most.max(b.udp.routes().n_known());
        if i % 100 == 0 {
            assert!(a.send(b"there", b.addr()) && b.send(b"back", a.addr()), "{i}");
            assert_eq!(b.recv(RecvFlags::empty()).expect("received").2, Some(a.addr()));
            assert_eq!(a.recv(RecvFlags::empty()).expect("received").2, Some(b.addr()));
        }
    }
    // Full more than once, and never above the limit.
    assert_eq!(most, MAX_KNOWN);
    let after = b.udp.counters();
    assert_eq!(after.n_received_by_kernel - before.n_received_by_kernel, N as u64);
    let answers = N as u64 * u64::from(FIRST_LOOK + 1);
    assert_eq!(after.n_by_kernel - before.n_by_kernel, answers);
    assert_eq!((after.n_dropped, after.n_foreign, after.n_malformed), (0, 0, 0));
}
