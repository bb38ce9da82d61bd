//! Unmodified programs of TCP under the preload library, and peers that speak C's rsockets alone:
//! accepted as clients and reached as servers, where the configuration says so, and as if they
//! spoke TCP.

use super::rdma_ends::plain_config;
use super::{IPV4, free_port};
use rsock_core::accelerate::FallbackReason;
use rsock_core::metrics;
use rsock_tests::{
    Running, Watchdog, assert_worked, await_rdma_listener, await_tcp_listener, preload_library,
    tools,
};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// What a program speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Speaks {
    /// Rsockets, of librdmacm.
    Rsockets,
    /// TCP, under the preload library.
    Tcp,
}

use Speaks::{Rsockets, Tcp};

/// A server, then its client.
const PAIRS: [[Speaks; 2]; 2] = [[Tcp, Rsockets], [Rsockets, Tcp]];

/// `how` is how one of TCP waits.
fn rstream(speaks: Speaks, port: u16, size: [&str; 3], how: &[&str]) -> Command {
    let mut command = Command::new("rstream");
    match speaks {
        Rsockets => command.args(["-T", "b"]),
        Tcp => command
            .env("LD_PRELOAD", preload_library())
            .env("RSOCK_CONFIG", plain_config())
            .args(["-T", "s"])
            .args(how),
    };
    let [bytes, count, iterations] = size;
    command.args(["-p", &port.to_string(), "-T", "v"]);
    command.args(["-S", bytes, "-C", count, "-I", iterations]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run([server, client]: [Speaks; 2], ip: &str, size: [&str; 3], how: &[&str]) {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let port = free_port(ip);
    let family: &[&str] = if ip == IPV4 { &[] } else { &["-f", "ipv6"] };
    let what = format!("{size:?} {how:?} at {ip}, {server:?} serves {client:?}");
    let mut serving = rstream(server, port, size, how);
    let mut serving = Running::spawn(serving.args(family).args(["-b", ip])).expect("it starts");
    await_rdma_listener(port, &mut serving);
    let mut connecting = rstream(client, port, size, how);
    let connecting = Running::spawn(connecting.args(family).args(["-s", ip])).expect("it starts");
    let said = assert_worked(&format!("{what}: client"), &connecting.output().expect("its end"));
    assert_worked(&format!("{what}: server"), &serving.output().expect("its end"));
    assert!(said.lines().any(|line| line.starts_with("custom")), "{what}: no result in\n{said}");
}

const SIZES: [[&str; 3]; 3] = [["1", "10", "20"], ["70000", "5", "4"], ["3000001", "2", "1"]];

#[test]
fn rstream_of_tcp_serves_c_and_is_served() {
    for pair in PAIRS {
        for size in SIZES {
            run(pair, IPV4, size, &["-T", "b"]);
        }
        run(pair, "fd09::1", SIZES[1], &["-T", "b"]);
    }
}

#[test]
fn rstream_of_tcp_that_does_not_block_serves_c_and_is_served() {
    for pair in PAIRS {
        for how in [&[][..], &["-T", "a"], &["-T", "n", "-T", "a"]] {
            run(pair, IPV4, SIZES[1], how);
        }
    }
}

/// A server of a network that is not listed is no different from one without us.
#[test]
fn no_rsockets_peer_is_accepted_or_called_without_configuration() {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let port = free_port(IPV4);
    let mut serving = rstream(Tcp, port, SIZES[0], &["-T", "b"]);
    let serving = serving.env("RSOCK_CONFIG", "/nowhere").args(["-b", IPV4]);
    let mut serving = Running::spawn(serving).expect("it starts");
    // Seen in the kernel's list, for a connection would be served.
    await_tcp_listener(port, &mut serving);
    let refused = rstream(Rsockets, port, SIZES[0], &[]).args(["-s", IPV4]).output();
    assert!(!refused.expect("its end").status.success(), "it was let in");
    let client = rstream(Tcp, port, SIZES[0], &["-T", "b"]).args(["-s", IPV4]).output();
    assert_worked("TCP, all the same", &client.expect("its end"));
    assert_worked("its server", &serving.output().expect("its end"));

    let mut serving = rstream(Rsockets, port, SIZES[0], &[]);
    let mut serving = Running::spawn(serving.args(["-b", IPV4])).expect("it starts");
    await_rdma_listener(port, &mut serving);
    let mut client = rstream(Tcp, port, SIZES[0], &["-T", "b"]);
    let refused = client.env("RSOCK_CONFIG", "/nowhere").args(["-s", IPV4]).output();
    assert!(!refused.expect("its end").status.success(), "it was called");
}

/// No socket listens, neither on TCP nor on the device.
#[test]
fn a_connect_without_a_listener_is_refused() {
    let _watchdog = Watchdog::new(Duration::from_secs(60));
    let port = free_port(IPV4);
    let out = rstream(Tcp, port, SIZES[0], &["-T", "b"]).args(["-s", IPV4]).output();
    let out = out.expect("its end");
    let said =
        String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(!out.status.success() && said.contains("Connection refused"), "{said}");
    TcpStream::connect((IPV4, port)).expect_err("no listener");
}

/// Netperf and its server, one under librdmacm's preload library, one under ours. One process each,
/// since what comes without TCP stays in the process that it has come to.
#[test]
fn netperf_runs_between_librdmacms_preload_library_and_rsocks() {
    let library = Path::new("/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so");
    assert!(library.is_file(), "the lab has it");
    let dress = |speaks: Speaks, program: &str, port: u16| {
        let mut command = tools::require(program).command();
        match speaks {
            Rsockets => command.env("LD_PRELOAD", library),
            Tcp => command.env("LD_PRELOAD", preload_library()).env("RSOCK_CONFIG", plain_config()),
        };
        command.args(["-4", "-p", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    for [server, client] in PAIRS {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let port = free_port(IPV4);
        let mut serving = dress(server, "netserver", port);
        let mut serving = Running::spawn(serving.args(["-D", "-f", "-N", "-L", IPV4]))
            .expect("the server starts");
        await_rdma_listener(port, &mut serving);
        for test in ["TCP_RR", "TCP_STREAM", "TCP_MAERTS"] {
            let what = format!("{test}, {server:?} serves {client:?}");
            let mut netperf = dress(client, "netperf", port);
            netperf.args(["-H", IPV4, "-l", "1", "-P", "0", "-v", "0", "-t", test]);
            let mut netperf = Running::spawn(&mut netperf).expect("it starts");
            let mut is_seen = false;
            while netperf.try_wait().expect("its state").is_none() {
                is_seen |= has_plain_peer();
                thread::park_timeout(Duration::from_millis(20));
            }
            let said = assert_worked(&what, &netperf.output().expect("it ends"));
            let figure = said.split_whitespace().next_back().and_then(|word| word.parse().ok());
            assert!(figure.is_some_and(|figure: f64| figure > 0.0), "{what}: {said}");
            assert!(is_seen, "{what}: not as `rsock stat` sees it");
        }
    }
}

/// Whether `rsock stat` would show a stream without TCP that has carried something.
fn has_plain_peer() -> bool {
    let rdma = metrics::Transport::Rdma as usize;
    let (processes, _) = metrics::read_all().expect("the processes");
    processes.iter().flat_map(|process| &process.connections).any(|c| {
        c.fallback == Some(FallbackReason::PlainRsockets)
            && c.tx_transport == Some(metrics::Transport::Rdma)
            && c.tx.bytes[rdma] + c.rx.bytes[rdma] != 0
            && c.peer.ip().to_string() == IPV4
    })
}
