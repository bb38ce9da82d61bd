//! The peer's process dies while futures are pending: each ends as on kernel TCP, on which the
//! first tests run, too.

use crate::common::{Killed, Watchdog, current_thread, multi_thread, poll_times, waiting};
use bytes::Bytes;
use rsock_tokio::{Listener, Stream};
use std::env;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream};

/// In the environment of the other process: where to connect.
const PEER: &str = "RSOCK_TEST_PEER";
/// The test that the other process runs. Any test here would do: each begins with [`start`].
const ENTRY: &str = "accelerated::faults::a_pending_read_ends_with_its_peer";

/// Begins a test; in the other process, is all that it does.
fn start() -> Watchdog {
    if let Ok(addr) = env::var(PEER) {
        answer(&addr);
    }
    Watchdog::new()
}

/// What the other process does: it echoes bytes up to a zero, then reads nothing for ever.
fn answer(addr: &str) -> ! {
    current_thread().block_on(async {
        let mut stream = Stream::connect(addr).await.expect("connect");
        let mut byte = [1];
        while byte != [0] {
            stream.read_exact(&mut byte).await.expect("read");
            stream.write_all(&byte).await.expect("write");
        }
        std::future::pending().await
    })
}

/// The other process, which connects to `addr`.
fn child(addr: io::Result<SocketAddr>) -> Killed {
    let child = Command::new(env::current_exe().expect("a test has an executable"))
        .args([ENTRY, "--exact"])
        .env(PEER, addr.expect("address").to_string())
        .stdout(Stdio::null())
        .spawn();
    Killed(child.expect("a child"))
}

/// Exchanges `byte`, which is 0 the last time.
async fn talk(stream: &mut (impl AsyncRead + AsyncWrite + Unpin), byte: u8) {
    stream.write_all(&[byte]).await.expect("write");
    assert_eq!(stream.read_u8().await.expect("read"), byte);
}

/// An accelerated stream to another process, which has read everything and reads no more.
async fn with_peer() -> (Stream, Killed) {
    let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
    let child = child(listener.local_addr());
    let (mut stream, _) = listener.accept().await.expect("accept");
    for _ in 0..10_000 {
        if stream.channels().are_accelerated() {
            talk(&mut stream, 0).await;
            return (stream, child);
        }
        talk(&mut stream, 7).await;
    }
    panic!("not accelerated: {:?}", stream.fallback_reason());
}

/// The same by the kernel's socket.
async fn with_peer_on_tcp() -> (TcpStream, Killed) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
    let child = child(listener.local_addr());
    let (mut stream, _) = listener.accept().await.expect("accept");
    talk(&mut stream, 0).await;
    (stream, child)
}

/// The results of `calls`, the first of which waits when `child` is killed.
async fn until_killed<T: Send + 'static>(
    child: Killed,
    calls: impl Future<Output = T> + Send + 'static,
) -> T {
    let calls = waiting(calls).await;
    drop(child);
    calls.await.expect("task")
}

/// As the tests compare them.
fn kinds<const N: usize>(ends: [io::Result<usize>; N]) -> [Result<usize, ErrorKind>; N] {
    ends.map(|end| end.map_err(|e| e.kind()))
}

/// The result of a read that waits for `child`.
async fn read_ends<S>((mut stream, child): (S, Killed)) -> [Result<usize, ErrorKind>; 1]
where
    S: AsyncRead + Unpin + Send + 'static,
{
    until_killed(child, async move { kinds([stream.read(&mut [0]).await]) }).await
}

/// The results of a write that waits for `child`, and of the calls after it.
async fn write_ends<S>((mut stream, child): (S, Killed)) -> [Result<usize, ErrorKind>; 3]
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Until there is no room.
    while poll_times(stream.write(&[1; 1 << 16]), 1).await.is_some() {}
    until_killed(child, async move {
        let end = stream.write_all(&vec![1; 64 << 20]).await.map(|()| 0);
        kinds([end, stream.write(&[1]).await, stream.read(&mut [0]).await])
    })
    .await
}

#[test]
fn a_pending_read_ends_with_its_peer() {
    let _watchdog = start();
    for runtime in [current_thread(), multi_thread()] {
        runtime.block_on(async {
            // Nothing was left unread.
            assert_eq!(read_ends(with_peer_on_tcp().await).await, [Ok(0)]);
            assert_eq!(read_ends(with_peer().await).await, [Ok(0)]);
        });
    }
}

