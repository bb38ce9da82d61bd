//! Two hosts on one wire, each with an RDMA device. `cargo xtask test` runs this in two guests of
//! the lab at once.

mod hosts_claims;
mod hosts_connects;
mod hosts_datagrams;
mod hosts_faults;
mod hosts_threads;
mod hosts_tokio;
mod malformed;

use rsock_core::accelerate::FallbackReason;
use rsock_core::metrics::{self, StreamMetrics};
use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{
    Blocks, Running, Watchdog, assert_worked, await_rdma_listener, await_that, await_udp_socket,
    c_library, has_tcp_listener, packets_received, preload_library, tools,
};
use std::env;
use std::fs;
use std::net::IpAddr;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

/// `rstream` of rdmacm-utils: over its own rsockets, or over `librsock.so`.
fn rstream(with_librsock: bool, args: &[&str]) -> Running {
    let mut command = Command::new("rstream");
    if with_librsock {
        command.env("LD_PRELOAD", c_library());
    }
    command.args(args).args(["-T", "b", "-T", "v"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(&mut command).expect("rstream starts")
}

/// Guest b's client, over C's rsockets or ours, and guest a's server over the other.
fn rstream_between_hosts(name: &'static str, server_is_ours: bool) {
    const PORT: u16 = 7471;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin(name);
    for (i, [size, count, iterations]) in
        [["1", "10", "20"], ["70000", "5", "4"], ["3000001", "2", "2"]].into_iter().enumerate()
    {
        let size = ["-p", &PORT.to_string(), "-S", size, "-C", count, "-I", iterations];
        let run = match guest.role {
            Role::A => {
                let ip = guest.ip().to_string();
                let mut server =
                    rstream(server_is_ours, &[&size[..], &["-b", ip.as_str()]].concat());
                await_rdma_listener(PORT, &mut server);
                guest.meet(&format!("listening-{i}"));
                server
            }
            Role::B => {
                guest.meet(&format!("listening-{i}"));
                let ip = guest.peer_ip().to_string();
                rstream(!server_is_ours, &[&size[..], &["-s", ip.as_str()]].concat())
            }
        };
        let out = run.output().expect("its end");
        let said = String::from_utf8_lossy(&out.stdout);
        let complained = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{}\n{said}{complained}", out.status);
        assert!(said.lines().any(|line| line.starts_with("custom")), "no result in\n{said}");
        guest.meet(&format!("done-{i}"));
    }
}

#[test]
fn c_rsockets_connect_to_rsock_on_another_host() {
    rstream_between_hosts("c-connects", true);
}

#[test]
fn rsock_connects_to_c_rsockets_on_another_host() {
    rstream_between_hosts("we-connect", false);
}

/// What a host's configuration says of the other.
#[derive(Clone, Copy, Debug)]
enum Trust {
    Nothing,
    Network,
    Key(&'static str),
}

/// A configuration file.
fn config(name: &str, trust: Trust) -> PathBuf {
    let file = env::temp_dir().join(format!("{name}.toml"));
    let text = match trust {
        Trust::Nothing => String::new(),
        Trust::Network => "trust_fabric = [\"10.9.0.0/24\", \"fd09::/64\"]\n".to_owned(),
        Trust::Key(key) => {
            let place = env::temp_dir().join(format!("{name}.key"));
            fs::write(&place, key).expect("a key");
            fs::set_permissions(&place, fs::Permissions::from_mode(0o600)).expect("its mode");
            format!("key_file = {place:?}\n")
        }
    };
    fs::write(&file, text).expect("a configuration");
    file
}

/// A program with the preload library.
fn with_shim(program: &str, config: &Path) -> Command {
    let mut command = tools::require(program).command();
    command.env("LD_PRELOAD", preload_library()).env("RSOCK_CONFIG", config);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

const BLOCKS: &str = "7500";

/// The connections of this guest's programs with the other.
fn connections(guest: &Guest) -> Vec<StreamMetrics> {
    let peer = guest.peer_ip();
    let (processes, _) = metrics::read_all().expect("the processes");
    let all = processes.into_iter().flat_map(|process| process.connections);
    all.filter(|c| c.peer.ip() == peer).collect()
}

/// Waits until `is_meant` holds for one of them.
fn await_connection(guest: &Guest, is_meant: impl Fn(&StreamMetrics) -> bool) {
    await_that(|| connections(guest).iter().any(&is_meant));
}

fn has_used_rdma(c: &StreamMetrics) -> bool {
    let path = metrics::Transport::Rdma as usize;
    c.tx.bytes[path] + c.rx.bytes[path] > 0
}

/// Waits until a connection has left TCP.
fn is_over_rdma(guest: &Guest) {
    await_connection(guest, has_used_rdma);
}

/// Begins to send blocks from guest b to a.
fn begin_transfer(guest: &Guest, trust: Trust, how: &str, client: &str) -> Blocks {
    let python = || with_shim("python3", &config(BLOCKS, trust));
    match guest.role {
        Role::A => {
            let server = Blocks::serve(guest, python(), BLOCKS, how);
            guest.meet("listening");
            server
        }
        Role::B => {
            guest.meet("listening");
            let to = guest.peer_ip().to_string();
            Blocks::start(python(), &[client, &to, BLOCKS])
        }
    }
}

/// Sends blocks from guest b to a; what both ends said: a's, then b's. `seen` is called in both
/// while the transfer goes on.
fn transfer(
    guest: &Guest,
    trust: Trust,
    how: &str,
    client: &str,
    seen: impl FnOnce(&Guest),
) -> [String; 2] {
    let blocks = begin_transfer(guest, trust, how, client);
    seen(guest);
    guest.meet("seen");
    blocks.end(guest)
}

fn assert_all_arrived([received, sent]: &[String; 2]) {
    assert!(sent.ends_with(" end") && sent == received, "sent: {sent}, received: {received}");
}

#[test]
fn a_forking_server_pairs_in_the_child() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("forking");
    let ends = transfer(&guest, Trust::Network, "fork", "send", is_over_rdma);
    assert_all_arrived(&ends);
}

#[test]
fn hosts_that_share_a_key_pair_and_bytes_go_both_ways() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("key");
    let key = Trust::Key("a key that both hosts have");
    let ends = transfer(&guest, key, "back", "echo", is_over_rdma);
    assert_all_arrived(&ends);
}

#[test]
fn hosts_that_do_not_trust_each_other_stay_on_tcp_and_say_so() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("no-trust");
    let ends = transfer(&guest, Trust::Nothing, "", "send", |guest| {
        await_connection(guest, |c| c.fallback == Some(FallbackReason::NoTrust));
    });
    assert_all_arrived(&ends);
}

#[test]
fn a_host_with_another_key_is_refused() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin("other-key");
    let key = match guest.role {
        Role::A => "the key of the first host",
        Role::B => "the key of the second host",
    };
    let ends = transfer(&guest, Trust::Key(key), "", "send", |guest| {
        if guest.role == Role::A {
            await_connection(guest, |c| c.fallback == Some(FallbackReason::Untrusted));
        }
    });
    assert_all_arrived(&ends);
}

