//! The other process dies while futures are pending.

mod common;

use bytes::Bytes;
use common::{Killed, Watchdog};
use rsock_tokio::{Listener, Stream};
use std::env;
use std::io::ErrorKind;
use std::process::{Command, Stdio};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};

/// In the environment of the other process: where to connect.
const PEER: &str = "RSOCK_TEST_PEER";
/// What the other process is told to run. Any test here would do: each begins with [`start`].
const ENTRY: &str = "a_pending_read_ends_with_its_peer";

/// Begins a test; in the other process, is all that it does.
fn start() -> Watchdog {
    if let Ok(addr) = env::var(PEER) {
        answer(&addr);
    }
    Watchdog::new()
}

/// What the other process does: answers until it is asked to stop, then reads nothing for ever.
fn answer(addr: &str) -> ! {
    common::current_thread().block_on(async {
        let mut stream = Stream::connect(addr).await.expect("connect");
        let mut byte = [0];
        while stream.read_exact(&mut byte).await.is_ok() && byte != [0] {
            stream.write_all(&byte).await.expect("write");
        }
        std::future::pending().await
    })
}

/// A stream on the ring to another process, which now reads no more.
async fn with_peer() -> (Stream, Killed) {
    let listener = Listener::bind("127.0.0.1:0").await.expect("bind");
    let child = Command::new(env::current_exe().expect("a test has an executable"))
        .args([ENTRY, "--exact"])
        .env(PEER, listener.local_addr().expect("address").to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("a child");
    let child = Killed(child);
    let (mut stream, _) = listener.accept().await.expect("accept");
    let mut byte = [7];
    for _ in 0..10_000 {
        if stream.on_ring() == (true, true) {
            stream.write_all(&[0]).await.expect("write");
            return (stream, child);
        }
        stream.write_all(&byte).await.expect("write");
        stream.read_exact(&mut byte).await.expect("read");
    }
    panic!("not on the ring: {:?}", stream.pin_reason());
}

#[test]
fn a_pending_read_ends_with_its_peer() {
    let _watchdog = start();
    for runtime in [common::current_thread(), common::multi_thread()] {
        runtime.block_on(async {
            let (mut stream, child) = with_peer().await;
            let read = tokio::spawn(async move { stream.read(&mut [0]).await });
            tokio::task::yield_now().await;
            drop(child);
            match read.await.expect("task") {
                Ok(n) => assert_eq!(n, 0),
                Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
            }
        });
    }
}

#[test]
fn a_pending_write_ends_with_its_peer() {
    let _watchdog = start();
    for runtime in [common::current_thread(), common::multi_thread()] {
        runtime.block_on(async {
            let (mut stream, child) = with_peer().await;
            let write = tokio::spawn(async move {
                let block = vec![1; 1 << 20];
                loop {
                    if let Err(e) = stream.write_all(&block).await {
                        return e.kind();
                    }
                }
            });
            tokio::task::yield_now().await;
            drop(child);
            let kind = write.await.expect("task");
            assert!(matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{kind:?}");
        });
    }
}

/// Runs a future of the stream in a task.
macro_rules! spawn {
    ($stream:ident => $future:expr) => {{
        let $stream = Arc::clone(&$stream);
        tokio::spawn(async move { $future })
    }};
}

#[test]
fn whatever_waits_for_input_ends_with_its_peer() {
    let _watchdog = start();
    for runtime in [common::current_thread(), common::multi_thread()] {
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
fn whatever_waits_for_room_ends_with_its_peer() {
    let _watchdog = start();
    for runtime in [common::current_thread(), common::multi_thread()] {
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
            tokio::task::yield_now().await;
            drop(child);
            for end in [sending.await.expect("task"), writable.await.expect("task")] {
                let kind = end.kind();
                let is_end = matches!(kind, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe);
                assert!(is_end, "{kind:?}");
            }
        });
    }
}
