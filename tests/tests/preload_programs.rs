//! Unmodified network programs over the preload library: they end well in all mixed pairs, their
//! bytes arrive unchanged where they can tell, and with the library in both ends their connection
//! really left TCP.

mod c_program;

use c_program::compiled;
use rsock_tests::{
    Running, Watchdog, assert_worked, await_tcp_listener, has_left_tcp, preload_library, tools,
};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// Which ends have the library: server, client.
const MIXED: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

/// A port that is free now.
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
    let mut libraries = Vec::new();
    if program == "NPtcp" {
        // It gives up on a machine without /etc/protocols.
        libraries.push(compiled("protocols.so"));
    }
    if with_shim {
        libraries.push(preload_library());
    }
    let libraries = libraries.iter().map(|path| path.to_str().expect("a path in UTF-8"));
    let libraries = Vec::from_iter(libraries).join(":");
    command.env_remove("LD_PRELOAD");
    if !libraries.is_empty() {
        command.env("LD_PRELOAD", libraries);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Until `process` has moved more bytes over the ring than over TCP on one connection; `false` if
/// it ended well before.
fn has_moved(name: &str, process: &mut Running) -> bool {
    loop {
        if has_left_tcp(process.id()) {
            return true;
        }
        if let Some(status) = process.try_wait().expect("its state") {
            assert!(status.success(), "{name} ended, {status}, without having left TCP");
            return false;
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
    /// Arguments of each run that is seen to move. `SECONDS` is as long as that takes on a machine
    /// with much else to do.
    long: &'static [&'static str],
    /// Arguments of the run in mixed pairs.
    short: &'static str,
}

/// Runs all pairs; what the clients said.
fn run(runs: &Runs) -> Vec<String> {
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    let mut said = Vec::new();
    for shim in MIXED {
        if shim == (true, true) {
            said.extend(runs.long.iter().map(|args| run_until_moved(runs, args)));
        } else {
            said.push(run_once(runs, shim, runs.short).0);
        }
    }
    said
}

/// Runs a pair with the library in both ends for longer and longer, until its connection leaves
/// TCP.
fn run_until_moved(runs: &Runs, args: &str) -> String {
    for seconds in [1, 4, 16, 64] {
        let args = args.replace("SECONDS", &seconds.to_string());
        let (said, has_moved) = run_once(runs, (true, true), &args);
        if has_moved {
            return said;
        }
    }
    panic!("{} {args} never left TCP", runs.client);
}

/// What the client said, and whether it left TCP, which is looked at with the library in both ends
/// alone.
fn run_once(runs: &Runs, (server_shim, client_shim): (bool, bool), args: &str) -> (String, bool) {
    let port = free_port();
    let server = &mut end(runs.server, server_shim, port, runs.server_args);
    // The output of a server without end is not read.
    if !runs.ends {
        server.stdout(Stdio::null()).stderr(Stdio::null());
    }
    let mut server = Running::spawn(server).expect("the server starts");
    await_tcp_listener(port, &mut server);
    let name = format!("{} {args}, {server_shim} {client_shim}", runs.client);
    let mut client =
        Running::spawn(&mut end(runs.client, client_shim, port, args)).expect("a client");
    let has_moved = server_shim && client_shim && has_moved(&name, &mut client);
    let said = assert_worked(&name, &client.output().expect("the client ends"));
    if runs.ends {
        assert_worked(&name, &server.output().expect("the server ends"));
    }
    (said, has_moved)
}

#[test]
fn netperf() {
    let said = run(&Runs {
        server: "netserver",
        server_args: "-D -4 -L 127.0.0.1 -p PORT",
        ends: false,
        client: "netperf",
        long: &[
            "-4 -H 127.0.0.1 -p PORT -P 0 -l SECONDS -t TCP_STREAM",
            "-4 -H 127.0.0.1 -p PORT -P 0 -l SECONDS -t TCP_MAERTS",
            "-4 -H 127.0.0.1 -p PORT -P 0 -l SECONDS -t TCP_RR",
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
        long: &[
            "-c 127.0.0.1 -p PORT -t SECONDS",
            "-c 127.0.0.1 -p PORT -t SECONDS -R -P 2 -l 2000",
        ],
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
        // Sockperf gives up (`_seqN > m_maxSequenceNo`) beyond 600,000 round trips a second.
        long: &[
            "ping-pong --tcp -i 127.0.0.1 -p PORT -t SECONDS -m 500 --mps 100000 --data-integrity",
        ],
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
        long: &["-TSECONDS -p OTHER -P PORT 127.0.0.1"],
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
        // It may end before on a machine with much else to do: the test above waits for that.
        let _ = is_both && has_moved("nuttcp", &mut client);
        let n_blocks = reader.join().expect("checked above");
        assert!(is_both || n_blocks == 200, "{n_blocks}");
        assert!(client.wait().expect("the client's end").success());
        assert!(server.wait().expect("the server's end").success());
    }
}

/// iperf3's own files are of no use here: what it could send in part only, it overwrites, on TCP
/// too.
#[test]
fn a_file_through_nuttcp_arrives_unchanged() {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (from, to) = (dir.join("nuttcp.in"), dir.join("nuttcp.out"));
    let mut file = File::create(&from).expect("a file to send");
    (0..400).for_each(|n| file.write_all(&block(n)).expect("its bytes"));
    let _watchdog = Watchdog::new(Duration::from_secs(180));
    for (server_shim, client_shim) in MIXED {
        let port = free_port();
        let mut server = end("nuttcp", server_shim, port, "-1 -s --nofork -P PORT");
        server.stdout(File::create(&to).expect("a file to receive"));
        let mut server = Running::spawn(&mut server).expect("the server starts");
        await_tcp_listener(port, &mut server);
        let mut client = end("nuttcp", client_shim, port, "-t -s -p OTHER -P PORT 127.0.0.1");
        client.stdin(File::open(&from).expect("the file"));
        let client = Running::spawn(&mut client).expect("the client starts");
        assert_worked("nuttcp -t", &client.output().expect("the client's end"));
        assert_worked("nuttcp -r", &server.output().expect("the server's end"));
        let is_same =
            fs::read(&to).expect("what arrived") == fs::read(&from).expect("what was sent");
        assert!(is_same, "{server_shim} {client_shim}");
    }
}
