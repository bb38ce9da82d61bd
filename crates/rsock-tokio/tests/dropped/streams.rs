//! Futures of connected streams and their halves, on TCP, on the ring and between the two, and of the
//! pure mode.

use crate::common::awaits::{EVENT, at_every_await, at_its_own_awaits};
use crate::common::{connect, connect_with, on_ring, pattern, poll_times, settle};
use bytes::{Buf, Bytes};
use rsock_tokio::{Builder, OwnedReadHalf, OwnedWriteHalf, Stream, rsockets};
use rustix::net::sockopt;
use std::env;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::task::JoinHandle;

/// Where the bytes of a stream are, and how one waits for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// For good: the socket has been used before.
    Tcp,
    /// On the way from TCP to the ring.
    Between,
    Ring,
    /// On the ring, where a wait sleeps at once.
    Asleep,
    /// In the pure mode.
    Pure,
}

impl Place {
    /// Those that there are.
    fn all() -> &'static [Self] {
        match env::var_os("RSOCK_DEVICE").is_some_and(|device| device == "tcp") {
            true => &[Self::Tcp],
            false => &[Self::Tcp, Self::Between, Self::Ring, Self::Asleep, Self::Pure],
        }
    }

    async fn pair(self) -> (Stream, Stream) {
        match self {
            Self::Tcp => used(),
            Self::Between => connect().await,
            Self::Ring => on_ring().await,
            Self::Asleep => {
                let (mut a, mut b) = connect_with(Builder::new().spin(Duration::ZERO)).await;
                settle(&mut a, &mut b).await;
                (a, b)
            }
            Self::Pure => {
                let listener = rsockets::Listener::bind("127.0.0.1:0").await.expect("bind");
                let to = listener.local_addr().expect("address");
                let made = tokio::try_join!(rsockets::connect(to), listener.accept());
                let (client, (server, _)) = made.expect("a connection");
                (client, server)
            }
        }
    }
}

/// Both ends of a connection that has carried bytes before anybody took it over.
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

/// The end that writes while the other one's future waits.
struct Peer {
    stream: Stream,
    n_written: usize,
    /// Somebody else who waits for the same input.
    other: Option<JoinHandle<OwnedWriteHalf>>,
}

impl Peer {
    /// What it writes next, or has written last.
    fn word(&self) -> Vec<u8> {
        pattern(self.n_written, 8)
    }

    async fn write(&mut self) {
        self.stream.write_all(&self.word()).await.expect("write");
    }

    /// The word is there still, whoever waited is told of it, and nothing is left over.
    async fn end_round(&mut self, reading: &OwnedReadHalf) {
        let other = self.other.take().expect("somebody").await.expect("no panic");
        assert_eq!(reading.as_ref().recv(100).await.expect("receive"), self.word());
        assert_eq!(reading.try_read(&mut [0]).expect_err("no more").kind(), ErrorKind::WouldBlock);
        self.n_written += 1;
        self.wait_beside(other);
    }

    fn wait_beside(&mut self, half: OwnedWriteHalf) {
        self.other = Some(tokio::spawn(async move {
            half.as_ref().readable().await.expect("input");
            half
        }));
    }
}

async fn reader(place: Place) -> (OwnedReadHalf, Peer) {
    let (a, stream) = place.pair().await;
    let (reading, other) = a.into_split();
    let mut peer = Peer { stream, n_written: 0, other: None };
    peer.wait_beside(other);
    (reading, peer)
}

async fn take_dropped(take: impl AsyncFn(&mut OwnedReadHalf) -> Vec<u8>) {
    for &place in Place::all() {
        let (mut a, mut peer) = reader(place).await;
        let after = async |a: &mut OwnedReadHalf, peer: &mut Peer, taken: Option<Vec<u8>>| {
            if let Some(taken) = taken {
                assert_eq!(taken, peer.word(), "{place:?}");
                // Who waited too may have come too late for that.
                peer.write().await;
            }
            peer.end_round(a).await;
        };
        let write = async |peer: &mut Peer| {
            peer.write().await;
            false
        };
        let steps = at_every_await(&mut a, &mut peer, &take, write, after).await;
        assert!(steps > EVENT, "{place:?}: it did not wait");
    }
}

pub(crate) async fn a_read_takes_what_it_answers_or_nothing() {
    take_dropped(async |a| a.as_ref().recv(100).await.expect("receive").into()).await;
    take_dropped(async |a| {
        let mut word = [0; 100];
        let n = a.read(&mut word).await.expect("read");
        word[..n].to_vec()
    })
    .await;
    // More than there is: it reads what there is.
    take_dropped(async |a| {
        let mut word = Vec::with_capacity(100);
        a.read_buf(&mut word).await.expect("read");
        word
    })
    .await;
}

