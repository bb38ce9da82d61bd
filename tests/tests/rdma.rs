//! Unmodified `rstream` and `riostream` of rdmacm-utils on an RDMA device: over librdmacm's
//! rsockets at one end and over `librsock.so` at the other, in both roles, and over `librsock.so`
//! at both; a program of ours and netperf in the same way; Rust programs and programs of TCP under
//! the preload library with C's for their peers; programs of one host on its device; TLS in the
//! kernel; and peers that lie. `cargo xtask test` runs this in the lab.

mod c_program;
mod hostile_peer;
mod malformed;
mod pair;
mod rdma_accelerated;
mod rdma_control;
mod rdma_ends;
mod rdma_kernel_tls;
mod rdma_plain;
mod rdma_rust;

use hostile_peer::{Answered, Fixture, REFUSED, Raw, Victim, hostile_peer_tests};
use rsock_cm::rdma::RdmaManager;
use rsock_proto::RemoteSge;
use rsock_tests::{Running, Watchdog, assert_worked, await_rdma_listener, c_library, tools};
use rsock_verbs::SendOp;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Peers that lie, on the lab's device.
struct Rdma;

impl Fixture for Rdma {
    type Manager = RdmaManager;

    fn manager(&self) -> RdmaManager {
        RdmaManager
    }

    fn address(&self) -> IpAddr {
        IPV4.parse().expect("address")
    }
}

hostile_peer_tests!(Rdma);

/// The device's two addresses are two hosts to a process that serves both.
#[test]
fn keys_of_streams_with_another_host_open_nothing() {
    let _watchdog = hostile_peer::watchdog();
    let elsewhere = Victim::new(IPV6.parse().expect("address"));
    let mut other = hostile_peer::honest(&RdmaManager, elsewhere.address);
    hostile_peer::assert_served(&mut other, "nothing");
    let RemoteSge { addr, key, .. } = other.theirs.data_buf;
    let write = |raw: &mut Raw<RdmaManager>| {
        raw.post(SendOp::WriteImm { remote: addr, rkey: key, imm: 8 }, b"not here");
        raw.failure();
    };
    let victim = Victim::new(Rdma.address());
    hostile_peer::attack(&Rdma, &victim, "a key of another host", |_| (), write, &REFUSED);
    hostile_peer::assert_served(&mut other, "a key of another host");
}

/// It has given credits, and posted no receives: the device repeats what meets none without end,
/// and says nothing. The victim sends, then waits for more, as a server does.
#[test]
fn a_peer_that_never_takes_a_message_is_given_up() {
    let _watchdog = hostile_peer::watchdog();
    let victim = Victim::new(Rdma.address());
    let mut bystander = hostile_peer::honest(&RdmaManager, victim.address);
    let silent = Raw::connect_with(&RdmaManager, victim.address, |_| (), 0);
    let Answered::Connected(mut silent) = silent else { panic!("rejected") };
    silent.send(b"answer this");
    assert_eq!(victim.endings.recv(), Ok(Err(libc::ETIMEDOUT)));
    hostile_peer::assert_served(&mut bystander, "a peer that takes nothing");
}

/// What a program's rsockets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Over {
    Librdmacm,
    /// With the choice of device left to it.
    Librsock,
    /// On RDMA devices only.
    LibrsockOnRdma,
}

use Over::{Librdmacm, Librsock, LibrsockOnRdma};

/// A server's, then its client's.
const PAIRS: [[Over; 2]; 3] = [[Librdmacm, Librsock], [Librsock, Librdmacm], [Librsock, Librsock]];

/// COMPAT: C's `rpoll` reports the peer's end as soon as it knows, beside unread bytes, and
/// the programs give up on it. So a client that polls is one of ours.
const OUR_CLIENT: [[Over; 2]; 2] = [PAIRS[0], PAIRS[2]];

const IPV4: &str = "10.9.0.1";
const IPV6: &str = "fd09::1";

