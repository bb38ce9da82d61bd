//! Futures of connected streams and their halves, of both transports, in each place that the bytes
//! of a stream can be.

use super::at_every_await::{EVENT, at_every_await, at_its_own_awaits};
use super::rsockets_pair;
use crate::common::{accelerated_pair, connect, connect_with, pattern, poll_times, settle};
use bytes::{Buf, Bytes};
use rsock_tokio::{
    Accelerated, Builder, OwnedReadHalf, OwnedWriteHalf, Rsockets, Stream, Transport,
};
use rustix::net::sockopt;
use std::env;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::task::JoinHandle;

/// Where the bytes of a stream are, and how its tasks wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On TCP for good: the socket was used before the stream took it over.
    Tcp,
    /// On the way from TCP to shared memory.
    Moving,
    /// In shared memory.
    Memory,
    /// In shared memory, where a wait sleeps at once.
    MemoryAsleep,
    /// On an rsockets connection.
    Rsockets,
}

/// A transport, with the places that its streams can be in.
pub(crate) trait Places: Transport + Sized {
    fn places() -> &'static [Place];
    async fn pair(place: Place) -> (Stream<Self>, Stream<Self>);
    /// Whether what is sent next bypasses TCP, and may move back to it.
    fn may_move_to_tcp(stream: &Stream<Self>) -> bool;
}

fn stays_on_tcp() -> bool {
    env::var_os("RSOCK_DEVICE").is_some_and(|device| device == "tcp")
}

impl Places for Accelerated {
    fn places() -> &'static [Place] {
        match stays_on_tcp() {
            true => &[Place::Tcp],
            false => &[Place::Tcp, Place::Moving, Place::Memory, Place::MemoryAsleep],
        }
    }

    async fn pair(place: Place) -> (Stream, Stream) {
        match place {
            Place::Tcp => used(),
            Place::Moving => connect().await,
            Place::MemoryAsleep => {
                let (mut a, mut b) = connect_with(Builder::new().spin(Duration::ZERO)).await;
                settle(&mut a, &mut b).await;
                (a, b)
            }
            _ => accelerated_pair().await,
        }
    }

    fn may_move_to_tcp(stream: &Stream) -> bool {
        stream.channels().send.is_ring()
    }
}

impl Places for Rsockets {
    fn places() -> &'static [Place] {
        if stays_on_tcp() { &[] } else { &[Place::Rsockets] }
    }

    async fn pair(_: Place) -> (Stream<Self>, Stream<Self>) {
        rsockets_pair().await
    }

    fn may_move_to_tcp(_: &Stream<Self>) -> bool {
        false
    }
}

/// Runs a case, which is generic over the transport, for each of the two; the argument is compiled
/// once for each.
macro_rules! for_each_transport {
    ($case:ident($($arg:expr)?)) => {
        $case::<Accelerated>($($arg)?).await;
        $case::<Rsockets>($($arg)?).await;
    };
}

/// Both ends of a connection that carried bytes before the streams took it over.
fn used() -> (Stream, Stream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    let to = listener.local_addr().expect("address");
    let mut client = std::net::TcpStream::connect(to).expect("connect");
    let (mut server, _) = listener.accept().expect("accept");
    let mut byte = [0];
    client.write_all(&[1]).and_then(|()| server.read_exact(&mut byte)).expect("a byte");
    server.write_all(&[1]).and_then(|()| client.read_exact(&mut byte)).expect("a byte");
    let ends = [client, server].map(|socket| {
        socket.set_nonblocking(true).expect("option");
        Stream::from_std(socket).expect("a stream")
    });
    ends.into()
}

/// The end that writes while a future of the other end waits.
struct Peer<T: Transport> {
    stream: Stream<T>,
    n_written: usize,
    /// Another task that waits for the same input.
    other: Option<JoinHandle<OwnedWriteHalf<T>>>,
}

impl<T: Transport> Peer<T> {
    /// The bytes that it writes next, or has written last.
    fn word(&self) -> Vec<u8> {
        pattern(self.n_written, 8)
    }

    async fn write(&mut self) {
        self.stream.write_all(&self.word()).await.expect("write");
    }

    /// The word is still there, the other task was woken for it, and nothing is left over.
    async fn end_round(&mut self, reading: &OwnedReadHalf<T>) {
        let other = self.other.take().expect("the other task").await.expect("no panic");
        assert_eq!(reading.as_ref().recv(100).await.expect("receive"), self.word());
        assert_eq!(reading.try_read(&mut [0]).expect_err("no more").kind(), ErrorKind::WouldBlock);
        self.n_written += 1;
        self.wait_beside(other);
    }

