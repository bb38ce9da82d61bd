//! More sources than a socket remembers.

use crate::datagram::kernel_udp::sending::{FIRST_LOOK, MAX_KNOWN};
use crate::datagram::kernel_udp::tests::*;
use std::net::Ipv4Addr;

/// Each of an address of its own, one after the other: nobody has a queue.
fn strangers(n: usize) -> impl Iterator<Item = UdpSocket> {
    let first = Ipv4Addr::new(127, 1, 0, 1).to_bits();
    (first..).take(n).map(|ip| UdpSocket::bind((Ipv4Addr::from_bits(ip), 0)).expect("a socket"))
}

#[test]
fn a_server_of_more_strangers_than_it_remembers_goes_on_and_keeps_its_peer() {
    const N: usize = 2 * MAX_KNOWN + MAX_KNOWN / 2;
    let (a, b) = met();
    let before = b.udp.counters();
    let mut most = 0;
    for (i, stranger) in strangers(N).enumerate() {
        let from = stranger.local_addr().expect("address");
        stranger.send_to(b"who are you?", b.addr()).expect("sent");
        let (got, data, source) = b.recv(RecvFlags::empty()).expect("received");
        assert_eq!(
            (got, &*data, source),
            (Reception::Kernel(12), &b"who are you?"[..], Some(from))
        );
        // As often as it takes to be looked for.
        for _ in 0..=FIRST_LOOK {
            assert!(!b.send(b"me", from));
            assert_eq!(stranger.recv(&mut [0; 10]).expect("answered"), 2);
        }
        most = most.max(b.udp.routes().n_known());
        if i % 100 == 0 {
            assert!(a.send(b"there", b.addr()) && b.send(b"back", a.addr()), "{i}");
            assert_eq!(b.recv(RecvFlags::empty()).expect("received").2, Some(a.addr()));
            assert_eq!(a.recv(RecvFlags::empty()).expect("received").2, Some(b.addr()));
        }
    }
    // Full more than once, and never more than full.
    assert_eq!(most, MAX_KNOWN);
    let after = b.udp.counters();
    assert_eq!(after.n_received_by_kernel - before.n_received_by_kernel, N as u64);
    let answers = N as u64 * u64::from(FIRST_LOOK + 1);
    assert_eq!(after.n_by_kernel - before.n_by_kernel, answers);
    assert_eq!((after.n_dropped, after.n_foreign, after.n_malformed), (0, 0, 0));
}