fn command(over: Over, program: &str, port: u16, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    if over != Librdmacm {
        command.env("LD_PRELOAD", c_library());
    }
    if over == LibrsockOnRdma {
        command.env("RSOCK_DEVICE", "rdma");
    }
    command
        .args(["-p", &port.to_string()])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn free_port(ip: &str) -> u16 {
    rsock_tests::free_port(ip.parse().expect("address"))
}

fn run(program: &str, [server, client]: [Over; 2], ip: &str, args: &[&str]) -> String {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let port = free_port(ip);
    let what = format!("{program} {args:?}, {server:?} serves {client:?}");
    let mut serving = command(server, program, port, args);
    let mut serving = Running::spawn(serving.args(["-b", ip])).expect("the server starts");
    await_rdma_listener(port, &mut serving);
    let mut connecting = command(client, program, port, args);
    let connecting = Running::spawn(connecting.args(["-s", ip])).expect("the client starts");
    let out = connecting.output().expect("the client ends");
    if !out.status.success() {
        // The client may only report what the server did.
        panic!("{what}: client: {out:?}, server: {:?}", serving.output());
    }
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_worked(&format!("{what}: server"), &serving.output().expect("the server ends"));
    assert!(said.lines().any(|line| line.starts_with("custom")), "{what}: no result in\n{said}");
    said
}

/// So many transfers of that size at a time, so often.
const SIZES: [[&str; 3]; 4] =
    [["1", "10", "20"], ["70000", "5", "4"], ["65537", "2", "1"], ["4194304", "1", "1"]];

/// One run per pair and size.
fn sizes(program: &str, mode: &[&str], pairs: &[[Over; 2]], sizes: &[[&str; 3]]) {
    let ip = if mode.contains(&"ipv6") { IPV6 } else { IPV4 };
    for &pair in pairs {
        for [size, count, iterations] in sizes {
            let size = ["-S", size, "-C", count, "-I", iterations];
            run(program, pair, ip, &[mode, &size].concat());
        }
    }
}

macro_rules! modes {
    ($($program:ident { $($mode:ident: $args:expr, $pairs:ident, $sizes:expr;)* })*) => {
        $(
            mod $program {
                $(
                    #[test]
                    fn $mode() {
                        super::sizes(
                            stringify!($program), &$args, &super::$pairs, &super::SIZES[$sizes],
                        );
                    }
                )*
            }
        )*
    };
}

// `-i` is not among them: it means something only in runs of the programs' own sizes.
modes! {
    rstream {
        blocking_verified: ["-T", "b", "-T", "v"], PAIRS, ..2;
        busy_verified: ["-T", "v"], PAIRS, ..;
        polled_verified: ["-T", "a", "-T", "v"], OUR_CLIENT, ..;
        nonblocking_polled: ["-T", "n", "-T", "a", "-T", "v"], OUR_CLIENT, ..;
        small_buffers: ["-B", "4096", "-T", "b", "-T", "v"], PAIRS, ..;
    }
    riostream {
        blocking_verified: ["-T", "b", "-T", "v"], PAIRS, ..;
        busy_verified: ["-T", "v"], PAIRS, ..2;
        ipv6: ["-f", "ipv6", "-T", "b", "-T", "v"], PAIRS, 1..;
    }
}

/// A peer that is there is not missed.
#[test]
fn keepalive_goes_on_beside_the_bytes() {
    for pair in PAIRS {
        let size = ["-S", "4096", "-C", "10", "-I", "20"];
        let said =
            run("rstream", pair, IPV4, &[&["-k", "1", "-T", "b", "-T", "v"], &size[..]].concat());
        assert!(said.lines().any(|line| line == "Keepalive: ON"), "{pair:?}:\n{said}");
    }
}

#[test]
fn transfers_longer_than_any_buffer_arrive() {
    for pair in PAIRS {
        for size in ["1048576", "3000001"] {
            let args = ["-T", "b", "-T", "v", "-S", size, "-C", "2", "-I", "2"];
            run("rstream", pair, IPV4, &args);
        }
    }
}

#[test]
fn every_size_arrives_odd_ones_too() {
    for pair in PAIRS {
        for size in ["63", "65", "4095", "65537", "131073", "4194304"] {
            let args = ["-T", "b", "-T", "v", "-S", size, "-C", "2", "-I", "1"];
            run("rstream", pair, IPV4, &args);
        }
    }
}

/// One message to and fro, many times; and many one way, once; the address resolved by rdma_cm.
#[test]
fn messages_go_one_at_a_time_or_many_in_a_row() {
    for pair in PAIRS {
        for [size, count, iterations] in [["64", "1", "100"], ["4096", "200", "1"]] {
            let size = ["-S", size, "-C", count, "-I", iterations];
            run("rstream", pair, IPV4, &[&["-T", "b", "-T", "r", "-T", "v"], &size[..]].concat());
        }
    }
}

/// librdmacm's preload library gives netperf rsockets: its own at one end, ours at the other.
#[test]
fn netperf_runs_through_librdmacms_own_preload_library() {
    let library = Path::new("/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so");
    assert!(library.is_file(), "the lab has it");
    let dress = |over: Over, program: &str, port: u16| {
        let mut command = tools::require(program).command();
        let mut preload = OsString::new();
        if over != Librdmacm {
            preload.push(c_library());
            preload.push(":");
            command.env("RSOCK_DEVICE", "rdma");
        }
        preload.push(library);
        command.env("LD_PRELOAD", preload).args(["-4", "-p", &port.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    for [server, client] in [PAIRS[0], PAIRS[1]] {
        let _watchdog = Watchdog::new(Duration::from_secs(120));
        let port = free_port(IPV4);
        let mut serving = dress(server, "netserver", port);
        let mut serving = Running::spawn(serving.args(["-D", "-f", "-N", "-L", IPV4]))
            .expect("the server starts");
        await_rdma_listener(port, &mut serving);
        for test in ["TCP_RR", "TCP_STREAM"] {
            let mut netperf = dress(client, "netperf", port);
            netperf.args(["-H", IPV4, "-l", "1", "-P", "0", "-v", "0", "-t", test]);
            let out = Running::spawn(&mut netperf).expect("it starts").output().expect("it ends");
            let said = assert_worked(&format!("{test}, {server:?} serves {client:?}"), &out);
            let figure = said.split_whitespace().next_back().and_then(|word| word.parse().ok());
            assert!(figure.is_some_and(|figure: f64| figure > 0.0), "{test}: {said}");
        }
    }
}

/// A listener is on every device, and a client looks on all of them.
#[test]
fn the_device_is_found_without_a_setting() {
    let others = [[Librdmacm, Librsock], [Librsock, Librdmacm], [Librsock, LibrsockOnRdma]];
    for pair in others.into_iter().chain([[LibrsockOnRdma, Librsock]]) {
        let args = ["-T", "b", "-T", "v", "-S", "5000", "-I", "5", "-C", "3"];
        run("rstream", pair, IPV4, &args);
    }
}

#[test]
fn programs_transfer_over_ipv6() {
    for pair in PAIRS {
        for size in ["1", "63", "20000", "65537", "1048577", "4194304"] {
            let args = ["-f", "ipv6", "-T", "b", "-T", "v", "-S", size, "-I", "2", "-C", "2"];
            run("rstream", pair, IPV6, &args);
        }
    }
}
