//! Servers of tests: a port for each, and the moment from which it can be connected to.

use crate::Running;
use std::ffi::OsString;
use std::fs;
use std::io::{ErrorKind, Read};
use std::net::{IpAddr, UdpSocket};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// A port of `ip` that no socket has, and that no other test gets while this process runs.
///
/// # Panics
/// If there is none, or `ip` is no address of this machine.
#[must_use]
pub fn free_port(ip: IpAddr) -> u16 {
    loop {
        let port = rsock_test_ports::reserved();
        match UdpSocket::bind((ip, port)) {
            Ok(_) => return port,
            // A socket that has found itself a port has this one.
            Err(e) if e.kind() == ErrorKind::AddrInUse => {}
            Err(e) => panic!("{ip} is no address of this machine: {e}"),
        }
    }
}

/// Waits until `server` listens, which `is_listening` asks the kernel.
///
/// # Panics
/// If it ends before.
pub fn await_listening(server: &mut Running, is_listening: impl FnMut() -> bool) {
    await_by_looks(server, Duration::from_millis(2), is_listening);
}

/// As [`await_listening`], with a pause between two looks: the server needs the CPU that they take.
fn await_by_looks(server: &mut Running, pause: Duration, mut is_listening: impl FnMut() -> bool) {
    while !is_listening() {
        if let Some(status) = server.try_wait().expect("its state") {
            let mut said = String::new();
            if let Some(mut errors) = server.stderr.take() {
                let _ = errors.read_to_string(&mut said);
            }
            panic!("the server ended before it listened: {status}: {said}");
        }
        thread::park_timeout(pause);
    }
}

/// Waits until `server` listens on `port` of an RDMA device, as the kernel's connection manager
/// sees it.
///
/// # Panics
/// If it ends before; without the program `rdma`.
pub fn await_rdma_listener(port: u16, server: &mut Running) {
    let address = format!("{port} ");
    // In an emulated guest a look is a program's start, as long as the server's own.
    await_by_looks(server, Duration::from_millis(30), || {
        let listing = Command::new("rdma").args(["resource", "show", "cm_id"]).output();
        let listing = listing.expect("the kernel's list");
        let listing = String::from_utf8_lossy(&listing.stdout).into_owned() + "\n";
        listing.lines().any(|line| line.contains("LISTEN") && line.contains(&address))
    });
    // It is in the list a moment before connects reach it. C's rsockets then take them in a thread
    // of their own, with the options of that moment, which `riostream` sets after it listens. So
    // until it waits with all of its threads; one that never sleeps needs far less than two ticks
    // of CPU time for that.
    let pid = server.id();
    let before = cpu_ticks(pid);
    await_listening(server, || is_at_rest(pid) || cpu_ticks(pid) >= before + 2);
}

/// CPU time of a process, in ticks of 10 ms; of one that is gone, 0.
fn cpu_ticks(pid: u32) -> u64 {
    // proc(5): the name may have spaces and ends with the last parenthesis; of the fields after it
    // the 12th and the 13th are time in the program and in the kernel.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

/// Whether all threads of a process sleep at one moment, and none in `write(2)`, by which librdmacm
/// has the kernel do everything.
fn is_at_rest(pid: u32) -> bool {
    // A thread that sleeps at both looks, and has not been taken from a CPU between them, has slept
    // all the time between.
    let before = resting_threads(pid);
    before.is_some() && before == resting_threads(pid)
}

/// How often each thread of a process has left a CPU; `None` if one does not sleep as
/// [`is_at_rest`] says.
fn resting_threads(pid: u32) -> Option<Vec<(OsString, String)>> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let resting = threads.map(|thread| {
        let thread = thread.ok()?;
        // proc(5): the call's number first, or a word if it runs or waits for a CPU.
        let call = fs::read_to_string(thread.path().join("syscall")).ok()?;
        let number: i64 = call.split(' ').next()?.parse().ok()?;
        let status = fs::read_to_string(thread.path().join("status")).ok()?;
        let switches: String =
            status.lines().filter(|line| line.contains("ctxt_switches")).collect();
        (number != libc::SYS_write).then(|| (thread.file_name(), switches))
    });
    let mut resting: Vec<_> = resting.collect::<Option<_>>()?;
    resting.sort();
    Some(resting)
}

/// Waits until `server` listens on `port` of TCP.
///
/// # Panics
/// If it ends before; without the kernel's list.
pub fn await_tcp_listener(port: u16, server: &mut Running) {
    await_listening(server, || has_tcp_listener(port));
}

/// Whether a socket listens on `port` of TCP, by the kernel's lists, without a connection to it.
///
/// # Panics
/// Without the list.
#[must_use]
pub fn has_tcp_listener(port: u16) -> bool {
    any_local(&["/proc/net/tcp", "/proc/net/tcp6"], port, |state| state == "0A")
}

/// Waits until the kernel has a UDP socket on `port`.
///
/// # Panics
/// If `server` ends before; without the kernel's list.
pub fn await_udp_socket(port: u16, server: &mut Running) {
    await_listening(server, || any_local(&["/proc/net/udp"], port, |_| true));
}

/// Whether one of the kernel's lists has a socket on local `port` whose state is as wanted.
fn any_local(lists: &[&str], port: u16, is_wanted: impl Fn(&str) -> bool) -> bool {
    let ending = format!(":{port:04X}");
    lists.iter().any(|list| {
        let sockets = match fs::read_to_string(list) {
            // A machine without IPv6 has no list for it.
            Err(_) if list.ends_with('6') => return false,
            sockets => sockets.expect("the kernel's list"),
        };
        sockets.lines().any(|line| {
            let mut fields = line.split_whitespace().skip(1);
            fields.next().is_some_and(|local| local.ends_with(&ending))
                && fields.nth(1).is_some_and(&is_wanted)
        })
    })
}