/// Runs `clients` in guest b, one after the other, against a `server` in guest a at each of
/// `ports`. Each must be seen on RDMA; what they said.
fn programs(
    name: &'static str,
    server: [&str; 2],
    ports: Range<u16>,
    clients: &[&str],
) -> Vec<String> {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let guest = Guest::begin(name);
    let config = config(name, Trust::Network);
    if guest.role == Role::A {
        let said = guest.file("server");
        let start = |port| {
            let mut command = with_shim(server[0], &config);
            command.args(arguments(server[1], guest.ip(), port));
            let [out, err] = [(); 2].map(|()| said.try_clone().expect("a descriptor"));
            command.stdout(out).stderr(err);
            Running::spawn(&mut command).expect("the server starts")
        };
        let _servers: Vec<_> = ports.clone().map(start).collect();
        for port in ports {
            await_that(|| has_tcp_listener(port));
        }
        guest.meet("listening");
        guest.meet("done");
        return Vec::new();
    }
    guest.meet("listening");
    let mut ports = ports.cycle();
    let run = |&client: &&str| seen_on_rdma(&guest, &config, client, &mut ports);
    let all = clients.iter().map(run).collect();
    guest.meet("done");
    all
}

/// The words of a command line, with the address and the port in their places.
fn arguments(line: &str, ip: IpAddr, port: u16) -> Vec<String> {
    let [ip, port] = [ip.to_string(), port.to_string()];
    line.split_whitespace().map(|word| word.replace("IP", &ip).replace("PORT", &port)).collect()
}

