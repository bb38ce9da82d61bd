//! `rsock::Datagram` beside `std::net::UdpSocket`.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use rsock::Datagram;
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

const ANY: &str = "127.0.0.1:0";
const SHORT: Duration = Duration::from_millis(50);

fn pair() -> (Datagram, Datagram) {
    (Datagram::bind(ANY).unwrap(), Datagram::bind(ANY).unwrap())
}

#[test]
fn datagrams_arrive_by_udp_and_past_it() {
    let (a, b) = pair();
    let (from, to) = (a.local_addr().unwrap(), b.local_addr().unwrap());
    let mut buf = [0; 64];
    for i in 0..200u8 {
        assert_eq!(a.send_to(&[i; 3], to).unwrap(), 3);
        assert_eq!(b.recv_from(&mut buf).unwrap(), (3, from));
        assert_eq!(buf[..3], [i; 3]);
        b.send_to(b"ok", from).unwrap();
        assert_eq!(a.recv(&mut buf).unwrap(), 2);
    }
    assert!(a.max_past_udp(to).is_some());
    let counters = a.counters();
    assert!(counters.n_by_udp > 0 && counters.n_by_udp < 200, "{counters:?}");
}

#[test]
fn a_connected_socket_sends_to_its_peer_and_hears_it_alone() {
    let (a, b) = pair();
    let stranger = Datagram::bind(ANY).unwrap();
    assert_eq!(a.send(b"x").unwrap_err().raw_os_error(), Some(libc::EDESTADDRREQ));
    assert_eq!(a.peer_addr().unwrap_err().kind(), ErrorKind::NotConnected);
    a.connect(b.local_addr().unwrap()).unwrap();
    assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
    stranger.send_to(b"stranger", a.local_addr().unwrap()).unwrap();
    b.send_to(b"peer", a.local_addr().unwrap()).unwrap();
    let mut buf = [0; 64];
    assert_eq!(a.recv_from(&mut buf).unwrap(), (4, b.local_addr().unwrap()));
    assert_eq!(a.send(b"answer").unwrap(), 6);
    assert_eq!(b.recv(&mut buf).unwrap(), 6);
}

#[test]
fn peeking_leaves_the_datagram_and_cutting_reports_its_length() {
    let (a, b) = pair();
    a.send_to(b"a long one", b.local_addr().unwrap()).unwrap();
    let mut buf = [0; 4];
    assert_eq!(b.peek(&mut buf).unwrap(), 4);
    assert_eq!(b.peek_from(&mut buf).unwrap(), (4, a.local_addr().unwrap()));
    let received = b.recv_vectored(&mut [IoSliceMut::new(&mut buf)]).unwrap();
    assert_eq!((received.len, received.full_len, received.from), (4, 10, a.local_addr().unwrap()));
    assert_eq!(&buf, b"a lo");
}

#[test]
fn batches_are_sent_and_received_in_one_call() {
    let (a, b) = pair();
    a.connect(b.local_addr().unwrap()).unwrap();
    assert_eq!(a.send_batch(&[IoSlice::new(b"one"), IoSlice::new(b"three")]).unwrap(), 2);
    let (mut first, mut second) = ([0; 8], [0; 8]);
    let mut lens = Vec::new();
    while lens.len() < 2 {
        let mut bufs = [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)];
        let mut out = [None; 2];
        let n = b.recv_batch(&mut bufs, &mut out).unwrap();
        lens.extend(out[..n].iter().map(|received| received.unwrap().len));
    }
    assert_eq!(lens, [3, 5]);
}

#[test]
fn waits_end_as_for_std() {
    let like = UdpSocket::bind(ANY).unwrap();
    like.set_read_timeout(Some(SHORT)).unwrap();
    let expected = like.recv(&mut [0]).unwrap_err().kind();
    let zero = like.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind();
    let (a, _) = pair();
    assert_eq!((a.read_timeout().unwrap(), a.write_timeout().unwrap()), (None, None));
    a.set_read_timeout(Some(SHORT)).unwrap();
    a.set_write_timeout(Some(Duration::from_secs(1))).unwrap();
    assert!(a.read_timeout().unwrap().unwrap() >= SHORT);
    assert_eq!(a.write_timeout().unwrap(), Some(Duration::from_secs(1)));
    let start = Instant::now();
    assert_eq!(a.recv(&mut [0]).unwrap_err().kind(), expected);
    assert!(start.elapsed() >= SHORT / 2);
    assert_eq!(a.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), zero);
    a.set_read_timeout(None).unwrap();
    a.set_nonblocking(true);
    assert_eq!(a.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn options_come_back_as_they_were_set() {
    let (a, _) = pair();
    a.set_ttl(33).unwrap();
    a.set_broadcast(true).unwrap();
    a.set_multicast_loop_v4(false).unwrap();
    a.set_multicast_ttl_v4(3).unwrap();
    assert_eq!((a.ttl().unwrap(), a.broadcast().unwrap()), (33, true));
    assert_eq!((a.multicast_loop_v4().unwrap(), a.multicast_ttl_v4().unwrap()), (false, 3));
    a.set_receive_buffer_size(64 << 10).unwrap();
    assert!(a.receive_buffer_size().unwrap() >= 64 << 10);
    assert!(a.take_error().unwrap().is_none());
    assert_eq!(a.as_raw_fd(), a.as_fd().as_raw_fd());
}

#[test]
fn multicast_groups_are_joined_and_left_as_for_std() {
    let group = Ipv4Addr::new(239, 255, 3, 9);
    let a = Datagram::bind("0.0.0.0:0").unwrap();
    let like = UdpSocket::bind("0.0.0.0:0").unwrap();
    let errno = |e: std::io::Error| e.raw_os_error();
    let local = Ipv4Addr::LOCALHOST;
    let expected = like.leave_multicast_v4(&group, &local).map_err(errno);
    assert_eq!(a.leave_multicast_v4(&group, &local).map_err(errno), expected);
    let expected = like.join_multicast_v4(&group, &local).map_err(errno);
    assert_eq!(a.join_multicast_v4(&group, &local).map_err(errno), expected);
    let group = "ff02::309".parse().unwrap();
    let expected = like.join_multicast_v6(&group, 1).map_err(errno);
    assert_eq!(a.join_multicast_v6(&group, 1).map_err(errno), expected);
    let expected = like.leave_multicast_v6(&group, 1).map_err(errno);
    assert_eq!(a.leave_multicast_v6(&group, 1).map_err(errno), expected);
    let six = Datagram::bind("[::1]:0");
    if let Ok(six) = six {
        six.set_multicast_loop_v6(false).unwrap();
        assert!(!six.multicast_loop_v6().unwrap());
    }
}

#[test]
fn clones_share_the_socket_and_errors_are_those_of_std() {
    let (a, b) = pair();
    let clone = b.try_clone().unwrap();
    drop(b);
    a.send_to(b"x", clone.local_addr().unwrap()).unwrap();
    assert_eq!(clone.recv(&mut [0; 4]).unwrap(), 1);
    let none: &[SocketAddr] = &[];
    let expected = UdpSocket::bind(ANY).unwrap().send_to(b"x", none).unwrap_err().kind();
    assert_eq!(a.send_to(b"x", none).unwrap_err().kind(), expected);
    let taken = Datagram::bind(a.local_addr().unwrap()).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
}
