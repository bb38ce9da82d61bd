//! Rsockets end to end on the shared-memory device: both ends in one process, except where a
//! process must die.

mod connecting;
mod direct;
mod polling;
mod streaming;

use crate::rsocket::*;
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Ends the test process if a test hangs.
struct Watchdog(#[expect(dead_code, reason = "dropping it is the signal")] Sender<()>);

fn watchdog() -> Watchdog {
    let (alive, watch) = channel();
    std::thread::spawn(move || {
        if watch.recv_timeout(Duration::from_secs(60)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test hangs");
            std::process::abort();
        }
    });
    Watchdog(alive)
}

fn addr(text: &str) -> SocketAddr {
    text.parse().expect("address")
}

fn listening(at: &str) -> Socket {
    let socket =
        Socket::new(if at.starts_with('[') { Family::V6 } else { Family::V4 }).expect("socket");
    socket.bind(addr(at)).expect("bind");
    socket.listen(8).expect("listen");
    socket
}

/// A connected pair: the connecting end, the accepted end.
fn pair() -> (Socket, Socket) {
    pair_with(|_| {})
}

/// A connected pair whose two ends were set up by `f` before they existed.
fn pair_with(f: impl Fn(&Socket)) -> (Socket, Socket) {
    let listener = listening("127.0.0.1:0");
    f(&listener);
    let client = Socket::new(Family::V4).expect("socket");
    f(&client);
    // One thread does both: the connect advances the listener's handshake.
    client.connect(listener.local_addr().expect("name"), None).expect("connect");
    let server = listener.accept().expect("accept");
    (client, server)
}

fn send(socket: &Socket, bytes: &[u8]) -> io::Result<usize> {
    socket.send(&[IoSlice::new(bytes)], SendFlags::empty())
}

fn recv(socket: &Socket, len: usize) -> io::Result<Vec<u8>> {
    recv_with(socket, len, RecvFlags::empty())
}

fn recv_with(socket: &Socket, len: usize, flags: RecvFlags) -> io::Result<Vec<u8>> {
    let mut buf = vec![0; len];
    let n = socket.recv(&mut [IoSliceMut::new(&mut buf)], flags)?;
    buf.truncate(n);
    Ok(buf)
}

fn set(socket: &Socket, level: i32, name: i32, value: i32) {
    socket.set_option(level, name, &value.to_ne_bytes()).expect("option");
}

fn errno<T: std::fmt::Debug>(r: io::Result<T>) -> i32 {
    r.expect_err("an error").raw_os_error().expect("errno")
}

fn poll_one(socket: &Socket, events: PollFlags, timeout: Option<Duration>) -> PollFlags {
    let source = Source::Socket(socket);
    let mut entries = [PollEntry { source, events, revents: PollFlags::empty() }];
    poll(&mut entries, timeout, None).expect("poll");
    entries[0].revents
}
