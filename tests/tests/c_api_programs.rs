//! Unmodified programs over C rsockets, `rstream`, `riostream` and `udpong` of rdmacm-utils, with
//! `librsock.so` in the place of librdmacm's rsockets: server and client on the soft device.

use rsock_tests::{
    Running, Watchdog, assert_worked, await_listening, await_udp_socket, c_library, free_port,
    in_own_network, tools,
};
use std::fs;
use std::io;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Waits until a socket listens on `port`: the listener's name is in the kernel's list.
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

/// `rstream` sets the inline size in its default runs only, so without `-S`.
#[test]
fn programs_work_with_an_inline_size_of_zero() {
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
///
/// In a network of their own, whose UDP counts are theirs: in each way, a run goes past UDP for the
/// most part. Not each: where the two ends miss each other at first, a short run is over before
/// they try again.
#[test]
fn udpong_plays_over_shared_memory() {
    with_loopback_alone("udpong_plays_over_shared_memory", || {
        let _watchdog = Watchdog::new(Duration::from_secs(300));
        for mode in [&[][..], &["-T", "b"], &["-T", "a"], &["-T", "n"]] {
            for (size, count) in [("64", 1000), ("1400", 300)] {
                while udpong_by_udp(mode, size, count) >= count {}
            }
        }
    });
}

/// Plays once; how many of the messages, twice `count`, went by UDP.
fn udpong_by_udp(mode: &[&str], size: &str, count: u64) -> u64 {
    let ip = "127.0.0.1";
    let port = free_port(ip.parse().expect("an address"));
    let server = Running::spawn(command("udpong", port, mode).args(["-b", ip]));
    let mut server = server.expect("the server starts");
    await_udp_socket(port, &mut server);
    let before = sent_by_udp();
    let mut client = command("udpong", port, mode);
    client.args(["-s", ip, "-S", size, "-C", &count.to_string()]);
    let client = Running::spawn(&mut client).expect("the client starts");
    let client = client.output().expect("the client ends");
    let said = assert_worked(&format!("udpong {mode:?} {size}"), &client);
    assert!(said.lines().count() >= 2, "no result in\n{said}");
    sent_by_udp() - before
}

/// Datagrams that UDP has sent over IPv4 in this process's network.
fn sent_by_udp() -> u64 {
    let counts = fs::read_to_string("/proc/self/net/snmp").expect("the kernel's counts");
    let mut udp = counts.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let [names, values] = [(); 2].map(|()| udp.next().expect("UDP's counts"));
    let mut of_udp = names.split(' ').zip(values.split(' '));
    let (_, value) = of_udp.find(|(name, _)| *name == "OutDatagrams").expect("its name");
    value.parse().expect("a number")
}

/// Runs `test`, called `name`, in a process that has a network of its own, of which only loopback
/// works.
fn with_loopback_alone(name: &str, test: impl FnOnce()) {
    in_own_network(name, || {
        bring_loopback_up();
        test();
    });
}

fn bring_loopback_up() {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).expect("a socket");
    // SAFETY: all-zero is a valid `ifreq`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = from.cast_signed();
    }
    let up = libc::IFF_UP | libc::IFF_RUNNING;
    request.ifr_ifru.ifru_flags = i16::try_from(up).expect("flags");
    // SAFETY: `request` is an interface request, as SIOCSIFFLAGS wants.
    let r = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request) };
    assert_eq!(r, 0, "{}", io::Error::last_os_error());
}