/// Runs `client` for so many seconds, in the place of `LONG`, that it is seen on RDMA; what it
/// said. Finding the peer may take longer than a short run: a lost request is repeated after
/// seconds.
fn seen_on_rdma(
    guest: &Guest,
    config: &Path,
    client: &str,
    ports: &mut impl Iterator<Item = u16>,
) -> String {
    let mut seconds = 3;
    loop {
        let port = ports.next().expect("a port");
        let (program, words) = client.split_once(' ').expect("a program and its arguments");
        let mut command = with_shim(program, config);
        let words = words.replace("LONG", &seconds.to_string());
        command.args(arguments(&words, guest.peer_ip(), port));
        let mut client = Running::spawn(&mut command).expect("the client starts");
        let mut last = Vec::new();
        let is_seen = loop {
            let now = connections(guest);
            if now.iter().any(has_used_rdma) {
                break true;
            }
            if client.try_wait().expect("its state").is_some() {
                break false;
            }
            last = Some(now).filter(|all| !all.is_empty()).unwrap_or(last);
            thread::park_timeout(Duration::from_millis(20));
        };
        let out = client.output().expect("its end");
        let said = String::from_utf8_lossy(&out.stdout).into_owned();
        let complained = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{command:?}: {}\n{said}{complained}", out.status);
        if is_seen {
            return said;
        }
        assert!(seconds < 40, "{command:?} ended without having left TCP: {last:?}");
        seconds *= 2;
    }
}

/// Netserver forks for each connection; its client asks over the first what it measures over
/// another.
#[test]
fn netperf() {
    let said = programs(
        "netperf",
        ["netserver", "-D -4 -L IP -p PORT"],
        12865..12866,
        &[
            "netperf -4 -H IP -p PORT -P 0 -l LONG -t TCP_STREAM",
            "netperf -4 -H IP -p PORT -P 0 -l LONG -t TCP_MAERTS",
            "netperf -4 -H IP -p PORT -P 0 -l LONG -t TCP_RR",
        ],
    );
    for result in said {
        let numbers: Vec<f64> = result.split_whitespace().flat_map(str::parse).collect();
        assert!(numbers.len() >= 5 && numbers[4] > 0.0, "{result}");
    }
}

/// The arguments of `tests/scripts/services.py`.
fn services_script(part: &str, last: &str) -> String {
    format!("{}/scripts/services.py {part} PORT {last} IP", env!("CARGO_MANIFEST_DIR"))
}

/// The client waits in epoll for several connections at once, and compares every byte.
fn services(name: &'static str, server: [&str; 2], ports: Range<u16>, part: &str) {
    programs(name, server, ports, &[&format!("python3 {}", services_script(part, "LONG"))]);
}

#[test]
fn asyncio_uses_rdma_although_it_waits_in_epoll() {
    services("asyncio", ["python3", &services_script("server", "0")], 7600..7601, "echo");
}

#[test]
fn redis_uses_rdma_although_it_waits_in_epoll() {
    let arguments = "--bind IP --port PORT --protected-mode no";
    services("redis", ["redis-server", arguments], 6379..6380, "redis");
}

/// A port for each try: a server closes its listener after a test, and resets connections that are
/// not accepted by then.
#[test]
fn iperf3() {
    let clients = ["iperf3 -c IP -p PORT -t LONG", "iperf3 -c IP -p PORT -t LONG -R -P 2 -l 2000"];
    let said = programs("iperf3", ["iperf3", "-s -p PORT"], 5201..5211, &clients);
    assert!(said.iter().all(|text| text.contains("receiver")), "{said:?}");
}
