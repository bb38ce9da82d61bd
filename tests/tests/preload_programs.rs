//! Unmodified network programs over the preload library: they end well in all mixed pairs, their
//! bytes arrive unchanged where they can tell, and with the library in both ends their connection
//! really left TCP.

use rsock_core::stat;
use rsock_tests::{Running, Watchdog, assert_worked, await_tcp_listener, preload_library, tools};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Which ends have the library: server, client.
const MIXED: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

/// A port that nobody has now.
fn free_port() -> u16 {
    rsock_tests::free_port(Ipv4Addr::LOCALHOST.into())
}

/// A command for one end; `args` may hold `PORT`, and `OTHER` for a further free one.
fn end(program: &str, with_shim: bool, port: u16, args: &str) -> Command {
    let mut command = tools::require(program).command();
    command.args(args.split_whitespace().map(|arg| match arg {
        "PORT" => port.to_string(),
        "OTHER" => free_port().to_string(),
        _ => arg.to_owned(),
    }));
    command.env_remove("LD_PRELOAD");
    if with_shim {
        command.env("LD_PRELOAD", preload_library());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Until `process` has moved more bytes over the ring than over TCP on one connection.
fn await_move(who: &str, process: &mut Running) {
    loop {
        let connections = match stat::read_process(process.id()) {
            Ok(Some(found)) => found.connections,
            _ => Vec::new(),
        };
        let moved = connections.iter().any(|c| {
            let by = |path: stat::Path| c.tx.bytes[path as usize] + c.rx.bytes[path as usize];
            by(stat::Path::Soft) > by(stat::Path::Tcp)
        });
        if moved {
            return;
        }
        if let Some(status) = process.try_wait().expect("its state") {
            panic!("{who} ended, {status}, without having left TCP");
        }
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// A server, and the clients that talk to it one after the other.
struct Runs {
    server: &'static str,
    server_args: &'static str,
    /// Whether the server ends with its client.
    ends: bool,
    client: &'static str,
    /// Arguments of each run that lasts long enough to see it move.
    long: &'static [&'static str],
    /// Arguments of the run in mixed pairs.
    short: &'static str,
}

/// Runs all pairs; what the clients said.
fn run(runs: &Runs) -> Vec<String> {
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    let mut said = Vec::new();
    for (server_shim, client_shim) in MIXED {
        let is_both = server_shim && client_shim;
        let short = [runs.short];
        for args in if is_both { runs.long } else { &short } {
            let port = free_port();
            let server = &mut end(runs.server, server_shim, port, runs.server_args);
            // Nobody reads what a server that serves for ever says.
            if !runs.ends {
                server.stdout(Stdio::null()).stderr(Stdio::null());
            }
            let mut server = Running::spawn(server).expect("the server starts");
            await_tcp_listener(port, &mut server);
            let who = format!("{} {args}, {server_shim} {client_shim}", runs.client);
            let mut client =
                Running::spawn(&mut end(runs.client, client_shim, port, args)).expect("a client");
            if is_both {
                await_move(&who, &mut client);
            }
            said.push(assert_worked(&who, &client.output().expect("the client ends")));
            if runs.ends {
                assert_worked(&who, &server.output().expect("the server ends"));
            }
        }
    }
    said
}

#[test]
fn netperf() {
    let said = run(&Runs {
        server: "netserver",
        server_args: "-D -4 -L 127.0.0.1 -p PORT",
        ends: false,
        client: "netperf",
        long: &[
            "-4 -H 127.0.0.1 -p PORT -P 0 -l 1 -t TCP_STREAM",
            "-4 -H 127.0.0.1 -p PORT -P 0 -l 1 -t TCP_MAERTS",
            "-4 -H 127.0.0.1 -p PORT -P 0 -l 1 -t TCP_RR",
        ],
        short: "-4 -H 127.0.0.1 -p PORT -P 0 -l -20000000 -t TCP_STREAM",
    });
    for result in said {
        let numbers: Vec<f64> = result.split_whitespace().flat_map(str::parse).collect();
        assert!(numbers.len() >= 5 && numbers[4] > 0.0, "{result}");
    }
}

#[test]
fn iperf3() {
    let said = run(&Runs {
        server: "iperf3",
        server_args: "-s -1 -p PORT",
        ends: true,
        client: "iperf3",
        long: &["-c 127.0.0.1 -p PORT -t 1", "-c 127.0.0.1 -p PORT -t 1 -R -P 2 -l 2000"],
        short: "-c 127.0.0.1 -p PORT -n 20M",
    });
    assert!(said.iter().all(|text| text.contains("receiver")), "{said:?}");
}

/// Every message carries its number back, and its bytes are compared.
#[test]
fn sockperf_with_its_own_check_of_the_data() {
    let said = run(&Runs {
        server: "sockperf",
        server_args: "server --tcp -i 127.0.0.1 -p PORT",
        ends: false,
        client: "sockperf",
        long: &["ping-pong --tcp -i 127.0.0.1 -p PORT -t 1 -m 500 --data-integrity"],
        short: "ping-pong --tcp -i 127.0.0.1 -p PORT -t 1 -m 500 --data-integrity",
    });
    for text in said {
        assert!(text.contains("observations"), "{text}");
        assert!(!text.to_lowercase().contains("integrity test failed"), "{text}");
    }
}

/// Messages of many sizes, to and fro; each end compares every byte.
#[test]
fn netpipe_with_its_own_check_of_the_data() {
    let said = run(&Runs {
        server: "NPtcp",
        server_args: "-i -n 100 -u 200000 -P PORT -o /dev/null",
        ends: true,
        client: "NPtcp",
        long: &["-i -n 100 -u 200000 -P PORT -o /dev/null -h 127.0.0.1"],
        short: "-i -n 100 -u 200000 -P PORT -o /dev/null -h 127.0.0.1",
    });
    assert!(said.iter().all(|text| !text.contains("rror")), "{said:?}");
}

#[test]
fn nuttcp() {
    let said = run(&Runs {
        server: "nuttcp",
        server_args: "-1 --nofork -P PORT",
        ends: true,
        client: "nuttcp",
        long: &["-T1 -p OTHER -P PORT 127.0.0.1"],
        short: "-n 20m -p OTHER -P PORT 127.0.0.1",
    });
    assert!(said.iter().all(|text| text.contains("Mbps")), "{said:?}");
}

/// Bytes that can be computed from their place, as much as the reader wants.
fn block(number: u64) -> Vec<u8> {
    (0..8192u64)
        .flat_map(|i| (number * 8192 + i).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes())
        .collect()
}

/// What nuttcp's server sends is one block again and again; its client can write it down.
#[test]
fn what_nuttcp_receives_is_what_was_sent() {
    const BLOCK: usize = 65536;
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    for (server_shim, client_shim) in MIXED {
        let port = free_port();
        let mut server = end("nuttcp", server_shim, port, "-1 --nofork -P PORT");
        let mut server = Running::spawn(&mut server).expect("the server starts");
        await_tcp_listener(port, &mut server);
        let is_both = server_shim && client_shim;
        let much = if is_both { "-T1" } else { "-n200" };
        let mut client = end("nuttcp", client_shim, port, "-r -s -p OTHER -P PORT");
        let mut client =
            Running::spawn(client.args([much, "127.0.0.1"])).expect("the client starts");
        let mut received = client.stdout.take().expect("piped");
        let reader = thread::spawn(move || {
            let mut first = vec![0; BLOCK];
            received.read_exact(&mut first).expect("a block");
            // The parameters of the run, then a pattern without end.
            assert!(first.starts_with(b"buflen = 65536"), "{:?}", &first[..100]);
            let mut next = vec![0; BLOCK];
            let mut n = 1;
            loop {
                let mut len = 0;
                while len < BLOCK {
                    match received.read(&mut next[len..]).expect("the client's output") {
                        0 => break,
                        more => len += more,
                    }
                }
                assert!(next[..len] == first[..len], "wrong bytes in block {n}");
                // The timer may cut the last block short.
                if len < BLOCK {
                    return n;
                }
                n += 1;
            }
        });
        if is_both {
            await_move("nuttcp", &mut client);
        }
        let n_blocks = reader.join().expect("checked above");
        assert!(is_both || n_blocks == 200, "{n_blocks}");
        assert!(client.wait().expect("the client's end").success());
        assert!(server.wait().expect("the server's end").success());
    }
}

/// A file through iperf3. Its receiver stops when the sender says that it is done, which may be
/// before the last bytes: what it wrote is a prefix, with TCP too.
#[test]
fn a_file_through_iperf3_arrives_unchanged() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (dir.join("iperf3.in"), dir.join("iperf3.out"));
    let mut file = File::create(&from).expect("a file to send");
    (0..400).for_each(|n| file.write_all(&block(n)).expect("its bytes"));
    let sent = fs::read(&from).expect("its bytes");
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    for (server_shim, client_shim) in MIXED {
        let port = free_port();
        let _ = fs::remove_file(&to);
        let mut server = end("iperf3", server_shim, port, "-s -1 -p PORT -F");
        let mut server = Running::spawn(server.arg(&to)).expect("the server starts");
        await_tcp_listener(port, &mut server);
        let mut client = end("iperf3", client_shim, port, "-c 127.0.0.1 -p PORT -t 30 -F");
        let client = Running::spawn(client.arg(&from)).expect("the client starts");
        assert_worked("iperf3 -F", &client.output().expect("the client's end"));
        assert_worked("iperf3 -F", &server.output().expect("the server's end"));
        let got = fs::read(&to).expect("what arrived");
        assert!(got.len() > sent.len() / 2 && sent.starts_with(&got), "{} bytes", got.len());
    }
}
