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
    let _watchdog = Watchdog::new(Duration::from_secs(600));
    let port = free_port(ip.parse().expect("an address"));
    let mut server =
        Running::spawn(command(program, port, args).args(["-b", ip])).expect("the server starts");
    await_listener(port, &mut server);
    let client =
        Running::spawn(command(program, port, args).args(["-s", ip])).expect("the client starts");
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
        no_inline: ["-i", "0", "-T", "b", "-T", "v"];
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
/// them makes.
#[test]
fn the_default_runs_end_well() {
    for program in ["rstream", "riostream"] {
        let said = run(program, &["-T", "b"]);
        let results: Vec<_> = said.lines().filter(|line| line.contains("_")).collect();
        assert_eq!(results.len(), 8, "{program}:\n{said}");
    }
}

#[test]
fn every_size_arrives_intact_over_ipv6() {
    let args = ["-f", "ipv6", "-T", "b", "-T", "v", "-S", "all", "-I", "2", "-C", "3"];
    let said = run_at("::1", "rstream", &args);
    assert!(said.lines().count() > 1, "{said}");
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
