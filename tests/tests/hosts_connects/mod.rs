//! The connect over RDMA that follows a TCP connection comes to nothing, or the device goes while
//! it is under way: every byte arrives over TCP, and `rsock stat` says why.
//!
//! Each test has two clients at once, of which one never blocks, from its TCP connect on. Every
//! test leaves the device as it found it.

use super::hosts_faults::{REMOVE, bring_device_back, start};
use super::{Trust, config, connections, has_used_rdma, with_shim};
use rsock_core::accelerate::FallbackReason;
use rsock_core::metrics::Transport;
use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{
    Blocks, Running, Watchdog, assert_worked, await_that, rsock_command, run, tools,
};
use std::fs;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// The server's port, and what the client's environment has.
const CLIENTS: [(&str, Option<&str>); 2] = [("7510", None), ("7511", Some("NONBLOCKING"))];

/// Most bytes of a call: a process searches for its peer for a thousand calls at least.
const PIECE: &str = "1024";

fn watchdog() -> Watchdog {
    Watchdog::new(Duration::from_secs(240))
}

/// The end that receives.
#[derive(Clone, Copy, Debug)]
enum Server {
    /// A program with rsock.
    Ours,
    /// One without, which reads nothing until it is asked how it ended.
    PlainAndLate,
}

/// Begins to send blocks from guest b to a, from each client. `trust` is this guest's.
fn begin(guest: &Guest, server: Server, trust: Trust) -> [Blocks; 2] {
    let with_rsock = || with_shim("python3", &config("connects", trust));
    match guest.role {
        Role::A => {
            let (ours, how) = match server {
                Server::Ours => (true, ""),
                Server::PlainAndLate => (false, "late"),
            };
            let servers = CLIENTS.map(|(port, _)| {
                let mut plain = tools::require("python3").command();
                plain.stdout(Stdio::piped());
                let mut command = if ours { with_rsock() } else { plain };
                command.env("PIECE", PIECE);
                Blocks::serve(guest, command, port, how)
            });
            guest.meet("listening");
            servers
        }
        Role::B => {
            guest.meet("listening");
            CLIENTS.map(|(port, variable)| {
                let mut command = with_rsock();
                command.envs(variable.map(|name| (name, "1"))).env("PIECE", PIECE);
                Blocks::start(command, &["send", &guest.peer_ip().to_string(), port])
            })
        }
    }
}

/// Ends what [`begin`] began; everything must have arrived.
fn end(guest: &Guest, all: [Blocks; 2]) {
    let own = all.map(Blocks::outcome);
    guest.give(&own.join("\n"));
    guest.meet("over");
    assert_eq!(own.join("\n"), guest.take());
    let is_whole = |said: &String| said.ends_with(" end") && said != "0 end";
    assert!(own.iter().all(is_whole), "{own:?}");
}

/// Waits until both connections have given RDMA up for `reason`, unused, and `rsock stat` says so.
fn await_pinned(guest: &Guest, reason: FallbackReason) {
    await_that(|| connections(guest).iter().filter(|c| c.fallback == Some(reason)).count() == 2);
    assert!(!connections(guest).iter().any(has_used_rdma));
    let out = Command::new(rsock_command()).arg("stat").output().expect("rsock runs");
    let said = assert_worked("rsock stat", &out);
    assert_eq!(said.matches(reason.describe()).count(), 2, "{said}");
}

/// Waits until the kernel lists two `objects` of which `word` is said.
fn await_two(object: &str, word: &str) {
    await_that(|| {
        let listing = Command::new("rdma").args(["resource", "show", object]).output();
        let listing = String::from_utf8(listing.expect("the list").stdout).expect("text");
        listing.lines().filter(|line| line.contains(word)).count() == 2
    });
}

/// What `process` has open of the kernel's RDMA is out of the way of a program that counts or
/// closes its descriptors.
fn assert_out_of_the_way(process: u32) {
    let mut n = 0;
    for entry in fs::read_dir(format!("/proc/{process}/fd")).expect("its descriptors") {
        let entry = entry.expect("a descriptor");
        let what = fs::read_link(entry.path()).unwrap_or_default();
        if what.to_string_lossy().contains("infiniband") {
            let number: u32 = entry.file_name().to_string_lossy().parse().expect("a number");
            assert!(number > 64, "{number} is {what:?}");
            n += 1;
        }
    }
    assert!(n > 0, "none is open");
}

/// Waits until no end has sent anything for a moment: there is no room.
fn await_full(guest: &Guest) {
    let sent = || -> Vec<_> {
        connections(guest).iter().map(|c| c.tx.bytes[Transport::Tcp as usize]).collect()
    };
    let mut before = Vec::new();
    await_that(|| {
        let now = sent();
        thread::park_timeout(Duration::from_millis(500));
        now.len() == 2 && now == std::mem::replace(&mut before, sent())
    });
}

