//! Two hosts on one wire, of which one is switched off while connections use RDMA. `cargo xtask
//! test` runs this in two guests of the lab, and only one of them comes back from it.

mod power_quiet;

use power_quiet::Quiet;
use rsock_core::metrics::{self, StreamMetrics};
use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{Blocks, Watchdog, await_that, preload_library, tools};
use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Python with the preload library.
fn python(config: &Path) -> Command {
    let mut command = tools::require("python3").command();
    command.env("LD_PRELOAD", preload_library()).env("RSOCK_CONFIG", config);
    command.env("KEEPALIVE", "1");
    command
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
    let serve = |port: usize, how| Blocks::serve(&guest, python(&config), PORTS[port], how);
    let peer = guest.peer_ip().to_string();
    let connect = |port: usize, how| Blocks::start(python(&config), &[how, &peer, PORTS[port]]);
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
    await_that(|| all_are_on_rdma(&guest));
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
        let outcome = end.own_outcome();
        println!("{port}: {outcome}");
        let is_error = ["ECONNRESET", "ETIMEDOUT", "EHOSTUNREACH", "EPIPE"];
        assert!(is_error.contains(&outcome.as_str()), "{port}: {outcome}");
    }
    if let Quiet::Waits(waiting) = quiet {
        waiting.all_have_timed_out();
    }
}
