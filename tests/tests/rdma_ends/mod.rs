//! One C program over rsocket(3) at both ends, over librdmacm's rsockets at one and ours at the
//! other, or as a program of sockets under the preload library: many connections, both directions
//! at once, and every way to end. It checks every byte.

use rsock_tests::{
    Running, Watchdog, assert_worked, await_rdma_listener, await_that, c_library, preload_library,
    tools,
};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

/// What the program's rsockets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    C,
    Ours,
    /// A program of sockets, under the preload library.
    Sockets,
}

/// A server's, then its client's.
const PAIRS: [[Over; 2]; 3] = [[Over::C, Over::Ours], [Over::Ours, Over::C], [Over::Ours; 2]];

/// COMPAT: librdmacm's listener (release 44) gets stuck with 64 connections at once, its own
/// clients' too.
const OUR_SERVER: [[Over; 2]; 2] = [PAIRS[1], PAIRS[2]];

/// A program of sockets and C's rsockets.
const WITHOUT_TCP: [[Over; 2]; 2] = [[Over::Sockets, Over::C], [Over::C, Over::Sockets]];

const IPV4: &str = "10.9.0.1";
const IPV6: &str = "fd09::1";

/// The program, which opens the library with its rsockets itself.
fn program() -> &'static Path {
    static DONE: OnceLock<PathBuf> = OnceLock::new();
    DONE.get_or_init(|| {
        let here = Path::new(env!("CARGO_MANIFEST_DIR"));
        let program = std::env::temp_dir().join(format!("rdma-ends-{}", std::process::id()));
        let out = Command::new("cc")
            .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
            .arg("-o")
            .arg(&program)
            .arg(here.join("rdma_c/ends.c"))
            .arg("-I")
            .arg(here.join("../crates/rsock-capi/include"))
            .output()
            .expect("a C compiler named cc");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        program
    })
}

