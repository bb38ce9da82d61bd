//! Runs every example by the command in its documentation.

use rsock_tests::{Running, Watchdog};
use std::collections::BTreeSet;
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

/// Runs a client with `input`; what it says.
fn fed(command: &mut Command, input: &[u8]) -> Vec<u8> {
    let client = Running::spawn(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut client = client.expect("it starts");
    let mut to = client.stdin.take().expect("a pipe");
    let input = input.to_owned();
    let writing = std::thread::spawn(move || to.write_all(&input));
    let result = client.output().expect("it ends");
    writing.join().expect("no panic").expect("it reads all");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    result.stdout
}

#[test]
fn the_echo_returns_every_byte() {
    let _watchdog = Watchdog::new(LIMIT);
    // More than any buffer holds, and no two parts alike.
    let sent: Vec<u8> =
        (0..3_000_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
    let alone = fed(&mut example("echo"), &sent);
    let end_of_line = alone.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let (first, alone) = alone.split_at(end_of_line);
    assert!(first.starts_with(b"listening on "), "{}", String::from_utf8_lossy(first));
    let (_server, addr, _output) = start(example("echo").args(["serve", "127.0.0.1:0"]));
    let asked = fed(example("echo").args(["ask", &addr]), &sent);
    for said in [alone, &asked] {
        assert!(said == sent, "{} bytes of {}", said.len(), sent.len());
    }
}

#[test]
fn a_put_is_seen_by_the_peer() {
    const SEEN: &str = "the peer put: left in your memory\n";
    let _watchdog = Watchdog::new(LIMIT);
    assert_eq!(alone("iomap_put", &[]), SEEN);
    let (shower, addr, mut output) = start(example("iomap_put").args(["serve", "127.0.0.1:0"]));
    let putter = Running::spawn(example("iomap_put").args(["ask", &addr]));
    assert!(putter.unwrap().wait().unwrap().success());
    let mut said = String::new();
    output.read_to_string(&mut said).unwrap();
    assert_eq!(said, SEEN);
    assert!(shower.wait().unwrap().success());
}

#[test]
fn no_example_is_missing_here() {
    let me = include_str!("run.rs");
    for file in std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|ext| ext == "rs") {
            let name = path.file_stem().unwrap().to_str().unwrap();
            assert!(me.contains(&format!("(\"{name}\"")), "{name} is not run");
        }
    }
}

#[test]
fn wrong_arguments_are_an_error() {
    let out = example("iomap_put").arg("nonsense").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("usage: iomap_put"));
    let out = example("tokio_copy").output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("usage: tokio_copy"));
}

/// Runs both ends of `name` in one process; what it says after where it listens.
fn alone(name: &str, args: &[&str]) -> String {
    let out = example(name).args(args).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let said = String::from_utf8(out.stdout).expect("text");
    let (first, said) = said.split_once('\n').expect("lines");
    assert!(first.starts_with("listening on "), "{first}");
    said.to_owned()
}

/// Runs `name` with `mode` in one process, and as a server and a client; what the client says both
/// times.
fn both_ways_with(name: &str, mode: &[&str]) -> [String; 2] {
    let alone = alone(name, mode);
    let (_server, addr, _output) = start(example(name).args(mode).args(["serve", "127.0.0.1:0"]));
    let asked = example(name).args(mode).args(["ask", &addr]).output().expect("it runs");
    assert!(asked.status.success(), "{}", String::from_utf8_lossy(&asked.stderr));
    [alone, String::from_utf8(asked.stdout).expect("text")]
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
    let said = alone("tokio_copy", &["both", from.to_str().unwrap(), to.to_str().unwrap()]);
    assert_eq!(
        said.lines().collect::<BTreeSet<_>>(),
        ["10000000 bytes received", "10000000 bytes sent"].into()
    );
    assert!(std::fs::read(&to).unwrap() == bytes);
    std::fs::remove_file(&to).unwrap();

    let receiving = ["receive", "127.0.0.1:0", to.to_str().unwrap()];
    let (receiver, addr, _output) = start(example("tokio_copy").args(receiving));
    let sent =
        example("tokio_copy").args(["send", &addr, from.to_str().unwrap()]).output().unwrap();
    assert!(sent.status.success(), "{}", String::from_utf8_lossy(&sent.stderr));
    assert!(receiver.wait().unwrap().success());
    assert!(std::fs::read(&to).unwrap() == bytes);
}
