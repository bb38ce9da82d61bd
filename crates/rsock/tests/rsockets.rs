//! `rsock::rsockets`: the methods of `std::net`, and exposed memory.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use rsock::rsockets::{
    self, Builder, Family, Listener, PollEntry, PollFlags, Socket, Source, Stream,
};
use rsock::{Datagram, KeepaliveSettings};
use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const ANY: &str = "127.0.0.1:0";
const SHORT: Duration = Duration::from_millis(50);

fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(ANY).unwrap();
    let client = rsockets::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

#[test]
fn bytes_arrive_by_reads_and_writes_of_every_kind() {
    let (mut a, mut b) = pair();
    assert_eq!(a.write(b"one").unwrap(), 3);
    assert_eq!((&a).write_vectored(&[IoSlice::new(b"two"), IoSlice::new(b"!")]).unwrap(), 4);
    assert_eq!(a.send(b"three").unwrap(), 5);
    a.flush().unwrap();
    let mut word = [0; 3];
    assert_eq!(b.peek(&mut word).unwrap(), 3);
    assert_eq!(b.bytes_readable(), 12);
    b.read_exact(&mut word).unwrap();
    assert_eq!(&word, b"one");
    let (mut two, mut mark) = ([0; 3], [0; 1]);
    let bufs = &mut [IoSliceMut::new(&mut two), IoSliceMut::new(&mut mark)];
    assert_eq!(b.read_vectored(bufs).unwrap(), 4);
    assert_eq!((&two, &mark), (b"two", b"!"));
    let mut five = [0; 5];
    assert_eq!(b.recv(&mut five).unwrap(), 5);
    assert_eq!(&five, b"three");
}

#[test]
fn both_ends_know_both_addresses() {
    let (a, b) = pair();
    assert_eq!(a.local_addr().unwrap(), b.peer_addr().unwrap());
    assert_eq!(a.peer_addr().unwrap(), b.local_addr().unwrap());
    assert_eq!(a.as_raw_fd(), a.as_fd().as_raw_fd());
}

