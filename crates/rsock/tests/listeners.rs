//! `rsock::Listener` beside `std::net::TcpListener`.

#![allow(clippy::unwrap_used, reason = "a failed step fails the test")]

use rsock::{Listener, Stream};
use std::io::{ErrorKind, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd};

const ANY: &str = "127.0.0.1:0";

#[test]
fn a_taken_address_has_the_error_of_std() {
    let listener = Listener::bind(ANY).unwrap();
    let at = listener.local_addr().unwrap();
    let expected = TcpListener::bind(at).unwrap_err();
    let refused = Listener::bind(at).unwrap_err();
    assert_eq!(
        (refused.kind(), refused.raw_os_error()),
        (expected.kind(), expected.raw_os_error())
    );
}

#[test]
fn accepting_without_waiting_is_would_block() {
    let listener = Listener::bind(ANY).unwrap();
    listener.set_nonblocking(true).unwrap();
    assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
}

#[test]
fn clones_and_the_iterator_accept_from_one_queue() {
    let listener = Listener::bind(ANY).unwrap();
    let clone = listener.try_clone().unwrap();
    assert_eq!(clone.local_addr().unwrap(), listener.local_addr().unwrap());
    let clients: Vec<_> =
        (0..3).map(|_| Stream::connect(listener.local_addr().unwrap()).unwrap()).collect();
    let (first, from) = clone.accept().unwrap();
    assert_eq!(from, clients[0].local_addr().unwrap());
    let rest: Vec<_> = listener.incoming().take(2).map(Result::unwrap).collect();
    assert_eq!(first.peer_addr().unwrap(), from);
    assert_eq!(rest[1].peer_addr().unwrap(), clients[2].local_addr().unwrap());
}

#[test]
fn options_come_back_as_they_were_set() {
    let listener = Listener::bind(ANY).unwrap();
    listener.set_ttl(7).unwrap();
    assert_eq!(listener.ttl().unwrap(), 7);
    assert!(listener.take_error().unwrap().is_none());
}

#[test]
fn a_listener_converts_to_and_from_std_and_descriptors() {
    let socket = TcpListener::bind(ANY).unwrap();
    let at = socket.local_addr().unwrap();
    let listener = Listener::from(socket);
    assert_eq!(listener.as_raw_fd(), listener.as_fd().as_raw_fd());
    let listener = Listener::from(OwnedFd::from(listener));
    // SAFETY: `into_raw_fd` gave the descriptor away.
    let fd = unsafe { OwnedFd::from_raw_fd(listener.into_raw_fd()) };
    let socket = TcpListener::from(Listener::from(fd));
    assert_eq!(socket.local_addr().unwrap(), at);
    let client = Stream::connect(at).unwrap();
    let (mut accepted, _) = socket.accept().unwrap();
    accepted.write_all(b"x").unwrap();
    assert_eq!(client.recv(&mut [0]).unwrap(), 1);
}