#[test]
fn a_pending_write_ends_with_its_peer() {
    let _watchdog = start();
    for runtime in [current_thread(), multi_thread()] {
        runtime.block_on(async {
            // Much was left unread.
            let right = [Err(ErrorKind::ConnectionReset), Err(ErrorKind::BrokenPipe), Ok(0)];
            assert_eq!(write_ends(with_peer_on_tcp().await).await, right);
            assert_eq!(write_ends(with_peer().await).await, right);
        });
    }
}

/// The results of a read that waits for `child`, which has not read what was sent before, and of
/// the calls after it.
async fn answer_fails<S>(
    (mut stream, child): (S, Killed),
    half_close: bool,
) -> [Result<usize, ErrorKind>; 3]
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    stream.write_all(&[1; 1000]).await.expect("room");
    if half_close {
        stream.shutdown().await.expect("shutdown");
    }
    until_killed(child, async move {
        let (first, second) = (stream.read(&mut [0]).await, stream.read(&mut [0]).await);
        kinds([first, second, stream.write(&[1]).await])
    })
    .await
}

#[test]
fn a_request_that_was_not_read_fails_with_its_peer() {
    let _watchdog = start();
    for half_close in [false, true] {
        for runtime in [current_thread(), multi_thread()] {
            runtime.block_on(async {
                let right = [Err(ErrorKind::ConnectionReset), Ok(0), Err(ErrorKind::BrokenPipe)];
                let on_tcp = answer_fails(with_peer_on_tcp().await, half_close).await;
                assert_eq!(on_tcp, right, "half-close: {half_close}");
                let accelerated_pair = answer_fails(with_peer().await, half_close).await;
                assert_eq!(accelerated_pair, right, "half-close: {half_close}");
            });
        }
    }
}

/// Writes what there is room for without waiting.
fn fill(stream: &Stream) {
    while stream.try_write(&[1; 1 << 16]).is_ok() {}
}

/// Runs a future of the stream in a task.
macro_rules! spawn {
    ($stream:ident => $future:expr) => {{
        let $stream = Arc::clone(&$stream);
        tokio::spawn(async move { $future })
    }};
}

#[test]
fn waits_for_input_end_with_the_peer() {
    let _watchdog = start();
    for runtime in [current_thread(), multi_thread()] {
        runtime.block_on(async {
            let (stream, child) = with_peer().await;
            let stream = Arc::new(stream);
            let looking = spawn!(stream => stream.peek(&mut [0]).await);
            let readable = spawn!(stream => stream.readable().await);
            let ready = spawn!(stream => stream.ready(Interest::READABLE).await);
            let receiving = spawn!(stream => stream.recv(100).await);
            tokio::task::yield_now().await;
            drop(child);
            // As on TCP, for nothing was left unread: the end of the stream, which is no error.
            assert_eq!(looking.await.expect("task").expect("the end"), 0);
            readable.await.expect("task").expect("the end is input");
            assert!(ready.await.expect("task").expect("the end").is_readable());
            assert!(receiving.await.expect("task").expect("the end").is_empty());
        });
    }
}

#[test]
fn waits_for_room_end_with_the_peer() {
    let _watchdog = start();
    for runtime in [current_thread(), multi_thread()] {
        runtime.block_on(async {
            let (stream, child) = with_peer().await;
            let stream = Arc::new(stream);
            let sending = spawn!(stream => loop {
                let sent = stream.send(&mut Bytes::from(vec![1; 1 << 20])).await;
                if let Err(e) = sent {
                    break e;
                }
            });
            let writable = spawn!(stream => loop {
                let sent = match stream.writable().await {
                    Ok(()) => stream.try_write(&[1; 1 << 16]),
                    Err(e) => break e,
                };
                match sent {
                    Err(e) if e.kind() != ErrorKind::WouldBlock => break e,
                    _ => tokio::task::yield_now().await,
                }
            });
            fill(&stream);
            tokio::task::yield_now().await;
            drop(child);
            let ends = [sending.await.expect("task"), writable.await.expect("task")];
            // As on TCP, the first call reports the reset.
            let ends = ends.map(|end| end.kind());
            let (first, second) = (ErrorKind::ConnectionReset, ErrorKind::BrokenPipe);
            assert!(ends == [first, second] || ends == [second, first], "{ends:?}");
        });
    }
}