#[test]
fn half_a_shutdown_ends_one_direction() {
    let (a, mut b) = pair();
    a.send(b"last").unwrap();
    a.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    b.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last");
    b.write_all(b"answer").unwrap();
    let mut answer = [0; 6];
    (&a).read_exact(&mut answer).unwrap();
    assert_eq!(a.send(b"more").unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn clones_share_the_connection_until_the_last_is_dropped() {
    let (a, mut b) = pair();
    let clone = a.try_clone().unwrap();
    drop(a);
    clone.send(b"x").unwrap();
    b.read_exact(&mut [0]).unwrap();
    drop(clone);
    assert_eq!(b.read(&mut [0]).unwrap(), 0);
}

#[test]
fn timeouts_are_kept_and_end_a_wait() {
    let (a, _b) = pair();
    assert_eq!((a.read_timeout().unwrap(), a.write_timeout().unwrap()), (None, None));
    a.set_read_timeout(Some(SHORT)).unwrap();
    a.set_write_timeout(Some(SHORT)).unwrap();
    assert_eq!(a.read_timeout().unwrap(), Some(SHORT));
    assert_eq!(a.write_timeout().unwrap(), Some(SHORT));
    let start = Instant::now();
    assert_eq!(a.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(start.elapsed() >= SHORT);
    let block = vec![0; 1 << 20];
    let full = loop {
        if let Err(e) = a.send(&block) {
            break e;
        }
    };
    assert_eq!(full.kind(), ErrorKind::WouldBlock);
    for zero in
        [a.set_read_timeout(Some(Duration::ZERO)), a.set_write_timeout(Some(Duration::ZERO))]
    {
        assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    a.set_read_timeout(None).unwrap();
    assert_eq!(a.read_timeout().unwrap(), None);
}

#[test]
fn options_come_back_as_they_were_set() {
    let (a, _b) = pair();
    a.set_nodelay(true).unwrap();
    assert!(a.nodelay().unwrap());
    assert_eq!(a.linger().unwrap(), None);
    a.set_linger(Some(Duration::from_secs(3))).unwrap();
    assert_eq!(a.linger().unwrap(), Some(Duration::from_secs(3)));
    assert_eq!(a.keepalive().unwrap(), None);
    let seconds = Duration::from_secs;
    let times = KeepaliveSettings { idle: seconds(9), interval: seconds(2), probes: 4 };
    a.set_keepalive(Some(times)).unwrap();
    assert_eq!(a.keepalive().unwrap(), Some(times));
    for wrong in [
        KeepaliveSettings { probes: 0, ..times },
        KeepaliveSettings { idle: Duration::ZERO, ..times },
        KeepaliveSettings { interval: Duration::from_millis(999), ..times },
    ] {
        assert_eq!(a.set_keepalive(Some(wrong)).unwrap_err().kind(), ErrorKind::InvalidInput);
    }
    a.set_keepalive(None).unwrap();
    assert_eq!(a.keepalive().unwrap(), None);
    assert!(a.take_error().unwrap().is_none());
}

#[test]
fn a_non_blocking_stream_returns_would_block() {
    let (a, b) = pair();
    b.set_nonblocking(true);
    assert_eq!(b.recv(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
    b.set_nonblocking(false);
    a.send(b"x").unwrap();
    assert_eq!(b.recv(&mut [0]).unwrap(), 1);
}

#[test]
fn a_close_with_linger_zero_is_a_reset_for_the_peer() {
    let (a, b) = pair();
    a.set_linger(Some(Duration::ZERO)).unwrap();
    drop(a);
    assert_eq!(b.recv(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[test]
fn a_refused_connect_has_the_error_of_std() {
    let to = SocketAddr::from(([127, 0, 0, 1], rsock_test_ports::reserved()));
    let expected = TcpStream::connect(to).unwrap_err();
    for refused in [Stream::connect(to), rsockets::connect_timeout(&to, Duration::from_secs(5))] {
        assert_eq!(refused.unwrap_err().raw_os_error(), expected.raw_os_error());
    }
    let zero = Stream::connect_timeout(&to, Duration::ZERO).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
    let none: &[SocketAddr] = &[];
    assert_eq!(Stream::connect(none).unwrap_err().kind(), ErrorKind::InvalidInput);
    let listener = Listener::bind(ANY).unwrap();
    let all = [to, listener.local_addr().unwrap()];
    assert_eq!(Stream::connect(&all[..]).unwrap().peer_addr().unwrap(), all[1]);
    let taken = Listener::bind(all[1]).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
}

#[test]
fn a_listener_waits_as_it_is_told() {
    let listener = Listener::bind(ANY).unwrap();
    let clone = listener.try_clone().unwrap();
    clone.set_nonblocking(true);
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    listener.set_nonblocking(false);
    listener.set_accept_timeout(Some(SHORT)).unwrap();
    assert_eq!(listener.accept_timeout(), Some(SHORT));
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
    let zero = listener.set_accept_timeout(Some(Duration::ZERO)).unwrap_err();
    assert_eq!(zero.kind(), ErrorKind::InvalidInput);
    listener.set_accept_timeout(None).unwrap();
    let clients: Vec<_> =
        (0..2).map(|_| Stream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    let served: Vec<_> = clone.incoming().take(2).map(Result::unwrap).collect();
    assert_eq!(served[0].peer_addr().unwrap(), clients[0].local_addr().unwrap());
    assert!(listener.take_error().unwrap().is_none());
    assert_eq!(listener.as_raw_fd(), listener.as_fd().as_raw_fd());
    assert_eq!(listener.socket().local_addr().unwrap(), listener.local_addr().unwrap());
}

#[test]
fn exposed_memory_is_written_by_the_peer_until_it_is_dropped() {
    let settings = Builder::new().iomap_slots(1).receive_memory(1 << 20);
    let listener = settings.bind(ANY).unwrap();
    let client = settings.connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    assert_eq!((client.iomap_slots(), client.receive_memory()), (1, 1 << 20));
    let region = server.expose(64, 1000).unwrap();
    assert_eq!((region.len(), region.is_empty()), (64, false));
    assert_eq!(server.expose(64, 0).unwrap_err().kind(), ErrorKind::OutOfMemory);
    server.send(b"!").unwrap();
    client.recv(&mut [0]).unwrap();
    assert_eq!(client.write_remote(b"abc", 1010).unwrap(), 3);
    assert_eq!(client.write_remote(b"abc", 1062).unwrap(), 2);
    assert_eq!(client.write_remote(b"abc", 0).unwrap_err().raw_os_error(), Some(libc::EFAULT));
    client.send(b"!").unwrap();
    server.recv(&mut [0]).unwrap();
    let mut word = [0; 4];
    region.read_at(9, &mut word);
    assert_eq!(&word, b"\0abc");
    region.write_at(0, b"own");
    region.read_at(0, &mut word);
    assert_eq!(&word, b"own\0");
    drop(region);
    server.send(b"!").unwrap();
    client.recv(&mut [0]).unwrap();
    assert_eq!(client.write_remote(b"abc", 1010).unwrap_err().raw_os_error(), Some(libc::EFAULT));
}

#[test]
fn streams_listeners_and_datagram_sockets_are_polled_together() {
    let (a, b) = pair();
    let listener = Listener::bind(ANY).unwrap();
    let datagram = Datagram::bind(ANY).unwrap();
    let entry = |source| PollEntry { source, events: PollFlags::IN, revents: PollFlags::empty() };
    let mut entries =
        [entry(Source::from(&b)), entry((&listener).into()), entry((&datagram).into())];
    assert_eq!(rsockets::poll(&mut entries, Some(SHORT), None).unwrap(), 0);
    let writer = thread::spawn(move || {
        a.send(b"x").unwrap();
        a
    });
    assert_eq!(rsockets::poll(&mut entries, None, None).unwrap(), 1);
    assert_eq!(entries[0].revents, PollFlags::IN);
    drop(writer.join().unwrap());
}

#[test]
fn a_stream_is_made_of_a_socket_and_gives_it_back() {
    let listener = Listener::bind(ANY).unwrap();
    let socket = Socket::new(Family::V4).unwrap();
    socket.connect(listener.local_addr().unwrap(), None).unwrap();
    let stream = Stream::from(socket);
    let (server, _) = listener.accept().unwrap();
    let socket: Arc<Socket> = stream.into();
    let stream = Stream::from(Arc::clone(&socket));
    stream.send(b"x").unwrap();
    assert_eq!(server.recv(&mut [0]).unwrap(), 1);
    assert_eq!(stream.socket().local_addr().unwrap(), socket.local_addr().unwrap());
}
