//! A peer that can send UDP packets to a socket, and sends what it likes.

use super::*;
use rsock_core::datagram::header::{UdpHeader, UdpOp};
use rsock_verbs::QpNum;
use std::net::UdpSocket;

fn stranger() -> (UdpSocket, SocketAddr) {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("socket");
    let addr = socket.local_addr().expect("address");
    (socket, addr)
}

fn packet(op: UdpOp, number: u32, payload: &[u8]) -> Vec<u8> {
    let header = UdpHeader { op, qp_num: QpNum(number), addr: [127, 0, 0, 1].into() };
    [header.encode().as_bytes(), payload].concat()
}

/// The number of a socket's queue, which the socket tells every sender.
fn number_of(at: &Datagram, addr: SocketAddr, tell: &UdpSocket) -> u32 {
    tell.send_to(&packet(UdpOp::Data, 1, b"your number?"), addr).expect("sent");
    assert_eq!(recv(at).0, b"your number?");
    let mut buf = [0; 100];
    let (len, from) = tell.recv_from(&mut buf).expect("answer");
    assert_eq!(from, addr);
    let (header, _) = UdpHeader::parse(&buf[..len], false).expect("header");
    assert_eq!(header.op, UdpOp::Control);
    header.qp_num.0
}

/// Lets `at` look at everything that was sent to it, of which `tell` is the last.
fn look(at: &Datagram, at_addr: SocketAddr, tell: &UdpSocket) -> Vec<Vec<u8>> {
    tell.send_to(&packet(UdpOp::Data, 1, b"last"), at_addr).expect("sent");
    let mut seen = Vec::new();
    loop {
        let got = recv(at).0;
        if got == b"last" {
            return seen;
        }
        seen.push(got);
    }
}

#[test]
fn packets_of_any_content_are_dropped_and_counted() {
    let _dog = watchdog();
    let (a, at_a) = bound("127.0.0.1");
    let (x, _) = stranger();
    let good = packet(UdpOp::Data, 5, b"good");
    let mut n = 0;
    for at in 0..7 {
        for value in [0, 1, 5, 6, 28, 255] {
            let mut bad = good.clone();
            bad[at] ^= value;
            if value != 0 && UdpHeader::parse(&bad, false).is_none() {
                x.send_to(&bad, at_a).expect("sent");
                n += 1;
            }
        }
    }
    for len in 0..16 {
        x.send_to(&good[..len], at_a).expect("sent");
        n += 1;
    }
    let mut six = packet(UdpOp::Data, 5, &[]);
    six[4] = 6;
    x.send_to(&six, at_a).expect("sent");
    assert!(look(&a, at_a, &x).is_empty());
    assert_eq!(a.counters().n_bad_packets, n + 1);
}

#[test]
fn numbers_that_lead_nowhere_leave_a_peer_on_udp() {
    let _dog = watchdog();
    let (a, at_a) = bound("127.0.0.1");
    let (b, at_b) = bound("127.0.0.1");
    let (x, at_x) = stranger();
    let of_b = number_of(&b, at_b, &x);
    // Another socket's number, none, and one that no queue has.
    for number in [of_b, 0, 0xff_fff0] {
        x.send_to(&packet(UdpOp::Data, number, b"hello"), at_a).expect("sent");
        assert_eq!(recv(&a), (b"hello".to_vec(), at_x));
        for _ in 0..5 {
            send(&a, at_x, b"answer");
            // Control packets come in between.
            let mut buf = [0; 100];
            loop {
                let (n, from) = x.recv_from(&mut buf).expect("received");
                assert_eq!(from, at_a);
                if buf[..n].ends_with(b"answer") {
                    break;
                }
            }
        }
    }
    assert_eq!(a.counters().local.n_sent, 0);
    talk_past_udp([(&a, at_a), (&b, at_b)]);
}

#[test]
fn control_packets_of_others_redirect_nothing() {
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    let by_udp = a.counters().n_by_udp;
    let (x, _) = stranger();
    for number in 0..50 {
        x.send_to(&packet(UdpOp::Control, number, &[]), at_a).expect("sent");
    }
    look(&a, at_a, &x);
    assert_eq!(a.counters().n_unsolicited, 50);
    send(&a, at_b, b"as before");
    assert_eq!(recv(&b), (b"as before".to_vec(), at_a));
    assert_eq!(a.counters().n_by_udp, by_udp);
}

#[test]
fn a_flood_from_many_sources_is_bounded_and_disturbs_no_other_peer() {
    let _dog = watchdog();
    let ((a, at_a), (b, at_b)) = (bound("127.0.0.1"), bound("127.0.0.1"));
    talk_past_udp([(&a, at_a), (&b, at_b)]);
    let by_udp = a.counters().n_by_udp;
    let strangers: Vec<_> = (0..200).map(|_| stranger().0).collect();
    for (i, x) in (1u32..).zip(&strangers) {
        x.send_to(&packet(UdpOp::Data, i, b"flood"), at_a).expect("sent");
        if i % 50 == 0 {
            look(&a, at_a, x);
        }
    }
    send(&a, at_b, b"as before");
    assert_eq!(recv(&b), (b"as before".to_vec(), at_a));
    assert_eq!(a.counters().n_by_udp, by_udp);
}
