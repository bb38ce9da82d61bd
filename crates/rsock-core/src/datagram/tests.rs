//! Sockets with more peers than they remember.

use crate::datagram::header::{UdpHeader, UdpOp};
use crate::datagram::table::Limits;
use crate::datagram::*;
use rsock_verbs::QpNum;
use std::io::{IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;

fn bound() -> (Datagram, SocketAddr) {
    let socket = Datagram::bound("127.0.0.1:0".parse().expect("address")).expect("a socket");
    socket.set_recv_timeout(Some(Duration::from_secs(20))).expect("a limit");
    let addr = socket.local_addr().expect("address");
    (socket, addr)
}

fn send(from: &Datagram, bytes: &[u8], to: SocketAddr) {
    from.send_to(&[IoSlice::new(bytes)], Some(to), MessageFlags::empty()).expect("sent");
}

fn recv(at: &Datagram) -> (Vec<u8>, SocketAddr) {
    let mut buf = [0; 16];
    let got =
        at.recv_from(&mut [IoSliceMut::new(&mut buf)], MessageFlags::empty()).expect("received");
    (buf[..got.len].to_vec(), got.from)
}

/// Sends a datagram there and one back. Returns whether both went through memory.
fn exchange((a, at_a): (&Datagram, SocketAddr), (b, at_b): (&Datagram, SocketAddr)) -> bool {
    let sent = || [a, b].map(|socket| socket.counters().local.n_sent);
    let before = sent();
    send(a, b"there", at_b);
    assert_eq!(recv(b), (b"there".to_vec(), at_a));
    send(b, b"back", at_a);
    assert_eq!(recv(a), (b"back".to_vec(), at_b));
    sent() == before.map(|n| n + 1)
}

/// Packets from sources that each have another address and a queue number, as a hostile sender can
/// create them.
fn flood(to: SocketAddr, op: UdpOp, n: usize) -> impl Iterator<Item = (UdpSocket, SocketAddr)> {
    let first = Ipv4Addr::new(127, 1, 0, 1).to_bits();
    (first..).take(n).map(move |ip| {
        let socket = UdpSocket::bind((Ipv4Addr::from_bits(ip), 0)).expect("a socket");
        let header = UdpHeader { op, qp_num: QpNum(ip & 0xff_ffff), addr: [127, 0, 0, 1].into() };
        let packet = [header.encode().as_bytes(), b"flood"].concat();
        socket.send_to(&packet, to).expect("sent");
        let from = socket.local_addr().expect("address");
        (socket, from)
    })
}

#[test]
fn a_flood_of_sources_is_bounded_and_counted_and_disturbs_no_peer() {
    let most = Limits::default().n_heard;
    let n = 2 * most + most / 2;
    let ((a, at_a), (b, at_b)) = (bound(), bound());
    while !exchange((&a, at_a), (&b, at_b)) {}
    let before = a.counters();
    for (i, (_socket, from)) in flood(at_a, UdpOp::Data, n).enumerate() {
        assert_eq!(recv(&a), (b"flood".to_vec(), from));
        assert!(a.routes().table.len() <= 1 + most);
        if i % 100 == 0 {
            assert!(exchange((&a, at_a), (&b, at_b)), "{i}");
        }
    }
    // The table has been full: the older half is dropped at once.
    assert!(a.routes().table.len() > most / 2);
    let after = a.counters();
    assert_eq!(after.n_received_by_udp - before.n_received_by_udp, n as u64);
    assert_eq!((after.n_bad_packets, after.n_foreign, after.n_unsolicited), (0, 0, 0));
    assert!(exchange((&a, at_a), (&b, at_b)));
}

#[test]
fn answers_to_a_flood_of_sources_displace_no_peer_in_use() {
    let Limits { n_heard, n_spoken, .. } = Limits::default();
    let n = n_spoken + n_spoken / 2;
    let ((a, at_a), (b, at_b)) = (bound(), bound());
    while !exchange((&a, at_a), (&b, at_b)) {}
    for (i, (socket, from)) in flood(at_a, UdpOp::Data, n).enumerate() {
        assert_eq!(recv(&a), (b"flood".to_vec(), from));
        send(&a, b"answer", from);
        // The source first gets the control packet, then the answer.
        let mut buf = [0; 64];
        let mut got = socket.recv(&mut buf).expect("a packet");
        while !buf[..got].ends_with(b"answer") {
            got = socket.recv(&mut buf).expect("a packet");
        }
        assert!(a.routes().table.len() <= n_heard + n_spoken);
        if i % 100 == 0 {
            assert!(exchange((&a, at_a), (&b, at_b)), "{i}");
        }
    }
    assert!(a.routes().table.len() > n_spoken / 2);
    assert_eq!((a.counters().n_bad_packets, a.counters().n_foreign), (0, 0));
}

#[test]
fn a_flood_of_unsolicited_control_packets_is_counted_and_not_remembered() {
    let n = 2 * Limits::default().n_heard;
    let ((a, at_a), (b, at_b)) = (bound(), bound());
    while !exchange((&a, at_a), (&b, at_b)) {}
    for (i, _) in flood(at_a, UdpOp::Control, n).enumerate() {
        // Fewer packets than one poll takes.
        if i % 20 == 0 {
            a.poll_udp();
            assert!(exchange((&a, at_a), (&b, at_b)), "{i}");
        }
    }
    a.poll_udp();
    assert_eq!((a.counters().n_unsolicited, a.routes().table.len()), (n as u64, 1));
}
