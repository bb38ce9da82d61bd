//! Measurements of asynchronous streams, each generic over [`Net`]: a server and its clients, run
//! for a while, counted.
//!
//! Every case warms up first, long enough for a stream to find its faster path, and then counts
//! what is done in the time given.

use crate::meter::Meter;
use crate::net::Net;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;

/// Round trips that are not counted.
const WARM_UP: usize = 2_000;

/// Raises the limit of descriptors, of which a thousand streams need some thousands, as far as it
/// goes.
pub fn raise_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // Refused: then many streams stay on TCP, or cannot be made.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// A runtime of one thread, the caller's.
///
/// # Errors
/// When descriptors run out.
pub fn current_thread() -> io::Result<Runtime> {
    Builder::new_current_thread().enable_all().build()
}

/// A server in a thread and runtime of its own; ends when its `Running` does.
#[derive(Debug)]
pub struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Runs `serve` on each connection in a runtime with one thread.
///
/// # Errors
/// What the system answers.
///
/// # Panics
/// If the runtime cannot be made.
pub fn server<N: Net, F, S>(serve: S) -> io::Result<(Running, SocketAddr)>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
    S: Fn(N::Stream) -> F + Send + 'static,
{
    server_on::<N, _, _>(current_thread, serve)
}

/// As [`server`], in a runtime that `runtime` makes.
///
/// # Errors
/// What the system answers.
///
/// # Panics
/// If the runtime cannot be made.
fn server_on<N: Net, F, S>(
    runtime: fn() -> io::Result<Runtime>,
    serve: S,
) -> io::Result<(Running, SocketAddr)>
where
    F: Future<Output = io::Result<()>> + Send + 'static,
    S: Fn(N::Stream) -> F + Send + 'static,
{
    let (tell, told) = std::sync::mpsc::channel();
    let (stop, mut stopped) = oneshot::channel::<()>();
    let thread = thread::spawn(move || {
        runtime().expect("a runtime").block_on(async move {
            let (listener, addr) = N::bind().await.expect("bind");
            let _ = tell.send(addr);
            loop {
                tokio::select! {
                    accepted = N::accept(&listener) => {
                        if let Ok(stream) = accepted {
                            tokio::spawn(serve(stream));
                        }
                    }
                    _ = &mut stopped => return,
                }
            }
        });
    });
    let addr = told.recv().map_err(|_| io::Error::other("the server did not start"))?;
    Ok((Running { stop: Some(stop), thread: Some(thread) }, addr))
}

async fn echo<N: Net>(mut stream: N::Stream, size: usize) -> io::Result<()> {
    let mut message = vec![0; size];
    loop {
        stream.read_exact(&mut message).await?;
        stream.write_all(&message).await?;
    }
}

/// Round trips of `size` bytes per second, one connection, each end in a runtime of its own.
///
/// # Errors
/// What the system answers.
pub fn round_trips<N: Net>(size: usize, time: Duration) -> io::Result<f64> {
    let (_server, addr) = server::<N, _, _>(move |stream| echo::<N>(stream, size))?;
    current_thread()?.block_on(async {
        let mut stream = N::connect(addr).await?;
        let mut message = vec![1; size];
        for _ in 0..WARM_UP {
            stream.write_all(&message).await?;
            stream.read_exact(&mut message).await?;
        }
        let began = Instant::now();
        let mut n = 0u32;
        while began.elapsed() < time {
            for _ in 0..16 {
                stream.write_all(&message).await?;
                stream.read_exact(&mut message).await?;
            }
            n += 16;
        }
        Ok(f64::from(n) / began.elapsed().as_secs_f64())
    })
}

/// Reads, and answers a byte after every `turn` bytes, until the peer ends.
///
/// # Errors
/// What the stream answers.
pub async fn swallow<N: Net>(mut stream: N::Stream, turn: usize) -> io::Result<()> {
    let mut buf = vec![0; 256 << 10];
    loop {
        let mut left = turn;
        while left != 0 {
            let most = buf.len().min(left);
            match stream.read(&mut buf[..most]).await? {
                0 => return Ok(()),
                n => left -= n,
            }
        }
        stream.write_all(&[1]).await?;
    }
}

