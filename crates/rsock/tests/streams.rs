//! `rsock::Stream` beside `std::net::TcpStream`, on TCP and on the ring.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

mod common;

use common::{ANY, on_both, on_ring, on_tcp, std_pair};
use rsock::{
    Acceleration, Builder, Channel, FallbackReason, KeepaliveSettings, Listener, Side, Stream,
};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn bytes_arrive_by_reads_and_writes_of_every_kind() {
    on_both(|mut a, mut b| {
        assert_eq!(a.write(b"one").unwrap(), 3);
        assert_eq!((&a).write_vectored(&[IoSlice::new(b"two"), IoSlice::new(b"!")]).unwrap(), 4);
        assert_eq!(a.send(b"three").unwrap(), 5);
        a.flush().unwrap();
        let mut word = [0; 3];
        b.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"one");
        let (mut two, mut mark) = ([0; 3], [0; 1]);
        let bufs = &mut [IoSliceMut::new(&mut two), IoSliceMut::new(&mut mark)];
        assert_eq!(b.read_vectored(bufs).unwrap(), 4);
        assert_eq!((&two, &mark), (b"two", b"!"));
        let mut five = [0; 5];
        assert_eq!(b.recv(&mut five).unwrap(), 5);
        assert_eq!(&five, b"three");
    });
}

#[test]
fn peeking_leaves_the_bytes_in_the_stream() {
    on_both(|a, mut b| {
        a.send(b"word").unwrap();
        let mut word = [0; 2];
        assert_eq!(b.peek(&mut word).unwrap(), 2);
        assert_eq!(&word, b"wo");
        assert_eq!(b.bytes_readable().unwrap(), 4);
        let mut all = [0; 4];
        b.read_exact(&mut all).unwrap();
        assert_eq!((&all, b.bytes_readable().unwrap()), (b"word", 0));
    });
}

#[test]
fn both_ends_know_both_addresses() {
    on_both(|a, b| {
        assert_eq!(a.local_addr().unwrap(), b.peer_addr().unwrap());
        assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
    });
}

