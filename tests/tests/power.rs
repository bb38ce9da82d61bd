//! Two hosts on one wire, of which one is switched off while connections use RDMA. `cargo xtask
//! test` runs this in two guests of the lab, and only one of them comes back from it.

mod power_quiet;

use power_quiet::Quiet;
use rsock_core::metrics::{self, StreamMetrics};
use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{Running, Watchdog, preload_library, tools};
use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{ChildStdout, Command, Stdio};
use std::thread;
use std::time::Duration;

/// One end of a transfer: `tests/scripts/blocks.py`, with the preload library.
struct Blocks {
    process: Running,
    out: BufReader<ChildStdout>,
}

impl Blocks {
    fn start(config: &Path, args: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/blocks.py");
        let mut command = tools::require("python3").command();
        command.env("LD_PRELOAD", preload_library()).env("RSOCK_CONFIG", config);
        command.env("KEEPALIVE", "1");
        command.arg(script).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::spawn(&mut command).expect("python starts");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, out }
    }

    fn serve(guest: &Guest, config: &Path, port: &str, how: &str) -> Self {
        let mut this = Self::start(config, &["serve", &guest.ip().to_string(), port, how]);
        let mut line = String::new();
        this.out.read_line(&mut line).expect("its output");
        assert_eq!(line, "listening\n");
        this
    }

    fn connect(guest: &Guest, config: &Path, port: &str, how: &str) -> Self {
        Self::start(config, &[how, &guest.peer_ip().to_string(), port])
    }

    /// What it prints when its stream has ended, which the test does not cause.
    fn outcome(mut self) -> String {
        let mut text = String::new();
        self.out.read_to_string(&mut text).expect("its output");
        let status = self.process.wait().expect("its end");
        assert!(status.success(), "{status}: {text}");
        text.lines().last().unwrap_or("nothing").to_owned()
    }
}

/// From guest b to a, both ways, and from a to b.
const PORTS: [&str; 3] = ["7600", "7601", "7602"];

/// Whether everything that goes on on all of the ports goes over RDMA.
fn all_are_on_rdma(guest: &Guest) -> bool {
    let (processes, _) = metrics::read_all().expect("the processes");
    let all = processes.into_iter().flat_map(|process| process.connections);
    let peers: Vec<StreamMetrics> = all.filter(|c| c.peer.ip() == guest.peer_ip()).collect();
    let path = metrics::Transport::Rdma as usize;
    PORTS.iter().all(|port| {
        let port: u16 = port.parse().expect("a number");
        let mut ours = peers.iter().filter(|c| [c.local.port(), c.peer.port()].contains(&port));
        ours.any(|c| c.tx.bytes[path] + c.rx.bytes[path] > 0)
    })
}

/// Pulls the plug of this guest.
fn switch_off() -> ! {
    let off = Path::new(&env::var("LAB_DIR").expect("the lab says it")).join("off");
    let status = Command::new("sh").arg(off).status();
    panic!("still on: {status:?}");
}

/// A sender learns from the device that the peer takes nothing. A process that only waits learns it
/// as from TCP, if it asked for that with `SO_KEEPALIVE`. None hangs, none takes it for an orderly
/// end, and all bytes that had arrived were right.
#[test]
fn a_host_that_is_switched_off_is_an_error_to_its_peers() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("off");
    let quiet = Quiet::begin(&guest);
    let config = env::temp_dir().join("off.toml");
    fs::write(&config, "trust_fabric = [\"10.9.0.0/24\"]\n").expect("a configuration");
    let serve = |port: usize, how| Blocks::serve(&guest, &config, PORTS[port], how);
    let connect = |port: usize, how| Blocks::connect(&guest, &config, PORTS[port], how);
    let ends = match guest.role {
        Role::A => {
            let servers = [serve(0, ""), serve(1, "back")];
            guest.meet("listening");
            let [sink, echo] = servers;
            [sink, echo, connect(2, "send")]
        }
        Role::B => {
            let reader = serve(2, "");
            guest.meet("listening");
            [connect(0, "send"), connect(1, "echo"), reader]
        }
    };
    while !all_are_on_rdma(&guest) {
        thread::park_timeout(Duration::from_millis(20));
    }
    if guest.role == Role::B {
        // A direction that is on TCP at that moment, as a slow reader's may be, would go on for a
        // quarter of an hour.
        fs::write("/proc/sys/net/ipv4/tcp_retries2", "3").expect("a setting");
    }
    if let Quiet::Waits(waiting) = &quiet {
        waiting.all_have_probed(&guest);
    }
    guest.meet("over rdma");
    if guest.role == Role::A {
        switch_off();
    }
    for (end, port) in ends.into_iter().zip(PORTS) {
        let outcome = end.outcome();
        println!("{port}: {outcome}");
        let is_error = ["ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "EPIPE"];
        assert!(is_error.contains(&outcome.as_str()), "{port}: {outcome}");
    }
    if let Quiet::Waits(waiting) = quiet {
        waiting.all_have_timed_out();
    }
}
