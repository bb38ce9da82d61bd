//! Unmodified programs over C rsockets, `rstream`, `riostream` and `udpong` of rdmacm-utils, with
//! `librsock.so` in the place of librdmacm's rsockets: server and client on the soft device.

use rsock_tests::{
    Running, Watchdog, assert_worked, await_listening, await_udp_socket, c_library, free_port,
    tools,
};
use std::fs;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Waits until somebody listens on `port`: the listener's name is in the kernel's list.
fn await_listener(port: u16, server: &mut Running) {
    let ending = format!(".{port:04x}");
    await_listening(server, || {
        let names = fs::read_to_string("/proc/net/unix").expect("the kernel's list");
        names.lines().any(|line| {
            // The flags of a socket that accepts; it has its name a moment before.
            let accepts = line.split_whitespace().nth(3) == Some("00010000");
            accepts && line.contains("@rsock.cm1.0106.") && line.ends_with(&ending)
        })
    });
}

fn command(program: &str, port: u16, args: &[&str]) -> Command {
    let mut command = tools::require(program).command();
    command
        .env("LD_PRELOAD", c_library())
        .args(["-p", &port.to_string()])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Runs a server and a client of `program`; what the client printed.
fn run_at(ip: &str, program: &str, args: &[&str]) -> String {
    run_between(ip, &[], program, args)
}

/// The same, with more arguments for the client.
fn run_between(ip: &str, of_client: &[&str], program: &str, args: &[&str]) -> String {
    let _watchdog = Watchdog::new(Duration::from_secs(600));
    let port = free_port(ip.parse().expect("an address"));
    let mut server =
        Running::spawn(command(program, port, args).args(["-b", ip])).expect("the server starts");
    await_listener(port, &mut server);
    let client = Running::spawn(command(program, port, args).args(["-s", ip]).args(of_client))
        .expect("the client starts");
    let client = client.output().expect("the client ends");
    // A failed client leaves its server waiting.
    let said = assert_worked(&format!("{program} client {args:?}"), &client);
    let server = server.output().expect("the server ends");
    assert_worked(&format!("{program} server {args:?}"), &server);
    said
}

fn run(program: &str, args: &[&str]) -> String {
    run_at("127.0.0.1", program, args)
}

/// One run per size, with `mode`: transfers of that size, so many at a time, so often.
fn sizes(program: &str, mode: &[&str]) {
    for [size, count, iterations] in
        [["64", "10", "300"], ["5000", "1", "100"], ["65536", "20", "10"], ["1048576", "5", "4"]]
    {
        let size = ["-S", size, "-C", count, "-I", iterations];
        let said = run(program, &[mode, &size].concat());
        assert!(said.lines().any(|line| line.starts_with("custom")), "no result in\n{said}");
    }
}

/// One test per program and mode.
macro_rules! modes {
    ($($program:ident { $($mode:ident: $args:expr;)* })*) => {
        $(
            mod $program {
                $(
                    #[test]
                    fn $mode() {
                        super::sizes(stringify!($program), &$args);
                    }
                )*
            }
        )*
    };
}

modes! {
    rstream {
        busy: [];
        busy_verified: ["-T", "v"];
        blocking: ["-T", "b"];
        blocking_verified: ["-T", "b", "-T", "v"];
        polled: ["-T", "a"];
        polled_verified: ["-T", "a", "-T", "v"];
        polled_and_blocking: ["-T", "a", "-T", "b", "-T", "v"];
        nonblocking: ["-T", "n", "-T", "v"];
        small_buffers: ["-B", "4096", "-T", "v"];
        keepalive: ["-k", "1", "-T", "b"];
    }
    riostream {
        busy: [];
        busy_verified: ["-T", "v"];
        blocking: ["-T", "b"];
        blocking_verified: ["-T", "b", "-T", "v"];
        polled_verified: ["-T", "a", "-T", "v"];
    }
}

/// The programs' own sizes and counts, with the two connections one after the other that each of
/// them makes: for short latency, then for bandwidth.
#[test]
fn the_default_runs_end_well() {
    for program in ["rstream", "riostream"] {
        let said = run(program, &["-T", "b"]);
        assert_eq!(results(&said).len(), 8, "{program}:\n{said}");
    }
}

/// The lines of results of the programs' own sizes.
fn results(said: &str) -> Vec<&str> {
    let own = |line: &&str| {
        let name = line.split(' ').next().unwrap_or_default();
        name.ends_with("_lat") || name.ends_with("_bw")
    };
    said.lines().filter(own).collect()
}

/// With another size it is a run of a kind that sets nothing of this.
#[test]
fn nothing_needs_to_go_inline() {
    let said = run("rstream", &["-i", "0", "-T", "b"]);
    assert_eq!(results(&said).len(), 8, "{said}");
}

/// The sizes of `rstream -S all`, powers of two and halfway between, and odd ones; a run each.
#[test]
fn every_size_arrives_intact_over_ipv6() {
    let own = (6..=22).flat_map(|k| [1 << k, (1 << k) + (1 << (k - 1))]);
    let sizes: Vec<u32> = own.chain([1, 63, 65, 4095, 65_537, 1_048_577]).collect();
    for size in sizes {
        let size = size.to_string();
        let args = ["-f", "ipv6", "-T", "b", "-T", "v", "-S", &size, "-I", "2", "-C", "3"];
        let said = run_at("::1", "rstream", &args);
        let n = said.lines().filter(|line| line.starts_with("custom")).count();
        assert_eq!(n, 1, "{size} bytes:\n{said}");
    }
}

/// Another one than the server's, and the server's port.
#[test]
fn a_client_may_choose_its_address() {
    let args = ["-T", "b", "-T", "v", "-S", "5000", "-I", "5", "-C", "3"];
    let said = run_between("127.0.0.1", &["-b", "127.0.0.2"], "rstream", &args);
    assert!(said.lines().any(|line| line.starts_with("custom")), "no result in\n{said}");
}

/// A client alone is refused, with the error that the programs print.
#[test]
fn a_client_without_a_server_is_refused() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let ip: IpAddr = [127, 0, 0, 1].into();
    let mut client = command("rstream", free_port(ip), &["-s", "127.0.0.1"]);
    let out = client.output().expect("the client runs");
    assert!(!out.status.success());
    let said =
        String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(said.contains("rconnect: Connection refused"), "{said}");
}

/// Messages to and fro, in every way that the program has of waiting. Its server never ends.
#[test]
fn udpong_plays_over_datagram_sockets() {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    let ip = "127.0.0.1";
    for mode in [&[][..], &["-T", "b"], &["-T", "a"], &["-T", "n"]] {
        for (size, count) in [("64", "1000"), ("1400", "300")] {
            let port = free_port(ip.parse().expect("an address"));
            let mut server = Running::spawn(command("udpong", port, mode).args(["-b", ip]))
                .expect("the server starts");
            await_udp_socket(port, &mut server);
            let size = ["-S", size, "-C", count];
            let client = Running::spawn(command("udpong", port, mode).args(["-s", ip]).args(size))
                .expect("the client starts");
            let client = client.output().expect("the client ends");
            let said = assert_worked(&format!("udpong {mode:?} {size:?}"), &client);
            assert!(said.lines().count() >= 2, "no result in\n{said}");
        }
    }
}
