//! Runs every example as its own text says.

use rsock_tests::{Running, Watchdog};
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// A built example: cargo builds them before this test, beside its directory.
fn example(name: &str) -> Command {
    let me = env::current_exe().expect("a test has an executable");
    let dir: PathBuf = me.ancestors().nth(2).expect("it lies in PROFILE/deps").join("examples");
    Command::new(dir.join(name))
}

/// Starts an example that listens, and returns it with its address and the rest of its output.
fn start(command: &mut Command) -> (Running, String, impl BufRead + use<>) {
    let mut running = Running::spawn(command.stdout(Stdio::piped())).expect("it starts");
    let mut output = BufReader::new(running.stdout.take().expect("a pipe"));
    let mut line = String::new();
    output.read_line(&mut line).expect("it says where it listens");
    let addr = line.trim().strip_prefix("listening on ").expect("an address").to_owned();
    (running, addr, output)
}

#[test]
fn the_echo_pair_returns_every_byte() {
    let _watchdog = Watchdog::new(LIMIT);
    let (_server, addr, mut output) = start(example("echo_server").arg("127.0.0.1:0"));
    // More than any buffer holds, and no two parts alike.
    let sent: Vec<u8> =
        (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let mut client = Running::spawn(
        example("echo_client").arg(addr).stdin(Stdio::piped()).stdout(Stdio::piped()),
    )
    .unwrap();
    let mut input = client.stdin.take().unwrap();
    let to_send = sent.clone();
    let writing = std::thread::spawn(move || input.write_all(&to_send));
    let result = client.output().unwrap();
    writing.join().unwrap().unwrap();
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    assert!(result.stdout == sent, "{} bytes of {}", result.stdout.len(), sent.len());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert!(line.ends_with(&format!(": {} bytes\n", sent.len())), "{line}");
}

#[test]
fn a_put_is_seen_by_the_peer() {
    let _watchdog = Watchdog::new(LIMIT);
    let (shower, addr, mut output) = start(example("iomap_put").args(["show", "127.0.0.1:0"]));
    let putter = Running::spawn(example("iomap_put").args(["put", &addr, "left in your memory"]));
    assert!(putter.unwrap().wait().unwrap().success());
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert!(said.ends_with(" put: left in your memory\n"), "{said}");
    assert!(shower.wait().unwrap().success());
}

#[test]
fn wrong_arguments_are_an_error() {
    let out = example("iomap_put").arg("nonsense").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("usage: iomap_put"));
}

/// Runs `name` with `mode` in one process, and as a server and a client; what the client says both
/// times.
fn both_ways_with(name: &str, mode: &[&str]) -> [String; 2] {
    let alone = example(name).args(mode).output().expect("it runs");
    assert!(alone.status.success(), "{}", String::from_utf8_lossy(&alone.stderr));
    let alone = String::from_utf8(alone.stdout).expect("text");
    let (first, alone) = alone.split_once('\n').expect("lines");
    assert!(first.starts_with("listening on "), "{first}");

    let (_server, addr, _output) = start(example(name).args(mode).args(["serve", "127.0.0.1:0"]));
    let asked = example(name).args(mode).args(["ask", &addr]).output().expect("it runs");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    [alone.to_owned(), String::from_utf8(asked.stdout).expect("text")]
}

fn both_ways(name: &str) -> [String; 2] {
    both_ways_with(name, &[])
}

/// As [`both_ways`], in both modes.
fn all_ways(name: &str) -> Vec<String> {
    [both_ways(name), both_ways_with(name, &["--rsockets"])].concat()
}

#[test]
fn the_asynchronous_echo_leaves_tcp() {
    let _watchdog = Watchdog::new(LIMIT);
    for said in all_ways("tokio_echo") {
        assert_eq!(said, "10000 echoes; past TCP at the end: true\n");
    }
}

#[test]
fn frames_arrive_whole() {
    let _watchdog = Watchdog::new(LIMIT);
    for said in both_ways("tokio_codec") {
        assert_eq!(said, "stressed desserts\ndrawer reward\nrsock kcosr\n");
    }
}

#[test]
fn axum_and_tonic_services_answer() {
    let _watchdog = Watchdog::new(LIMIT);
    for said in all_ways("tokio_axum") {
        assert_eq!(said, "hello, axum\nhello, hyper\nhello, rsock\n");
    }
    for said in both_ways("tokio_grpc") {
        assert_eq!(said, "hello, tonic\nhello, prost\nhello, rsock\n");
    }
}

#[test]
fn calls_are_answered_and_counted() {
    let _watchdog = Watchdog::new(LIMIT);
    for said in all_ways("tokio_rpc") {
        let rate = said.strip_prefix("32 clients: ").and_then(|s| s.split_once(' ')).unwrap().0;
        assert!(rate.parse::<u64>().unwrap() > 0, "{said}");
    }
}

#[test]
fn what_is_put_in_tokio_is_seen_by_the_peer() {
    let _watchdog = Watchdog::new(LIMIT);
    for said in both_ways("tokio_iomap") {
        assert_eq!(said, "put\nnot\nsent\n");
    }
}

#[test]
fn a_copied_file_is_the_same() {
    let _watchdog = Watchdog::new(LIMIT);
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (dir.join("original"), dir.join("copy"));
    let bytes: Vec<u8> =
        (0..2_500_000u32).flat_map(|n| n.wrapping_mul(40_503).to_le_bytes()).collect();
    std::fs::write(&from, &bytes).unwrap();
    let receiving = ["receive", "127.0.0.1:0", to.to_str().unwrap()];
    let (receiver, addr, _output) = start(example("tokio_copy").args(receiving));
    let sent =
        example("tokio_copy").args(["send", &addr, from.to_str().unwrap()]).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(receiver.wait().unwrap().success());
    assert!(std::fs::read(&to).unwrap() == bytes);
}