async fn look_dropped(look: impl AsyncFn(&mut OwnedReadHalf)) {
    for &place in Place::all() {
        let (mut a, mut peer) = reader(place).await;
        let after = async |a: &mut OwnedReadHalf, peer: &mut Peer, _: Option<()>| {
            peer.end_round(a).await;
        };
        let write = async |peer: &mut Peer| {
            peer.write().await;
            false
        };
        let steps = at_every_await(&mut a, &mut peer, &look, write, after).await;
        assert!(steps > EVENT, "{place:?}: it did not wait");
    }
}

pub(crate) async fn a_look_takes_nothing() {
    look_dropped(async |a| a.readable().await.expect("input")).await;
    look_dropped(async |a| a.as_ref().readable().await.expect("input")).await;
    look_dropped(async |a| {
        assert!(a.ready(Interest::READABLE).await.expect("input").is_readable());
    })
    .await;
    look_dropped(async |a| assert_eq!(a.peek(&mut [0; 100]).await.expect("peek"), 8)).await;
    look_dropped(async |a| assert_eq!(a.as_ref().peek(&mut [0; 4]).await.expect("peek"), 4)).await;
}

/// The end that writes as much as the other one has room for.
struct Writer {
    half: OwnedWriteHalf,
    place: Place,
    /// Bytes that were written, and are in `rest`.
    made: usize,
    rest: Bytes,
}

impl Writer {
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

    /// Writes until there is no room, neither on the ring nor in the kernel.
    async fn fill(&mut self) {
        loop {
            let rest = self.rest().clone();
            match self.half.try_write(&rest) {
                Ok(n) => self.rest.advance(n),
                Err(e) => {
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    if self.place == Place::Pure || !self.half.as_ref().on_ring().0 {
                        return;
                    }
                    // It moves to TCP, for nobody reads.
                    self.half.writable().await.expect("room");
                }
            }
        }
    }
}

/// The end that reads, and how far it has got.
struct Reader {
    stream: Stream,
    n_read: usize,
}

impl Reader {
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

async fn write_dropped(write: impl AsyncFn(&mut Writer)) {
    for &place in Place::all() {
        let (a, stream) = place.pair().await;
        if place != Place::Pure {
            // Little room in the kernel: it is filled often.
            sockopt::set_socket_send_buffer_size(&a, 1 << 16).expect("option");
            sockopt::set_socket_recv_buffer_size(&stream, 1 << 16).expect("option");
        }
        let (reading, half) = a.into_split();
        let mut a = Writer { half, place, made: 0, rest: Bytes::new() };
        let mut b = Reader { stream, n_read: 0 };
        a.fill().await;
        let after = async |a: &mut Writer, _: &mut Reader, _: Option<()>| a.fill().await;
        let drain = async |b: &mut Reader| {
            b.drain().await;
            true
        };
        let steps = at_every_await(&mut a, &mut b, &write, drain, after).await;
        // The kernel may find room by itself.
        assert!(steps > EVENT || place != Place::Pure, "{place:?}: it did not wait");
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

pub(crate) async fn a_write_sends_what_it_answers_or_nothing() {
    write_dropped(async |a| {
        let rest = a.rest().clone();
        let some = &rest[..rest.len().min(10)];
        let n = a.half.write(some).await.expect("write");
        a.rest.advance(n);
    })
    .await;
    write_dropped(async |a| {
        let rest = a.rest().clone();
        let n = a.half.write(&rest).await.expect("write");
        a.rest.advance(n);
    })
    .await;
    write_dropped(async |a| {
        let rest = a.rest().clone();
        let (one, two) = rest.split_at(rest.len() / 2);
        let n = a.half.write_vectored(&[IoSlice::new(one), IoSlice::new(two)]).await;
        a.rest.advance(n.expect("write"));
    })
    .await;
    // It takes what it has sent from the buffer, however far it gets.
    write_dropped(async |a| {
        a.rest();
        a.half.as_ref().send(&mut a.rest).await.expect("send");
    })
    .await;
}

pub(crate) async fn a_wait_for_room_sends_nothing() {
    write_dropped(async |a| a.half.writable().await.expect("room")).await;
    write_dropped(async |a| a.half.as_ref().writable().await.expect("room")).await;
    write_dropped(async |a| {
        assert!(a.half.ready(Interest::WRITABLE).await.expect("room").is_writable());
    })
    .await;
}

pub(crate) async fn a_shutdown_ends_the_direction_or_does_not() {
    for &place in Place::all() {
        let mut ends = place.pair().await;
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
