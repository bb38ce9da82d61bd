//! Many streams between two processes on an RDMA device: what each costs at rest, and what the
//! others cost a busy one. `cargo xtask test` runs this in the lab.
//!
//! `LAB_STREAMS` says how many, where the usual number does not do, and `LAB_RUNS` how often the
//! busy one is measured: from five times on it must be as fast among the others as alone, or
//! nearly.

use rsock::rsockets::{self, Listener, Stream};
use rsock_core::metrics;
use rsock_tests::{Running, Watchdog};
use rsock_verbs::rdma::Usage;
use std::env;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What each stream carries before it rests.
const CARRIED: usize = 1 << 20;
/// What the busy stream carries, each time.
const BUSY: usize = 16 << 20;
const BLOCK: usize = 64 << 10;
/// Most registered memory of a stream at rest, in bytes, and of what all share: that and the busy
/// one's is less than these 32 KiB would be for a thousand.
const MOST: u64 = 26 << 10;
const SHARED: u64 = 6 << 20;

/// With so many runs the busy stream is measured, and must be so fast among the others, beside
/// alone.
const MEASURED: usize = 5;
const AS_FAST: f64 = 0.9;

/// Most completion queues of a process, for a thousand streams too.
const MOST_CQS: usize = 10;

const PEER: &str = "RSOCK_TEST_PEER";

fn n_streams() -> usize {
    env::var("LAB_STREAMS").map_or(64, |n| n.parse().expect("a number"))
}

/// Bytes of which every block of every stream is a part: which one, says its place.
fn pattern() -> Vec<u8> {
    (0..BLOCK + SHIFTS).map(|i| (i ^ i >> 7 ^ i >> 14).to_le_bytes()[0]).collect()
}

const SHIFTS: usize = 1021;

fn n_runs() -> usize {
    env::var("LAB_RUNS").map_or(1, |n| n.parse().expect("a number"))
}

/// Where in the pattern the block at `start` of a stream is.
fn place(name: usize, start: usize) -> usize {
    (name * 31 + start / BLOCK * 7) % SHIFTS
}

fn send(mut stream: &Stream, name: usize, len: usize) {
    let pattern = pattern();
    for start in (0..len).step_by(BLOCK) {
        stream.write_all(&pattern[place(name, start)..][..BLOCK]).expect("write");
    }
    stream.read_exact(&mut [0]).expect("the peer has it all");
}

fn receive(mut stream: &Stream, name: usize, len: usize) {
    let pattern = pattern();
    let mut block = vec![0; BLOCK];
    for start in (0..len).step_by(BLOCK) {
        stream.read_exact(&mut block).expect("read");
        let expected = &pattern[place(name, start)..][..BLOCK];
        assert!(block == expected, "stream {name}, in the block at {start}");
    }
    stream.write_all(&[1]).expect("write");
}

/// One end's part for stream `name`: they carry bytes one way and the other by turns.
fn use_once(stream: &Stream, name: usize, is_client: bool) {
    if is_client == name.is_multiple_of(2) {
        send(stream, name, CARRIED);
    } else {
        receive(stream, name, CARRIED);
    }
}

/// A little, the other way.
fn use_again(stream: &Stream, name: usize, is_client: bool) {
    if is_client == name.is_multiple_of(2) {
        receive(stream, name, BLOCK);
    } else {
        send(stream, name, BLOCK);
    }
}

/// What the test runs as a process of its own.
fn connect_and_use(peer: SocketAddr) {
    let busy = rsockets::connect(peer).expect("connect");
    for _ in 0..=n_runs() {
        send(&busy, 0, BUSY);
    }
    let streams: Vec<Stream> = (0..n_streams())
        .map(|name| {
            let stream = rsockets::connect(peer).expect("connect");
            use_once(&stream, name, true);
            stream
        })
        .collect();
    // The server counts now, and says when it has.
    (&busy).read_exact(&mut [0]).expect("the count");
    for _ in 0..n_runs() {
        send(&busy, 0, BUSY);
    }
    for (name, stream) in streams.iter().enumerate() {
        use_again(stream, name, true);
    }
    (&busy).read_exact(&mut [0]).expect("the end");
}

