//! Datagrams of unmodified programs over the preload library: past the kernel where both ends have
//! it, with no visible difference.

mod pair;
mod preload_datagrams_kernel;

use pair::{MIXED, Shim, command, pair, watched};
use rsock_tests::{
    Running, Watchdog, assert_worked, await_tcp_listener, await_udp_socket, preload_library,
    rsock_command, tools,
};
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A file for the library's log, gone when dropped.
struct Log(PathBuf);

impl Log {
    fn new() -> Self {
        static N: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "rsock-datagrams-{}-{}.log",
            std::process::id(),
            N.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::write(&path, "").expect("a log");
        Self(path)
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.0).expect("the log")
    }

    /// The sum over all sockets of a counter that they left behind.
    fn sum(&self, counter: &str) -> u64 {
        let name = format!("{counter}: ");
        let numbers = self.text();
        let numbers =
            numbers.lines().filter(|line| line.contains("datagrams, ending")).map(|line| {
                let (_, after) =
                    line.split_once(&name).unwrap_or_else(|| panic!("{counter}: {line}"));
                let digits = after.split(|c: char| !c.is_ascii_digit()).next().expect("digits");
                digits.parse::<u64>().expect("a number")
            });
        numbers.sum()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn with_queues(command: &mut Command, log: &Log) {
    command.env("RSOCK_DGRAM", "on").env("RSOCK_LOG", &log.0);
}

/// Runs one part of the script in all pairs; in those with the library at both ends its datagrams
/// go past the kernel.
fn assert_same(part: &'static str) {
    assert_same_in("datagrams.py", part, true);
}

/// Runs one part of a script in all pairs, which print the same. `is_past` is whether datagrams go
/// past the kernel with the library at both ends: there the client is told to wait for that, with
/// its server.
fn assert_same_in(script: &str, part: &'static str, is_past: bool) {
    let python = tools::require("python3");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let script = script.to_str().expect("a path in UTF-8").to_owned();
    let run = |shim: Shim| {
        let (python, script) = (python.clone(), script.clone());
        watched(format!("{part} {shim:?}"), move || {
            let log = Log::new();
            let args = |role| [script.as_str(), role, part, "0"];
            let mut server = command(python.clone(), shim.server, &args("server"));
            let mut client = command(python, shim.client, &args("client"));
            server.env("OWN_PORT", free_port().to_string());
            let is_both = shim.server && shim.client;
            for end in [&mut server, &mut client] {
                with_queues(end, &log);
                if is_both && is_past {
                    end.env("WARM", "past-the-kernel");
                }
            }
            let outcome = pair(server, client);
            if is_both {
                let went_past = log.text().contains("past the kernel, Receives");
                assert_eq!(went_past, is_past, "{part}: {outcome:?}");
            }
            outcome
        })
    };
    let plain = run(Shim { server: false, client: false });
    let are_well = [&plain.server, &plain.client].map(|end| end.status.ends_with(": 0"));
    assert_eq!(are_well, [true, true], "without the library: {plain:?}");
    for shim in MIXED {
        assert_eq!(run(shim), plain, "left: {shim:?}, right: without, {part}");
    }
}

macro_rules! parts {
    ($assert_same:expr; $($name:ident = $part:literal;)*) => {
        $(
            #[test]
            fn $name() {
                $assert_same($part);
            }
        )*
    };
}
use parts;

parts! {
    assert_same;
    received_by_recvfrom = "recv:recvfrom";
    received_into = "recv:recv_into";
    received_as_messages = "recv:recvmsg";
    received_in_pieces = "recv:recvmsg_into";
    received_after_poll = "recv:polled";
    received_after_select = "recv:selected";
    received_after_epoll = "recv:by_epoll";
    received_after_edges = "recv:by_edges";
    epoll_sets_of_every_kind = "sets";
    received_without_blocking = "recv:nonblocking";
    received_with_a_time_out = "recv:with_timeout";
    a_wildcard_socket_under_another_address = "wildcard";
    peeked_at_and_cut = "peeking";
    waits_end_in_time_and_by_signals = "waiting";
    a_forked_child_has_the_queue_too = "forked";
    an_epoll_set_shows_what_is_in_the_queue = "watched";
    a_connected_socket_hears_its_peer_alone = "connected";
    a_peer_that_has_closed_refuses = "gone";
    two_names_of_one_socket = "doubled";
    another_socket_on_the_port_gets_what_the_kernel_gives_it = "joined";
    many_messages_at_once = "many";
    an_option_of_the_kernel_alone_loses_nothing = "options";
    the_end_of_reading_and_writing = "shut";
}

/// Runs the script of one process with the library, and returns what it printed.
fn alone(script: &str, args: &[&str], log: &Log) -> String {
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let script = [script.to_str().expect("a path in UTF-8")];
    let args: Vec<&str> = script.iter().chain(args).copied().collect();
    let mut command = command(tools::require("python3"), true, &args);
    with_queues(&mut command, log);
    let child = Running::spawn(&mut command).expect("the script starts");
    assert_worked(script[0], &child.output().expect("the script ends"))
}

fn assert_heard(way: &str) {
    let log = Log::new();
    let heard = alone("waiters.py", &[way], &log);
    assert_eq!(heard.matches("'the last'").count(), 6, "{heard}");
    assert!(log.text().contains("past the kernel, Receives"), "{}", log.text());
}

#[test]
fn a_thread_in_poll_hears_a_socket_that_another_begins_to_use() {
    assert_heard("poll");
}

#[test]
fn a_thread_in_select_hears_a_socket_that_another_begins_to_use() {
    assert_heard("select");
}

#[test]
fn a_thread_in_epoll_hears_a_socket_that_another_begins_to_use() {
    assert_heard("epoll");
}

/// The cells of a socket's line, after its address.
fn cells<'a>(table: &'a str, port: &str) -> Vec<&'a str> {
    let address = format!("127.0.0.1:{port}");
    let of_it = |line: &&str| line.split_whitespace().nth(2) == Some(&*address);
    let line = table.lines().find(of_it).unwrap_or_else(|| panic!("no {address}: {table}"));
    line.split_whitespace().skip(3).collect()
}