fn end(over: Over, role: &str, ip: &str, port: u16, mode: &str) -> Running {
    let mut command = Command::new(program());
    match over {
        Over::C => command.arg("librdmacm.so.1"),
        Over::Ours => command.arg(c_library()).env("RSOCK_DEVICE", "rdma"),
        Over::Sockets => {
            command.env("LD_PRELOAD", preload_library()).env("RSOCK_CONFIG", plain_config());
            command.arg("-")
        }
    };
    command.args([role, ip, &port.to_string(), mode]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(&mut command).expect("the program starts")
}

/// A configuration that lets programs under the preload library speak to C's rsockets.
pub(super) fn plain_config() -> PathBuf {
    static DONE: OnceLock<PathBuf> = OnceLock::new();
    let write = || {
        let file = std::env::temp_dir().join(format!("rdma-plain-{}.toml", std::process::id()));
        let networks = "plain_rsockets = [\"10.0.0.0/8\", \"fd09::/64\"]\n";
        fs::write(&file, networks).expect("a configuration");
        file
    };
    DONE.get_or_init(write).clone()
}

/// Both ends, the server listening before the client starts.
fn start([server, client]: [Over; 2], ip: &str, mode: &str) -> [Running; 2] {
    let port = super::free_port(ip);
    let mut server = end(server, "server", ip, port, mode);
    await_rdma_listener(port, &mut server);
    [server, end(client, "client", ip, port, mode)]
}

fn run_at(ip: &str, pairs: &[[Over; 2]], mode: &str) {
    for &pair in pairs {
        let _watchdog = Watchdog::new(Duration::from_secs(300));
        let [server, client] = start(pair, ip, mode);
        let [server, client] = [server, client].map(|end| end.output().expect("it ends"));
        let what = format!("{mode}, {pair:?}");
        assert_worked(&format!("{what}: client"), &client);
        assert_worked(&format!("{what}: server"), &server);
    }
}

#[test]
fn both_directions_at_once_carry_every_byte() {
    run_at(IPV4, &PAIRS, "both");
    run_at(IPV6, &PAIRS, "both");
}

#[test]
fn a_program_of_sockets_and_c_rsockets_carry_every_byte_both_ways() {
    run_at(IPV4, &WITHOUT_TCP, "both");
    run_at(IPV6, &WITHOUT_TCP, "both");
}

/// `tests/scripts/plain.py`, which waits in the way given, and C's rsockets.
fn both_without_blocking(how: &str) {
    for (is_server, ip) in [(true, IPV4), (false, IPV4), (true, IPV6), (false, IPV6)] {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let port = super::free_port(ip);
        let script = |role| {
            let mut python = tools::require("python3").command();
            python.env("LD_PRELOAD", preload_library()).env("RSOCK_CONFIG", plain_config());
            python.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/plain.py"));
            python.args([role, ip, &port.to_string(), how]);
            python.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            Running::spawn(&mut python).expect("python starts")
        };
        let start = |role, is_script| match is_script {
            true => script(role),
            false => end(Over::C, role, ip, port, "both"),
        };
        let mut server = start("server", is_server);
        await_rdma_listener(port, &mut server);
        let client = start("client", !is_server).output().expect("it ends");
        let what = format!("{how} at {ip}, {} serves", if is_server { "python" } else { "C" });
        assert_worked(&format!("{what}: client"), &client);
        assert_worked(&format!("{what}: server"), &server.output().expect("it ends"));
    }
}

#[test]
fn a_program_of_sockets_can_select_and_poll_for_c_rsockets() {
    both_without_blocking("select");
    both_without_blocking("poll");
}

#[test]
fn a_forked_child_gets_an_error_on_its_parents_rsockets_stream() {
    both_without_blocking("fork");
}

#[test]
fn a_program_of_sockets_can_have_c_rsockets_in_epoll_sets() {
    both_without_blocking("level");
    both_without_blocking("edge");
    both_without_blocking("oneshot");
}

#[test]
fn a_program_of_sockets_and_c_rsockets_can_close_a_direction_first() {
    run_at(IPV4, &WITHOUT_TCP, "client-ends-first");
    run_at(IPV4, &WITHOUT_TCP, "server-ends-first");
}

#[test]
fn what_is_under_way_at_a_close_of_sockets_or_c_rsockets_arrives() {
    run_at(IPV4, &WITHOUT_TCP, "client-closes");
    run_at(IPV4, &WITHOUT_TCP, "server-closes");
}

#[test]
fn many_clients_of_c_rsockets_come_to_a_program_of_sockets() {
    run_at(IPV4, &WITHOUT_TCP[..1], "many");
}

#[test]
fn each_end_can_close_its_direction_first() {
    run_at(IPV4, &PAIRS, "client-ends-first");
    run_at(IPV4, &PAIRS, "server-ends-first");
}

#[test]
fn what_is_under_way_at_a_close_arrives() {
    run_at(IPV4, &PAIRS, "client-closes");
    run_at(IPV4, &PAIRS, "server-closes");
}

/// `RDMA_INLINE`, which `rstream` and `riostream` set only in runs of their own sizes, too long for
/// here: nothing inline, what they ask for, and as much as a device may have.
#[test]
fn small_messages_arrive_whatever_goes_inline() {
    for mode in ["inline-0", "inline-64", "inline-400"] {
        run_at(IPV4, &PAIRS, mode);
    }
}

/// `SO_LINGER`: a close waits until what was sent is at the peer, though the peer does not read.
#[test]
fn a_close_that_lingers_leaves_nothing_behind() {
    for pair in PAIRS {
        for (mode, closes_first) in [("server-lingers", 0), ("client-lingers", 1)] {
            let _watchdog = Watchdog::new(Duration::from_secs(120));
            let what = format!("{mode}, {pair:?}");
            let mut ends = Vec::from(start(pair, IPV4, mode));
            let closing = ends.remove(closes_first);
            let mut reading = Inspected::new(ends.remove(0));
            assert!(reading.n_descriptors() > 0);
            assert_worked(&format!("{what}: the closing end"), &closing.output().expect("it ends"));
            reading.go_on();
            let Inspected { process, out, to } = reading;
            drop((out, to));
            assert_worked(&format!("{what}: the reading end"), &process.output().expect("it ends"));
        }
    }
}

#[test]
fn many_connections_at_once_keep_apart() {
    run_at(IPV4, &OUR_SERVER, "many");
}

/// A soft device with an address of its own: all of its objects are the test's.
struct Own {
    name: &'static str,
    ip: String,
}

impl Own {
    fn new(name: &'static str, number: u8) -> Self {
        let ip = format!("10.{number}.0.1");
        for line in [
            format!("ip link add if_{name} type dummy"),
            format!("ip link set if_{name} up"),
            format!("ip addr add {ip}/24 dev if_{name}"),
            format!("rdma link add {name} type rxe netdev if_{name}"),
        ] {
            shell(&line);
        }
        Self { name, ip }
    }

    /// The kernel's objects of a kind on it.
    fn n(&self, kind: &str) -> u32 {
        // `7: NAME: pd 3 cq 4 qp 2 cm_id 3 mr 0 ctx 2 srq 0`
        let all = shell(&format!("rdma resource show {}", self.name));
        let mut words = all.split_whitespace().skip_while(|word| *word != kind);
        let n = words.nth(1).and_then(|word| word.parse().ok());
        n.unwrap_or_else(|| panic!("no {kind} in {all}"))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        shell(&format!("rdma link del {}", self.name));
        shell(&format!("ip link del if_{}", self.name));
    }
}

fn shell(line: &str) -> String {
    let mut words = line.split(' ');
    let out = Command::new(words.next().expect("program")).args(words).output().expect("it runs");
    assert_worked(line, &out)
}

/// An end that stops for inspection and goes on when told.
struct Inspected {
    process: Running,
    out: BufReader<ChildStdout>,
    to: ChildStdin,
}

impl Inspected {
    fn new(mut process: Running) -> Self {
        let out = process.stdout.take().expect("piped");
        let to = process.stdin.take().expect("piped");
        Self { process, out: BufReader::new(out), to }
    }

    /// Waits until it stops; its number of descriptors.
    fn n_descriptors(&mut self) -> u32 {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("its output");
        let n = line.trim().strip_prefix("descriptors ").and_then(|n| n.parse().ok());
        n.unwrap_or_else(|| panic!("it said {line:?}"))
    }

    fn go_on(&mut self) {
        self.to.write_all(b"\n").expect("it reads");
    }
}

/// 480 connections later there is no more of anything than there was after the first 20.
#[test]
fn five_hundred_connections_in_a_row_leave_nothing_behind() {
    /// For what is kept for the next connection.
    const SPARE: u32 = 4;
    for (pair, number) in PAIRS[..2].iter().chain(&WITHOUT_TCP).copied().zip(70..) {
        let _watchdog = Watchdog::new(Duration::from_secs(500));
        let own = Own::new("rxe_row", number);
        let kinds = ["pd", "cq", "mr"];
        let n_qps = own.n("qp");
        let mut ends = start(pair, &own.ip, "connects").map(Inspected::new);
        let before = [0, 1].map(|i| ends[i].n_descriptors());
        let objects = kinds.map(|kind| own.n(kind));
        ends.iter_mut().for_each(Inspected::go_on);
        let after = [0, 1].map(|i| ends[i].n_descriptors());
        for (before, after) in before.into_iter().zip(after) {
            assert!(after <= before + SPARE, "{pair:?}: {before} descriptors, then {after}");
        }
        for (kind, before) in kinds.into_iter().zip(objects) {
            // Those of the last connections go a little later.
            await_that(|| own.n(kind) <= before + SPARE);
        }
        await_that(|| own.n("qp") <= n_qps);
        ends.iter_mut().for_each(Inspected::go_on);
        for Inspected { process, out, to } in ends {
            drop((out, to));
            let out = process.output().expect("it ends");
            assert_worked(&format!("{pair:?}"), &out);
        }
    }
}