/// Bytes per second in writes of `size` bytes, one connection.
///
/// # Errors
/// What the system answers.
pub fn throughput<N: Net>(size: usize, time: Duration) -> io::Result<f64> {
    let (_server, addr) = server::<N, _, _>(|stream| swallow::<N>(stream, TURN))?;
    current_thread()?.block_on(write_turns::<N>(addr, size, time))
}

/// As [`throughput`], in tasks of Tokio's default runtime.
///
/// # Errors
/// What the system answers.
pub fn throughput_of_tasks<N: Net>(size: usize, time: Duration) -> io::Result<f64> {
    let serve = |stream| swallow::<N>(stream, TURN);
    let (_server, addr) = server_on::<N, _, _>(Runtime::new, serve)?;
    Runtime::new()?.block_on(async {
        tokio::spawn(write_turns::<N>(addr, size, time)).await.map_err(io::Error::other)?
    })
}

/// Bytes after which the reader of [`throughput`] answers.
const TURN: usize = 8 << 20;

/// Bytes per second that a connection to `addr` takes in writes of `size` bytes.
async fn write_turns<N: Net>(addr: SocketAddr, size: usize, time: Duration) -> io::Result<f64> {
    let mut stream = N::connect(addr).await?;
    let block = vec![1; size];
    // Two that are not counted.
    write_turn::<N>(&mut stream, &block).await?;
    write_turn::<N>(&mut stream, &block).await?;
    let began = Instant::now();
    let mut n = 0u32;
    while began.elapsed() < time {
        write_turn::<N>(&mut stream, &block).await?;
        n += 1;
    }
    Ok(f64::from(n) * TURN as f64 / began.elapsed().as_secs_f64())
}

/// Writes as many of `block` as the reader answers.
async fn write_turn<N: Net>(stream: &mut N::Stream, block: &[u8]) -> io::Result<()> {
    for _ in 0..TURN / block.len() {
        stream.write_all(block).await?;
    }
    stream.read_exact(&mut [0]).await.map(drop)
}

/// Requests per second of 64 bytes and answers of as many: one server thread, one thread with
/// `clients` connections, each with one request under way.
///
/// # Errors
/// What the system answers.
pub fn rpc<N: Net>(clients: usize, time: Duration) -> io::Result<f64> {
    active_among::<N>(clients, 0, time)
}

/// As [`rpc`], in tasks of Tokio's default runtime: one for the server, one for the clients.
///
/// # Errors
/// What the system answers.
pub fn rpc_of_tasks<N: Net>(clients: usize, time: Duration) -> io::Result<f64> {
    let serve = |stream| echo::<N>(stream, 64);
    let (_server, addr) = server_on::<N, _, _>(Runtime::new, serve)?;
    Runtime::new()?.block_on(rate_of_clients::<N>(addr, clients, time))
}

/// Requests per second of `clients`, a task each.
async fn rate_of_clients<N: Net>(
    addr: SocketAddr,
    clients: usize,
    time: Duration,
) -> io::Result<f64> {
    let meter = Arc::new(Meter::default());
    let mut tasks = Vec::new();
    for _ in 0..clients {
        let stream = N::connect(addr).await?;
        tasks.push(tokio::spawn(ask_until_over::<N>(stream, Arc::clone(&meter))));
    }
    meter.rate(tasks, time).await
}

/// Requests of 64 bytes, one after the other, until `meter` tells to stop.
async fn ask_until_over<N: Net>(mut stream: N::Stream, meter: Arc<Meter>) -> io::Result<()> {
    let mut message = [1; 64];
    while meter.goes_on() {
        stream.write_all(&message).await?;
        stream.read_exact(&mut message).await?;
        meter.count();
    }
    Ok(())
}

/// As [`rpc`], with `idle` more connections open.
///
/// # Errors
/// What the system answers.
pub fn active_among<N: Net>(active: usize, idle: usize, time: Duration) -> io::Result<f64> {
    let (_server, addr) = server::<N, _, _>(|stream| echo::<N>(stream, 64))?;
    current_thread()?.block_on(async {
        let mut quiet = Vec::new();
        for _ in 0..idle {
            let mut stream = N::connect(addr).await?;
            // Enough for it to have found its path before it rests.
            for _ in 0..64 {
                stream.write_all(&[0; 64]).await?;
                stream.read_exact(&mut [0; 64]).await?;
            }
            quiet.push(stream);
        }
        let rate = rate_of_clients::<N>(addr, active, time).await;
        drop(quiet);
        rate
    })
}