    fn wait_beside(&mut self, half: OwnedWriteHalf<T>) {
        self.other = Some(tokio::spawn(async move {
            half.as_ref().readable().await.expect("input");
            half
        }));
    }
}

async fn reader<T: Places>(place: Place) -> (OwnedReadHalf<T>, Peer<T>) {
    let (a, stream) = T::pair(place).await;
    let (reading, other) = a.into_split();
    let mut peer = Peer { stream, n_written: 0, other: None };
    peer.wait_beside(other);
    (reading, peer)
}

async fn drop_reads<T: Places>(read: impl AsyncFn(&mut OwnedReadHalf<T>) -> Vec<u8>) {
    for &place in T::places() {
        let (mut a, mut peer) = reader::<T>(place).await;
        let after = async |a: &mut OwnedReadHalf<T>, peer: &mut Peer<T>, taken: Option<Vec<u8>>| {
            if let Some(taken) = taken {
                assert_eq!(taken, peer.word(), "{place:?}");
                // The other task may have checked after the bytes were taken.
                peer.write().await;
            }
            peer.end_round(a).await;
        };
        let write = async |peer: &mut Peer<T>| {
            peer.write().await;
            false
        };
        let steps = at_every_await(&mut a, &mut peer, &read, write, after).await;
        assert!(steps > EVENT, "{place:?}: it did not wait");
    }
}

pub(crate) async fn a_dropped_read_has_taken_nothing() {
    for_each_transport!(drop_reads(async |a| a.as_ref().recv(100).await.expect("receive").into()));
    for_each_transport!(drop_reads(async |a| {
        let mut word = [0; 100];
        let n = a.read(&mut word).await.expect("read");
        word[..n].to_vec()
    }));
    // More than there is: it reads what there is.
    for_each_transport!(drop_reads(async |a| {
        let mut word = Vec::with_capacity(100);
        a.read_buf(&mut word).await.expect("read");
        word
    }));
}

async fn drop_peeks<T: Places>(peek: impl AsyncFn(&mut OwnedReadHalf<T>)) {
    for &place in T::places() {
        let (mut a, mut peer) = reader::<T>(place).await;
        let after = async |a: &mut OwnedReadHalf<T>, peer: &mut Peer<T>, _: Option<()>| {
            peer.end_round(a).await;
        };
        let write = async |peer: &mut Peer<T>| {
            peer.write().await;
            false
        };
        let steps = at_every_await(&mut a, &mut peer, &peek, write, after).await;
        assert!(steps > EVENT, "{place:?}: it did not wait");
    }
}

pub(crate) async fn a_dropped_peek_or_wait_for_input_has_taken_nothing() {
    for_each_transport!(drop_peeks(async |a| a.readable().await.expect("input")));
    for_each_transport!(drop_peeks(async |a| a.as_ref().readable().await.expect("input")));
    for_each_transport!(drop_peeks(async |a| {
        assert!(a.ready(Interest::READABLE).await.expect("input").is_readable());
    }));
    for_each_transport!(drop_peeks(async |a| assert_eq!(
        a.peek(&mut [0; 100]).await.expect("peek"),
        8
    )));
    for_each_transport!(drop_peeks(async |a| assert_eq!(
        a.as_ref().peek(&mut [0; 4]).await.expect("peek"),
        4
    )));
}

/// The end that writes as much as the other one has room for.
struct Writer<T: Transport> {
    half: OwnedWriteHalf<T>,
    /// Bytes that were written, and are in `rest`.
    made: usize,
    rest: Bytes,
}

impl<T: Places> Writer<T> {
    /// What to write next: never empty.
    fn rest(&mut self) -> &mut Bytes {
        if self.rest.is_empty() {
            self.rest = pattern(self.made, 1 << 20).into();
            self.made += self.rest.len();
        }
        &mut self.rest
    }

    fn n_written(&self) -> usize {
        self.made - self.rest.len()
    }

    /// Writes until there is no room, neither in shared memory nor in the kernel.
    async fn fill(&mut self) {
        loop {
            let rest = self.rest().clone();
            match self.half.try_write(&rest) {
                Ok(n) => self.rest.advance(n),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    if !T::may_move_to_tcp(self.half.as_ref()) {
                        return;
                    }
                    // It moves to TCP, because the peer does not read.
                    self.half.writable().await.expect("room");
                }
            }
        }
    }
}

