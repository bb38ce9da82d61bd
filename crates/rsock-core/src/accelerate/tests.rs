//! Accelerated streams over real TCP connections and the soft device, both ends in one process or
//! in two.
//!
//! The kernel's behaviour is the rule: each scenario checks the bytes, and that the ring was used
//! (or was not). Nothing here sleeps to wait for something; a test that hangs is ended by
//! `watchdog`.

mod boundaries;
mod discovery;
mod ends;
mod handoff;
mod memory;
mod moving;
mod native_peer;
mod readiness;
mod shortcuts;

use crate::accelerate::*;
use rsock_proto::switch::{DirectionSwitch, Fact, Message, Sender};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags, Shutdown, sockopt};
use std::io::{ErrorKind, IoSlice, IoSliceMut};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// One end of a connection.
struct End {
    socket: TcpStream,
    stream: AcceleratedStream,
}

impl End {
    fn new(socket: TcpStream) -> Self {
        let stream = AcceleratedStream::adopt(socket.as_fd(), None).expect("family memory");
        Self { socket, stream }
    }

    fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.send(self.socket.as_fd(), &[IoSlice::new(bytes)], SendFlags::empty())
    }

    fn try_send(&self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.send(self.socket.as_fd(), &[IoSlice::new(bytes)], SendFlags::DONTWAIT)
    }

    fn recv_with(&self, buf: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
        self.stream.recv(self.socket.as_fd(), &mut [IoSliceMut::new(buf)], flags)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_with(buf, RecvFlags::empty())
    }

    fn recv_all(&self, buf: &mut [u8]) {
        let n = self.recv_with(buf, RecvFlags::WAITALL).expect("receive");
        assert_eq!(n, buf.len());
    }

    /// An entry to poll for `events`.
    fn poll_entry(&self, events: PollFlags) -> PollDescriptor<'_> {
        let stream = Some(StreamRef::from(&self.stream));
        PollDescriptor { stream, ..PollDescriptor::new(self.socket.as_raw_fd(), events) }
    }

    fn pin(&self) {
        self.stream.pin(self.socket.as_fd(), FallbackReason::Configured);
    }
}

fn connect() -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    let (server, _) = listener.accept().expect("accept");
    (End::new(client), End::new(server))
}

/// Sends small messages in both directions until both are on the ring.
fn connect_on_ring() -> (End, End) {
    let (a, b) = connect();
    let mut byte = [0];
    for _ in 0..10_000 {
        for (from, to) in [(&a, &b), (&b, &a)] {
            from.send(&[7]).expect("send");
            to.recv_all(&mut byte);
        }
        let all_up = [&a, &b].iter().all(|e| e.stream.channels().are_accelerated());
        if all_up {
            return (a, b);
        }
    }
    panic!("not on the ring: {:?} {:?}", a.stream.pin_reason(), b.stream.pin_reason());
}

/// Ends the test process if `f` takes unreasonably long: a hang must fail, not block.
fn watchdog<R: Send>(f: impl FnOnce() -> R + Send) -> R {
    let (done, waits) = mpsc::channel::<()>();
    std::thread::scope(|s| {
        s.spawn(move || {
            let limit = Duration::from_secs(120);
            if waits.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout) {
                eprintln!("hung");
                std::process::abort();
            }
        });
        let result = f();
        drop(done);
        result
    })
}

/// Waits until that thread of this process sleeps.
fn await_asleep(thread: u32) {
    loop {
        let stat = std::fs::read_to_string(format!("/proc/self/task/{thread}/stat"));
        // The state comes after the name, which is in parentheses.
        if stat.expect("a thread").rsplit(')').next().is_some_and(|rest| rest.starts_with(" S")) {
            return;
        }
        std::thread::yield_now();
    }
}

/// Reproducible bytes: position `i` of a stream has one value.
fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

/// A small generator for sizes, seeded by the test.
struct Sizes(usize);

impl Sizes {
    fn next(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // Small ones often, large ones now and then.
        let limit = [1, 16, 200, 5_000, most][(self.0 >> 60) % 5];
        1 + (self.0 >> 8) % limit
    }
}

fn send_pattern(end: &End, total: usize, seed: usize) {
    let mut sizes = Sizes(seed);
    let mut at = 0;
    while at < total {
        let len = sizes.next(300_000).min(total - at);
        assert_eq!(end.send(&pattern(at, len)).expect("send"), len);
        at += len;
    }
}

fn recv_pattern(end: &End, total: usize, seed: usize) {
    recv_pattern_between(end, 0, total, seed);
}

/// Receives the bytes of the pattern from `at` on, up to `total`.
fn recv_pattern_between(end: &End, mut at: usize, total: usize, seed: usize) {
    let mut sizes = Sizes(seed);
    let mut buf = vec![0; 300_000];
    while at < total {
        let want = sizes.next(buf.len()).min(total - at);
        let n = end.recv(&mut buf[..want]).expect("receive");
        assert_ne!(n, 0, "early end at {at}");
        assert!(buf[..n] == pattern(at, n)[..], "wrong bytes near {at}");
        at += n;
    }
}

impl AcceleratedStream {
    /// Leaves the ring, as a sender does that has found it full for long.
    fn move_down(&self, fd: BorrowedFd<'_>) {
        let mut tx = self.dirs.tx.0.lock();
        tx.full_since = sys::now().checked_sub(Duration::from_secs(1));
        let mut subject = Subject::new(fd, self.path());
        let mut seen = self.begin(&*tx, &subject);
        self.note(&*tx, &mut seen, &subject, Fact::RingFull);
        let next = self.ask(&mut *tx, &mut seen, &mut subject, Sender::write).expect("a socket");
        assert!(tx.switch.is_on_tcp(), "{next:?}");
    }
}
