//! Many streams between two processes on an RDMA device: what each costs at rest, and what the others
//! cost a busy one. `cargo xtask test` runs this in the lab.
//!
//! `LAB_STREAMS` says how many, where the usual number does not do.

use rsock_core::socket::rsockets::{self, Listener, Stream};
use rsock_tests::{Running, Watchdog};
use std::env;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What each stream carries before it rests.
const CARRIED: usize = 1 << 20;
/// What the busy stream carries, each time.
const BUSY: usize = 16 << 20;
const BLOCK: usize = 64 << 10;
/// Most registered memory of a stream at rest, in bytes, and of what all share: that and the busy one's
/// is less than these 32 KiB would be for a thousand.
const MOST: u64 = 26 << 10;
const SHARED: u64 = 6 << 20;

const PEER: &str = "RSOCK_TEST_PEER";

fn n_streams() -> usize {
    env::var("LAB_STREAMS").map_or(64, |n| n.parse().expect("a number"))
}

/// Bytes of which every block of every stream is a part: which one, says its place.
fn pattern() -> Vec<u8> {
    (0..BLOCK + SHIFTS).map(|i| (i ^ i >> 7 ^ i >> 14).to_le_bytes()[0]).collect()
}

const SHIFTS: usize = 1021;

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

/// What the test below runs as a process of its own.
#[test]
fn the_other_process() {
    let Ok(peer) = env::var(PEER) else { return };
    let peer: SocketAddr = peer.parse().expect("address");
    let busy = rsockets::connect(peer).expect("connect");
    send(&busy, 0, BUSY);
    send(&busy, 0, BUSY);
    let streams: Vec<Stream> = (0..n_streams())
        .map(|name| {
            let stream = rsockets::connect(peer).expect("connect");
            use_once(&stream, name, true);
            stream
        })
        .collect();
    // The server counts now, and says when it has.
    (&busy).read_exact(&mut [0]).expect("the count");
    send(&busy, 0, BUSY);
    for (name, stream) in streams.iter().enumerate() {
        use_again(stream, name, true);
    }
    (&busy).read_exact(&mut [0]).expect("the end");
}

/// Lines of the kernel's list of `what` that the thread of test `name` made.
fn resources(what: &str, name: &str) -> Vec<String> {
    let listing = Command::new("rdma").args(["resource", "show", what]).output();
    let listing = String::from_utf8(listing.expect("the list").stdout).expect("text");
    let lines = listing.lines().filter(|line| word_after(line, "comm") == Some(&name[..15]));
    lines.map(str::to_owned).collect()
}

fn word_after<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let mut words = line.split_whitespace();
    words.find(|word| *word == key)?;
    words.next()
}

fn receive_busy(stream: &Stream) -> Duration {
    let start = Instant::now();
    receive(stream, 0, BUSY);
    start.elapsed()
}

#[test]
fn streams_at_rest_cost_little() {
    let _watchdog = Watchdog::new(Duration::from_secs(600));
    let listener = Listener::bind("10.9.0.1:0".parse().expect("address")).expect("listen");
    let mut command = Command::new(env::current_exe().expect("this program"));
    command
        .args(["--exact", "the_other_process", "--nocapture"])
        .env(PEER, listener.local_addr().expect("address").to_string())
        .env("RSOCK_DEVICE", "rdma")
        .stdin(Stdio::null());
    let client = Running::spawn(&mut command).expect("the other process");
    let (busy, _) = listener.accept().expect("accept");
    // Once to grow, once to measure.
    receive_busy(&busy);
    let alone = receive_busy(&busy);
    let n = n_streams();
    let streams: Vec<Stream> = (0..n)
        .map(|name| {
            let (stream, _) = listener.accept().expect("accept");
            use_once(&stream, name, false);
            stream
        })
        .collect();

    for name in ["streams_at_rest_cost_little", "the_other_process"] {
        let regions = resources("mr", name);
        let len = |line: &String| word_after(line, "mrlen")?.parse::<u64>().ok();
        let bytes: u64 = regions.iter().map(|line| len(line).expect("a length")).sum();
        let [n_cq, n_srq] = ["cq", "srq"].map(|what| resources(what, name).len());
        println!(
            "{name}: {n} streams at rest: {} bytes of registered memory each, {n_cq} CQs, {n_srq} SRQs",
            bytes / n as u64
        );
        assert!(regions.len() > n, "{name}: only {} regions", regions.len());
        assert!(bytes <= n as u64 * MOST + SHARED, "{name}: {bytes} bytes registered");
    }

    (&busy).write_all(&[1]).expect("write");
    let among_others = receive_busy(&busy);
    println!("the busy stream: {alone:?} alone, {among_others:?} among the others");
    // Rested streams work as before.
    for (name, stream) in streams.iter().enumerate() {
        use_again(stream, name, false);
    }
    (&busy).write_all(&[1]).expect("write");
    assert!(client.wait().expect("its end").success(), "the other process failed");
}