#[test]
fn stat_shows_how_datagrams_travel_and_why() {
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    let log = Log::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/sockets.py");
    let script = script.to_str().expect("a path in UTF-8");
    let mut program = command(tools::require("python3"), true, &[script]);
    with_queues(program.stdin(Stdio::piped()), &log);
    let mut program = Running::spawn(&mut program).expect("the script starts");
    let mut ports = String::new();
    let out = program.stdout.take().expect("piped");
    BufReader::new(out).read_line(&mut ports).expect("the ports");
    let ports: Vec<&str> = ports.split_whitespace().collect();
    let [near, far, shared, stamped, lonely] = ports[..] else { panic!("{ports:?}") };
    let stat = Command::new(rsock_command()).args(["stat", &program.id().to_string()]).output();
    let table = assert_worked("rsock stat", &stat.expect("rsock runs"));
    // Peers by queue and by UDP, sent by both, received by both.
    let numbers = |cells: &[&str]| -> Vec<u64> {
        cells[1..8].iter().map(|cell| cell.parse().expect("a number")).collect()
    };
    let one = cells(&table, near);
    let n = numbers(&one);
    assert_eq!((n[0], n[1], one[0]), (1, 1, "-"), "{table}");
    // What it sent before it was adopted is not counted.
    assert!(n[2] > 0 && n[3] >= 8 + 8 && n[2] + n[3] <= 64 + 8, "{table}");
    assert!(n[4] > 0 && n[5] >= 4 && n[4] + n[5] <= 64 && n[6] == 0, "{table}");
    assert_eq!(one[8..], [""; 0], "{table}");
    let one = cells(&table, far);
    assert_eq!(one[0], format!("127.0.0.1:{near}"), "{table}");
    assert_eq!(
        one[8..].join(" "),
        "an option or a later connect that only the kernel can honour",
        "{table}"
    );
    let one = cells(&table, shared);
    assert_eq!(
        one[8..].join(" "),
        "an option or a later connect that only the kernel can honour",
        "{table}"
    );
    let one = cells(&table, stamped);
    assert_eq!((numbers(&one), one[8]), (vec![0; 7], "an"), "{table}");
    let one = cells(&table, lonely);
    assert_eq!(one[8..].join(" "), "no peer with a queue yet", "{table}");
    drop(program.stdin.take());
    assert!(program.wait().expect("its end").success());
}