#[test]
fn half_a_shutdown_ends_one_direction() {
    on_both(|a, mut b| {
        a.send(b"last").unwrap();
        a.shutdown(Shutdown::Write).unwrap();
        let mut all = Vec::new();
        b.read_to_end(&mut all).unwrap();
        assert_eq!(all, b"last");
        b.write_all(b"answer").unwrap();
        let mut answer = [0; 6];
        (&a).read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"answer");
        assert_eq!(a.send(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    });
}

#[test]
fn clones_share_the_connection_until_the_last_is_dropped() {
    on_both(|a, mut b| {
        let clone = a.try_clone().unwrap();
        drop(a);
        clone.send(b"x").unwrap();
        b.read_exact(&mut [0]).unwrap();
        drop(clone);
        assert_eq!(b.read(&mut [0]).unwrap(), 0);
    });
}

#[test]
fn a_reader_and_a_writer_work_in_two_threads() {
    const LEN: usize = 1 << 20;
    on_both(|a, b| {
        let echo = thread::spawn(move || {
            let mut left = LEN;
            let mut buf = vec![0; 1 << 16];
            while left > 0 {
                let n = (&b).read(&mut buf).unwrap();
                (&b).write_all(&buf[..n]).unwrap();
                left -= n;
            }
        });
        let sent: Vec<u8> = (0..LEN).map(|i| (i % 251).to_le_bytes()[0]).collect();
        thread::scope(|scope| {
            scope.spawn(|| (&a).write_all(&sent).unwrap());
            let mut received = vec![0; LEN];
            (&a).read_exact(&mut received).unwrap();
            assert!(received == sent);
        });
        echo.join().unwrap();
    });
}

#[test]
fn timeouts_are_kept_and_end_a_wait_as_for_std() {
    let (like, _like_peer) = std_pair();
    like.set_read_timeout(Some(SHORT)).unwrap();
    let expected = (&like).read(&mut [0]).unwrap_err().kind();
    let zero = like.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind();
    on_both(|a, _b| {
        assert_eq!((a.read_timeout().unwrap(), a.write_timeout().unwrap()), (None, None));
        a.set_read_timeout(Some(SHORT)).unwrap();
        a.set_write_timeout(Some(SHORT)).unwrap();
        let start = Instant::now();
        assert_eq!(a.recv(&mut [0]).unwrap_err().kind(), expected);
        assert!(start.elapsed() >= SHORT / 2);
        let block = vec![0; 1 << 20];
        let full = loop {
            if let Err(e) = a.send(&block) {
                break e;
            }
        };
        assert_eq!(full.kind(), ErrorKind::WouldBlock);
        assert_eq!(a.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(), zero);
        assert_eq!(a.set_write_timeout(Some(Duration::ZERO)).unwrap_err().kind(), zero);
        a.set_read_timeout(None).unwrap();
        assert_eq!(a.read_timeout().unwrap(), None);
        assert!(a.write_timeout().unwrap().is_some());
    });
}

#[test]
fn a_non_blocking_stream_returns_would_block() {
    on_both(|a, b| {
        b.set_nonblocking(true).unwrap();
        assert_eq!(b.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(b.peek(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
        b.set_nonblocking(false).unwrap();
        a.send(b"x").unwrap();
        assert_eq!(b.recv(&mut [0]).unwrap(), 1);
    });
}

#[test]
fn options_come_back_as_they_were_set() {
    on_both(|a, _b| {
        for on in [true, false] {
            a.set_nodelay(on).unwrap();
            assert_eq!(a.nodelay().unwrap(), on);
        }
        a.set_ttl(42).unwrap();
        assert_eq!(a.ttl().unwrap(), 42);
        assert_eq!(a.linger().unwrap(), None);
        a.set_linger(Some(Duration::from_secs(3))).unwrap();
        assert_eq!(a.linger().unwrap(), Some(Duration::from_secs(3)));
        a.set_linger(None).unwrap();
        assert_eq!(a.linger().unwrap(), None);
        assert_eq!(a.keepalive().unwrap(), None);
        let seconds = Duration::from_secs;
        let times = KeepaliveSettings { idle: seconds(9), interval: seconds(2), probes: 4 };
        a.set_keepalive(Some(times)).unwrap();
        assert_eq!(a.keepalive().unwrap(), Some(times));
        let wrong = a.set_keepalive(Some(KeepaliveSettings { probes: 0, ..times })).unwrap_err();
        assert_eq!(wrong.kind(), ErrorKind::InvalidInput);
        a.set_keepalive(None).unwrap();
        assert_eq!(a.keepalive().unwrap(), None);
        assert!(a.take_error().unwrap().is_none());
    });
}

#[test]
fn a_close_with_linger_zero_is_a_reset_for_the_peer() {
    on_both(|a, b| {
        a.set_linger(Some(Duration::ZERO)).unwrap();
        drop(a);
        let end = b.recv(&mut [0]).map_err(|e| e.kind());
        assert!(matches!(end, Err(ErrorKind::ConnectionReset) | Ok(0)), "{end:?}");
    });
    // On TCP it is always a reset.
    let (a, b) = on_tcp();
    a.set_linger(Some(Duration::ZERO)).unwrap();
    drop(a);
    assert_eq!(b.recv(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_refused_connect_has_the_error_of_std() {
    // The port stays taken by a socket that does not listen.
    let port = rsock_test_ports::reserved();
    let to = SocketAddr::from(([127, 0, 0, 1], port));
    let expected = TcpStream::connect(to).unwrap_err();
    for refused in [Stream::connect(to), Stream::connect_timeout(&to, Duration::from_secs(5))] {
        let refused = refused.unwrap_err();
        assert_eq!(
            (refused.kind(), refused.raw_os_error()),
            (expected.kind(), expected.raw_os_error())
        );
    }
    let zero = Stream::connect_timeout(&to, Duration::ZERO).unwrap_err();
    let expected = TcpStream::connect_timeout(&to, Duration::ZERO).unwrap_err();
    assert_eq!(zero.kind(), expected.kind());
    let none: &[SocketAddr] = &[];
    let expected = TcpStream::connect(none).unwrap_err();
    assert_eq!(Stream::connect(none).unwrap_err().kind(), expected.kind());
}

#[test]
fn the_first_address_that_accepts_is_used() {
    let listener = Listener::bind(ANY).unwrap();
    let closed = SocketAddr::from(([127, 0, 0, 1], rsock_test_ports::reserved()));
    let all = [closed, listener.local_addr().unwrap()];
    let limited = Builder::new().connect_timeout(Duration::from_secs(5));
    for stream in [Stream::connect(&all[..]), limited.connect(&all[..])] {
        assert_eq!(stream.unwrap().peer_addr().unwrap(), all[1]);
    }
}

#[test]
fn transports_and_reasons_say_where_the_bytes_travel() {
    let (a, _b) = on_tcp();
    assert_eq!((a.channels().send, a.channels().recv), (Channel::Tcp, Channel::Tcp));
    assert!(!a.channels().are_accelerated());
    assert_eq!(a.fallback_reason(), Some(FallbackReason::Configured));
    assert_eq!(a.fallback_reason().unwrap().to_string(), "switched off by configuration");
    assert_eq!(a.channels().to_string(), "sends by TCP, receives by TCP");
    let (a, _b) = on_ring();
    assert_eq!((a.channels().send, a.channels().recv), (Channel::Ring, Channel::Ring));
    assert_eq!(a.fallback_reason(), None);
    assert!(format!("{a:?}").contains("Ring"), "{a:?}");
}

#[test]
fn every_reason_has_a_text() {
    for reason in [FallbackReason::None, FallbackReason::NoPeer, FallbackReason::Aio] {
        assert!(!reason.to_string().is_empty());
    }
}

#[test]
fn a_stream_on_tcp_becomes_the_socket_of_std_at_once() {
    let (a, mut b) = on_tcp();
    let mut socket = TcpStream::try_from(a).unwrap();
    socket.write_all(b"plain").unwrap();
    let mut word = [0; 5];
    b.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"plain");
    drop(socket);
    assert_eq!(b.read(&mut [0]).unwrap(), 0);
}

#[test]
fn a_stream_on_the_ring_becomes_a_tcp_socket_and_loses_no_byte() {
    let (a, mut b) = on_ring();
    let peer = thread::spawn(move || {
        // The peer leaves the ring in its calls.
        let mut all = Vec::new();
        let mut buf = [0; 64];
        loop {
            match b.read(&mut buf).unwrap() {
                0 => break all,
                n => {
                    all.extend_from_slice(&buf[..n]);
                    b.write_all(&buf[..n]).unwrap();
                }
            }
        }
    });
    let mut word = [0; 3];
    a.send(b"one").unwrap();
    (&a).read_exact(&mut word).unwrap();
    let mut stream = a;
    let mut socket = loop {
        match stream.into_std() {
            Ok(socket) => break socket,
            Err(e) => {
                assert_eq!(e.error().kind(), ErrorKind::WouldBlock, "{e}");
                stream = e.into_stream();
                stream.send(b"two").unwrap();
                (&stream).read_exact(&mut word).unwrap();
            }
        }
    };
    socket.write_all(b"end").unwrap();
    socket.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"end");
    socket.shutdown(Shutdown::Write).unwrap();
    let all = peer.join().unwrap();
    assert!(all.starts_with(b"one") && all.ends_with(b"end"), "{all:?}");
    assert_eq!(socket.read(&mut word).unwrap(), 0);
}

#[test]
fn a_stream_with_unread_bytes_on_the_ring_or_with_clones_stays_a_stream() {
    let (a, b) = on_ring();
    a.send(b"unread").unwrap();
    let refused = b.into_std().unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::WouldBlock);
    let b = refused.into_stream();
    let mut word = [0; 6];
    (&b).read_exact(&mut word).unwrap();
    assert_eq!(&word, b"unread");

    let clone = b.clone();
    let refused = OwnedFd::try_from(clone).unwrap_err();
    assert_eq!(refused.error().kind(), ErrorKind::ResourceBusy);
    assert!(refused.to_string().contains("clones"));
    a.send(b"x").unwrap();
    assert_eq!(b.recv(&mut word).unwrap(), 1);
}

#[test]
fn sockets_of_std_and_descriptors_become_streams() {
    let (a, b) = std_pair();
    let (number, b) = (a.as_raw_fd(), Stream::with_side(b, Side::Accepted));
    let a = Stream::from(a);
    assert_eq!((a.as_raw_fd(), a.as_fd().as_raw_fd()), (number, number));
    a.send(b"x").unwrap();
    assert_eq!(b.recv(&mut [0]).unwrap(), 1);
    let (c, d) = std_pair();
    let (c, d) = (Stream::from(OwnedFd::from(c)), Builder::new().adopt(d, Side::Accepted).unwrap());
    c.send(b"y").unwrap();
    assert_eq!(d.recv(&mut [0]).unwrap(), 1);
}

#[test]
fn a_plain_tcp_program_is_a_peer_like_any_other() {
    let listener = TcpListener::bind(ANY).unwrap();
    let stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    for _ in 0..100 {
        stream.send(b"q").unwrap();
        peer.read_exact(&mut [0]).unwrap();
        peer.write_all(b"a").unwrap();
        assert_eq!(stream.recv(&mut [0]).unwrap(), 1);
    }
    assert!(!stream.channels().are_accelerated());
}

#[test]
fn settings_of_a_builder_count_for_connected_and_accepted_streams() {
    let settings = Builder::new()
        .acceleration(Acceleration::Automatic)
        .nodelay(true)
        .read_timeout(Duration::from_secs(2))
        .write_timeout(Duration::from_secs(3));
    let listener = settings.listener(TcpListener::bind(ANY).unwrap());
    let client = settings.connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    for stream in [client, server] {
        assert!(stream.nodelay().unwrap());
        assert_eq!(stream.read_timeout().unwrap(), Some(Duration::from_secs(2)));
        assert_eq!(stream.write_timeout().unwrap(), Some(Duration::from_secs(3)));
    }
    let zero = Builder::new().read_timeout(Duration::ZERO).connect(listener.local_addr().unwrap());
    assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
}
