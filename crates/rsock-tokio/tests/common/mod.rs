//! What the tests of streams share: connected pairs, runtimes of both kinds, children that are
//! killed, and a limit on hanging.

#![allow(dead_code, reason = "each test uses a part")]

use rsock_tokio::{Listener, Stream};
use std::env;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::pin;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;

/// `addr` with a port that no other program takes, even while the test does not use it.
pub(crate) fn at_own_port(addr: &str) -> SocketAddr {
    let mut addr: SocketAddr = addr.parse().expect("an address");
    addr.set_port(rsock_test_ports::reserved());
    addr
}

/// Ends the process unless dropped in time: a hang must fail, not block.
pub(crate) struct Watchdog {
    _alive: Sender<()>,
}

impl Watchdog {
    pub(crate) fn new() -> Self {
        let (alive, watched) = channel::<()>();
        std::thread::spawn(move || {
            let limit = Duration::from_secs(120);
            if watched.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
                eprintln!("hung");
                std::process::abort();
            }
        });
        Self { _alive: alive }
    }
}

/// Whether this process uses nothing but RDMA devices.
pub(crate) fn is_rdma() -> bool {
    env::var_os("RSOCK_DEVICE").is_some_and(|device| device == "rdma")
}

/// A child that is killed with its guard.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn current_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

pub(crate) fn multi_thread() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

/// Runs a test in a runtime of each kind.
pub(crate) fn in_both<F: Future<Output = ()>>(test: impl Fn() -> F) {
    let _watchdog = Watchdog::new();
    current_thread().block_on(test());
    multi_thread().block_on(test());
}

pub(crate) async fn connect() -> (Stream, Stream) {
    connect_with(rsock_tokio::Builder::new()).await
}

pub(crate) async fn connect_with(settings: rsock_tokio::Builder) -> (Stream, Stream) {
    let listener: Listener = settings.bind("127.0.0.1:0").await.expect("bind");
    let client = settings.connect(listener.local_addr().expect("address")).await.expect("connect");
    let (server, _) = listener.accept().await.expect("accept");
    (client, server)
}

/// Exchanges small messages until both directions bypass TCP.
pub(crate) async fn settle(a: &mut Stream, b: &mut Stream) {
    let mut byte = [0];
    for _ in 0..10_000 {
        if a.channels().are_accelerated() && b.channels().are_accelerated() {
            return;
        }
        a.write_all(&[7]).await.expect("write");
        b.read_exact(&mut byte).await.expect("read");
        b.write_all(&[7]).await.expect("write");
        a.read_exact(&mut byte).await.expect("read");
    }
    panic!("not accelerated: {:?} {:?}", a.fallback_reason(), b.fallback_reason());
}

pub(crate) async fn accelerated_pair() -> (Stream, Stream) {
    let (mut a, mut b) = connect().await;
    settle(&mut a, &mut b).await;
    (a, b)
}

/// Reproducible bytes: position `i` of a stream has one value.
pub(crate) fn pattern(at: usize, len: usize) -> Vec<u8> {
    (at..at + len).map(|i| (i.wrapping_mul(2_654_435_761) >> 13).to_le_bytes()[0]).collect()
}

/// Writes [`pattern`] in pieces of changing sizes.
pub(crate) async fn send(mut to: impl AsyncWriteExt + Unpin, total: usize) {
    let (mut at, mut size) = (0, 1);
    while at < total {
        size = (size * 7 + 13) % 90_000 + 1;
        let len = size.min(total - at);
        to.write_all(&pattern(at, len)).await.expect("write");
        at += len;
    }
}

/// Counts its wake-ups.
#[derive(Default)]
pub(crate) struct Count(pub(crate) AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Polls `future` `polls` times, then drops it; its output if it was ready.
pub(crate) async fn poll_times<F: Future>(future: F, polls: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..polls {
        let waker = Waker::from(Arc::new(Count::default()));
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(done);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// A task that runs `future`, which waits when this returns.
pub(crate) async fn waiting<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let mut task = tokio::spawn(future);
    for _ in 0..10 {
        assert!(poll_times(&mut task, 1).await.is_none(), "it waits");
    }
    task
}
