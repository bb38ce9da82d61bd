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