/// The end that reads, and how far it has got.
struct Reader<T: Transport> {
    stream: Stream<T>,
    n_read: usize,
}

impl<T: Transport> Reader<T> {
    fn check(&mut self, bytes: &[u8]) {
        assert!(bytes == pattern(self.n_read, bytes.len()), "lost or doubled at {}", self.n_read);
        self.n_read += bytes.len();
    }

    /// Reads all that is there.
    async fn drain(&mut self) {
        let mut buf = vec![0; 1 << 18];
        loop {
            match self.stream.try_read(&mut buf) {
                Ok(n) => self.check(&buf[..n]),
                Err(e) => break assert_eq!(e.kind(), ErrorKind::WouldBlock),
            }
        }
    }
}

async fn drop_writes<T: Places>(write: impl AsyncFn(&mut Writer<T>)) {
    for &place in T::places() {
        let (a, stream) = T::pair(place).await;
        if place != Place::Rsockets {
            // Little room in the kernel: it is filled often.
            sockopt::set_socket_send_buffer_size(&a, 1 << 16).expect("option");
            sockopt::set_socket_recv_buffer_size(&stream, 1 << 16).expect("option");
        }
        let (reading, half) = a.into_split();
        let mut a = Writer { half, made: 0, rest: Bytes::new() };
        let mut b = Reader { stream, n_read: 0 };
        a.fill().await;
        let after = async |a: &mut Writer<T>, _: &mut Reader<T>, _: Option<()>| a.fill().await;
        let drain = async |b: &mut Reader<T>| {
            b.drain().await;
            true
        };
        let steps = at_every_await(&mut a, &mut b, &write, drain, after).await;
        // The kernel may find room by itself.
        assert!(steps > EVENT || place != Place::Rsockets, "{place:?}: it did not wait");
        let n_written = a.n_written();
        a.half.shutdown().await.expect("shutdown");
        let mut buf = vec![0; 1 << 18];
        loop {
            match b.stream.read(&mut buf).await.expect("read") {
                0 => break,
                n => b.check(&buf[..n]),
            }
        }
        assert_eq!(b.n_read, n_written, "{place:?}");
        drop(reading);
    }
}

pub(crate) async fn a_dropped_write_has_sent_nothing() {
    for_each_transport!(drop_writes(async |a| {
        let rest = a.rest().clone();
        let some = &rest[..rest.len().min(10)];
        let n = a.half.write(some).await.expect("write");
        a.rest.advance(n);
    }));
    for_each_transport!(drop_writes(async |a| {
        let rest = a.rest().clone();
        let n = a.half.write(&rest).await.expect("write");
        a.rest.advance(n);
    }));
    for_each_transport!(drop_writes(async |a| {
        let rest = a.rest().clone();
        let (one, two) = rest.split_at(rest.len() / 2);
        let n = a.half.write_vectored(&[IoSlice::new(one), IoSlice::new(two)]).await;
        a.rest.advance(n.expect("write"));
    }));
    // It takes what it has sent from the buffer, however far it gets.
    for_each_transport!(drop_writes(async |a| {
        a.rest();
        a.half.as_ref().send(&mut a.rest).await.expect("send");
    }));
}

pub(crate) async fn a_dropped_wait_for_room_has_sent_nothing() {
    for_each_transport!(drop_writes(async |a| a.half.writable().await.expect("room")));
    for_each_transport!(drop_writes(async |a| a.half.as_ref().writable().await.expect("room")));
    for_each_transport!(drop_writes(async |a| {
        assert!(a.half.ready(Interest::WRITABLE).await.expect("room").is_writable());
    }));
}

pub(crate) async fn a_dropped_shutdown_has_ended_the_direction_or_not() {
    for_each_transport!(drop_shutdowns());
}

async fn drop_shutdowns<T: Places>() {
    for &place in T::places() {
        let mut ends = T::pair(place).await;
        at_its_own_awaits(
            &mut ends,
            async |(a, _)| a.shutdown().await.expect("shutdown"),
            async |(a, b), ended| {
                let mut byte = [0];
                match ended {
                    Some(()) => assert_eq!(b.read(&mut byte).await.expect("the end"), 0),
                    None => assert!(poll_times(b.read(&mut byte), 3).await.is_none()),
                }
                // The other direction goes on.
                b.write_all(&[1]).await.expect("write");
                a.read_exact(&mut byte).await.expect("read");
            },
        )
        .await;
    }
}