/// A port that is free now.
fn free_port() -> u16 {
    rsock_tests::free_port(Ipv4Addr::LOCALHOST.into())
}

/// A command for one end; `PORT` in `args` stands for the port.
fn end(program: &str, with_shim: bool, port: u16, args: &str, log: &Log) -> Command {
    let mut command = tools::require(program).command();
    let port = port.to_string();
    command.args(args.split_whitespace().map(|arg| if arg == "PORT" { &port } else { arg }));
    command.env_remove("LD_PRELOAD");
    if with_shim {
        command.env("LD_PRELOAD", preload_library());
    }
    with_queues(&mut command, log);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A server, and a client that talks to it.
struct Programs {
    server: &'static str,
    server_args: &'static str,
    await_server: fn(u16, &mut Running),
    /// Whether the server ends with its client.
    ends: bool,
    client: &'static str,
    client_args: &'static str,
}

/// Runs the programs in all pairs; what the client said, and the log, of each.
fn run(programs: &Programs) -> Vec<(Shim, String, Log)> {
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    let one = |shim: Shim| {
        let (port, log) = (free_port(), Log::new());
        let mut server = end(programs.server, shim.server, port, programs.server_args, &log);
        if !programs.ends {
            server.stdout(Stdio::null()).stderr(Stdio::null());
        }
        let mut server = Running::spawn(&mut server).expect("the server starts");
        (programs.await_server)(port, &mut server);
        let mut client = end(programs.client, shim.client, port, programs.client_args, &log);
        let client = Running::spawn(&mut client).expect("the client starts");
        let name = format!("{} {shim:?}", programs.client);
        let said = assert_worked(&name, &client.output().expect("the client ends"));
        if programs.ends {
            assert_worked(&name, &server.output().expect("the server ends"));
        }
        let text = log.text();
        let is_past = text.contains("past the kernel");
        assert_eq!(is_past, shim.server && shim.client, "{shim:?}: {text}");
        (shim, said, log)
    };
    MIXED.map(one).into()
}

fn netperf(client_args: &'static str) -> Vec<(Shim, String, Log)> {
    run(&Programs {
        server: "netserver",
        server_args: "-D -4 -L 127.0.0.1 -p PORT",
        await_server: await_tcp_listener,
        ends: false,
        client: "netperf",
        client_args,
    })
}

#[test]
fn netperf_request_and_response() {
    for (shim, said, log) in netperf("-4 -H 127.0.0.1 -p PORT -P 0 -l 1 -t UDP_RR") {
        let numbers: Vec<f64> = said.split_whitespace().flat_map(str::parse).collect();
        assert!(numbers.len() >= 6 && numbers[5] > 0.0, "{said}");
        if shim.server && shim.client {
            let (sent, received) = (log.sum("n_sent"), log.sum("n_received"));
            assert!(sent > 0 && received > 0, "{}", log.text());
        }
    }
}

#[test]
fn netperf_in_one_direction() {
    let args = ["-m 64", "-m 1400", "-m 20000"].map(|size| {
        let args = format!("-4 -H 127.0.0.1 -p PORT -P 0 -l 1 -t UDP_STREAM -- {size}");
        &*args.leak()
    });
    for (args, is_short) in args.into_iter().zip([true, true, false]) {
        let _watchdog = Watchdog::new(Duration::from_secs(180));
        let programs = Programs {
            server: "netserver",
            server_args: "-D -4 -L 127.0.0.1 -p PORT",
            await_server: await_tcp_listener,
            ends: false,
            client: "netperf",
            client_args: args,
        };
        let log = Log::new();
        let port = free_port();
        let mut server = end("netserver", true, port, programs.server_args, &log);
        server.stdout(Stdio::null()).stderr(Stdio::null());
        let mut server = Running::spawn(&mut server).expect("the server starts");
        await_tcp_listener(port, &mut server);
        let client = Running::spawn(&mut end("netperf", true, port, args, &log)).expect("a client");
        let said = assert_worked(args, &client.output().expect("the client ends"));
        let numbers: Vec<f64> = said.split_whitespace().flat_map(str::parse).collect();
        assert!(numbers.len() >= 9 && numbers[7] > 0.0, "{said}");
        assert_eq!(log.sum("n_sent") > 0, is_short, "{args}: {}", log.text());
    }
}

fn sockperf(client_args: &'static str) -> Vec<(Shim, String, Log)> {
    run(&Programs {
        server: "sockperf",
        server_args: "server -i 127.0.0.1 -p PORT",
        await_server: await_udp_socket,
        ends: false,
        client: "sockperf",
        client_args,
    })
}

/// A server that waits for several ports in an epoll set, which they are in before anything has
/// come.
#[test]
fn sockperf_in_an_epoll_set() {
    let feed = std::env::temp_dir().join(format!("rsock-feed-{}", std::process::id()));
    let (port, other) = (free_port(), free_port());
    fs::write(&feed, format!("U:127.0.0.1:{port}\nU:127.0.0.1:{other}\n")).expect("a feed file");
    let feed_arg = format!("server -f {} -F epoll", feed.display());
    let programs = |shim: Shim| {
        let log = Log::new();
        let mut server = end("sockperf", shim.server, port, &feed_arg, &log);
        let mut server =
            Running::spawn(server.stdout(Stdio::null()).stderr(Stdio::null())).expect("a server");
        await_udp_socket(port, &mut server);
        let args = "ping-pong -i 127.0.0.1 -p PORT -t 1 -m 500 --mps 20000 --data-integrity";
        let mut client = end("sockperf", shim.client, port, args, &log);
        let client = Running::spawn(&mut client).expect("a client");
        let said = assert_worked("sockperf", &client.output().expect("the client ends"));
        assert!(said.contains("# duplicated messages = 0; # out-of-order messages = 0"), "{said}");
        let is_past = log.text().contains("past the kernel, Receives");
        assert_eq!(is_past, shim.server && shim.client, "{shim:?}: {}", log.text());
    };
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    MIXED.into_iter().for_each(programs);
    let _ = fs::remove_file(feed);
}

/// Every message carries its number back, and its bytes are compared. Not as many as there could
/// be: sockperf has room for those that it expects at most.
#[test]
fn sockperf_to_and_fro() {
    let args = "ping-pong -i 127.0.0.1 -p PORT -t 1 -m 500 --mps 20000 --data-integrity";
    for (_, said, _) in sockperf(args) {
        assert!(said.contains("observations"), "{said}");
        assert!(!said.to_lowercase().contains("integrity test failed"), "{said}");
        assert!(said.contains("# duplicated messages = 0; # out-of-order messages = 0"), "{said}");
    }
}

#[test]
fn sockperf_in_one_direction() {
    for (_, said, _) in sockperf("throughput -i 127.0.0.1 -p PORT -t 1 -m 64") {
        assert!(said.contains("Message Rate"), "{said}");
    }
}

/// What iperf3 misses is what the counters say was dropped: nothing else is lost past the kernel.
#[test]
fn iperf3() {
    let programs = Programs {
        server: "iperf3",
        server_args: "-s -1 -p PORT",
        await_server: await_tcp_listener,
        ends: true,
        client: "iperf3",
        client_args: "-c 127.0.0.1 -p PORT -u -b 0 -t 1 -l 1400",
    };
    for (shim, said, log) in run(&programs) {
        assert!(said.contains("receiver"), "{said}");
        if shim.server && shim.client {
            let (sent, received) = (log.sum("n_sent"), log.sum("n_received"));
            assert!(sent > 0 && received > 0 && received <= sent, "{}", log.text());
            assert_eq!(log.sum("n_foreign") + log.sum("n_malformed"), 0, "{}", log.text());
        }
    }
}