/// Lines of the kernel's list of `what` that name a thread of process `pid`.
fn resources(what: &str, pid: u32) -> Vec<String> {
    let listing = Command::new("rdma").args(["resource", "show", what]).output();
    let listing = String::from_utf8(listing.expect("the list").stdout).expect("text");
    let is_of_process = |line: &&str| {
        word_after(line, "pid")
            .is_some_and(|tid| Path::new(&format!("/proc/{pid}/task/{tid}")).exists())
    };
    listing.lines().filter(is_of_process).map(str::to_owned).collect()
}

fn word_after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()
}

/// How long the busy stream takes.
fn receive_busy(stream: &Stream) -> Duration {
    let mut times: Vec<Duration> = (0..n_runs())
        .map(|_| {
            let start = Instant::now();
            receive(stream, 0, BUSY);
            start.elapsed()
        })
        .collect();
    times.sort();
    times[times.len() / 2]
}

/// What `process` needs for `n` streams at rest.
fn assert_little(process: &str, pid: u32, n: usize) {
    let regions = resources("mr", pid);
    let len = |line: &String| word_after(line, "mrlen")?.parse::<u64>().ok();
    let bytes: u64 = regions.iter().map(|line| len(line).expect("a length")).sum();
    let [n_qp, n_cq] = ["qp", "cq"].map(|what| resources(what, pid).len());
    println!(
        "{process}: {n} streams at rest: {} bytes of registered memory each, {n_cq} CQs",
        bytes / n as u64
    );
    assert!((1..=MOST_CQS).contains(&n_cq), "{process}: {n_cq} CQs");
    assert!(regions.len() > n, "{process}: only {} regions", regions.len());
    assert!(bytes <= n as u64 * MOST + SHARED, "{process}: {bytes} bytes registered");
    // What the process itself says of them.
    let shown = metrics::read_process(pid).expect("readable").expect("its counters").rdma;
    let [n_qps, n_cqs] = [n_qp, n_cq].map(|n| n as u64);
    assert_eq!(shown, Usage { n_qps, n_cqs, registered: bytes }, "{process}");
}

/// Runs itself as the other process.
#[test]
fn streams_at_rest_cost_little() {
    if let Ok(peer) = env::var(PEER) {
        return connect_and_use(peer.parse().expect("address"));
    }
    let _watchdog = Watchdog::new(Duration::from_secs(600));
    let listener = Listener::bind("10.9.0.1:0").expect("listen");
    let mut command = Command::new(env::current_exe().expect("this program"));
    command
        .args(["--exact", "streams_at_rest_cost_little", "--nocapture"])
        .env(PEER, listener.local_addr().expect("address").to_string())
        .env("RSOCK_DEVICE", "rdma")
        .stdin(Stdio::null());
    let client = Running::spawn(&mut command).expect("the other process");
    let (busy, _) = listener.accept().expect("accept");
    // Once to grow.
    receive(&busy, 0, BUSY);
    let alone = receive_busy(&busy);
    let n = n_streams();
    let streams: Vec<Stream> = (0..n)
        .map(|name| {
            let (stream, _) = listener.accept().expect("accept");
            use_once(&stream, name, false);
            stream
        })
        .collect();
    assert_little("here", std::process::id(), n);
    assert_little("the other process", client.id(), n);
    (&busy).write_all(&[1]).expect("write");
    let among_others = receive_busy(&busy);
    let ratio = alone.as_secs_f64() / among_others.as_secs_f64();
    println!(
        "the busy stream: {alone:?} alone, {among_others:?} among the others: {ratio:.2} times as \
         fast"
    );
    // A figure of one run says nothing: only a measurement is held to it.
    assert!(
        n_runs() < MEASURED || ratio >= AS_FAST,
        "{n} streams at rest cost the busy one too much"
    );
    // Rested streams work as before.
    for (name, stream) in streams.iter().enumerate() {
        use_again(stream, name, false);
    }
    (&busy).write_all(&[1]).expect("write");
    assert!(client.wait().expect("its end").success(), "the other process failed");
}