/// This guest's device, which has begun to go. The kernel waits for the processes that have used
/// it.
struct Going(Running);

impl Going {
    fn begin() -> Self {
        Self(start(REMOVE))
    }

    /// Puts it back once it has gone.
    fn undo(self) {
        assert!(self.0.wait().expect("its end").success());
        bring_device_back();
    }
}

/// This guest hears no RDMA packet, and everything else, until this value is dropped. Where they
/// arrive: the kernel's soft RoCE tries again without end to send what its own host drops.
struct KernelOnlyWaiter;

impl KernelOnlyWaiter {
    fn new() -> Self {
        run("tc qdisc add dev eth0 clsact");
        let this = Self;
        let which = "u32 match ip protocol 17 0xff match ip dport 4791 0xffff";
        run(&format!("tc filter add dev eth0 ingress protocol ip {which} action drop"));
        this
    }
}

impl Drop for KernelOnlyWaiter {
    fn drop(&mut self) {
        run("tc qdisc del dev eth0 clsact");
    }
}

#[test]
fn a_client_that_never_blocks_moves_to_rdma_as_one_that_does() {
    let _watchdog = watchdog();
    let guest = Guest::begin("never-blocks");
    let all = begin(&guest, Server::Ours, Trust::Network);
    await_that(|| connections(&guest).iter().filter(|c| has_used_rdma(c)).count() == 2);
    guest.meet("over rdma");
    end(&guest, all);
}

/// The clients trust no network, so none listens where the servers connect to.
#[test]
fn tcp_goes_on_when_the_connect_is_refused() {
    let _watchdog = watchdog();
    let guest = Guest::begin("refused");
    let (trust, reason) = match guest.role {
        Role::A => (Trust::Network, FallbackReason::NoPeer),
        Role::B => (Trust::Nothing, FallbackReason::NoTrust),
    };
    let all = begin(&guest, Server::Ours, trust);
    await_pinned(&guest, reason);
    guest.meet("pinned");
    end(&guest, all);
}

#[test]
fn tcp_goes_on_when_the_connect_is_rejected() {
    let _watchdog = watchdog();
    let guest = Guest::begin("rejected");
    let key = match guest.role {
        Role::A => "the key of the servers",
        Role::B => "the key of the clients",
    };
    let all = begin(&guest, Server::Ours, Trust::Key(key));
    if guest.role == Role::A {
        await_pinned(&guest, FallbackReason::Untrusted);
    }
    guest.meet("pinned");
    assert!(!connections(&guest).iter().any(has_used_rdma));
    end(&guest, all);
}

#[test]
fn tcp_goes_on_when_no_peer_answers_the_connect() {
    let _watchdog = watchdog();
    let guest = Guest::begin("unanswered");
    let waiter = KernelOnlyWaiter::new();
    guest.meet("waiting");
    let all = begin(&guest, Server::Ours, Trust::Network);
    await_pinned(&guest, FallbackReason::NoPeer);
    guest.meet("pinned");
    drop(waiter);
    end(&guest, all);
}

/// The device of guest `at` is gone before the programs start.
fn goes_on_without_the_device_of(name: &'static str, at: Role) {
    let _watchdog = watchdog();
    let guest = Guest::begin(name);
    if guest.role == at {
        run(REMOVE);
    }
    guest.meet("gone");
    let all = begin(&guest, Server::Ours, Trust::Network);
    if guest.role == at {
        await_pinned(&guest, FallbackReason::Remote);
        bring_device_back();
    }
    guest.meet("back");
    assert!(!connections(&guest).iter().any(has_used_rdma));
    end(&guest, all);
}

#[test]
fn tcp_goes_on_when_the_clients_device_is_gone() {
    goes_on_without_the_device_of("client-without", Role::B);
}

#[test]
fn tcp_goes_on_when_the_servers_device_is_gone() {
    goes_on_without_the_device_of("server-without", Role::A);
}

/// No server connects to the clients, which make no call: they wait for room.
#[test]
fn tcp_goes_on_when_the_device_goes_before_a_server_has_connected() {
    let _watchdog = watchdog();
    let guest = Guest::begin("gone-waiting");
    let all = begin(&guest, Server::PlainAndLate, Trust::Network);
    let mut going = None;
    if guest.role == Role::B {
        await_two("cm_id", "LISTEN");
        await_full(&guest);
        all.iter().for_each(|blocks| assert_out_of_the_way(blocks.id()));
        going = Some(Going::begin());
        await_pinned(&guest, FallbackReason::Remote);
    }
    guest.meet("pinned");
    end(&guest, all);
    if let Some(going) = going {
        going.undo();
    }
    guest.meet("back");
}
