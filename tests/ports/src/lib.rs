//! Ports that a test has to itself.
//!
//! A port that the kernel has given out and that was closed again can be given to any other program
//! at once: a server that a test starts there may find it taken, and a connect that should be
//! refused may reach another server. The ports here lie outside of the range that the kernel gives
//! out (`net.ipv4.ip_local_port_range`), and one test process at a time has each of them.
//!
//! Below every other crate, and depended on by tests only.

#![forbid(unsafe_code)]

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr as IpSocketAddr};
use std::ops::RangeInclusive;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Mutex, PoisonError};

/// A port at which no socket of TCP or UDP is, and that no test gets again until this process ends.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn reserved() -> u16 {
    // SYNC: Relaxed, since each caller needs a number of its own and nothing else of the others.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let given_out = given_out();
    // Processes begin at different places, so that they seldom ask for the same port.
    let first = process::id().wrapping_mul(STEP) % N_PORTS;
    for _ in 0..N_PORTS {
        let n = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let Ok(port) = u16::try_from(u32::from(LOWEST) + (first + n) % N_PORTS) else { continue };
        if !given_out.contains(&port) && is_claimed(port) && is_free(port) {
            return port;
        }
    }
    panic!("every port outside of {given_out:?} is taken");
}

/// Claims a port against other tests in this network namespace, until this process ends. Whether it
/// was there to be claimed.
fn is_claimed(port: u16) -> bool {
    static CLAIMS: Mutex<Vec<UnixDatagram>> = Mutex::new(Vec::new());
    // The name belongs to the network namespace, as the port does, and goes with its socket.
    let claim = SocketAddr::from_abstract_name(format!("rsock-test-port-{port}"))
        .and_then(|name| UnixDatagram::bind_addr(&name));
    let Ok(claim) = claim else { return false };
    CLAIMS.lock().unwrap_or_else(PoisonError::into_inner).push(claim);
    true
}

/// Whether a server could listen on a port of any address, even one that does not set
/// `SO_REUSEADDR`: connections that have ended there lately are in its way.
fn is_free(port: u16) -> bool {
    let any = [IpAddr::from(Ipv4Addr::UNSPECIFIED), IpAddr::from(Ipv6Addr::UNSPECIFIED)];
    any.iter().all(|&ip| {
        [SocketType::STREAM, SocketType::DGRAM].iter().all(|&kind| {
            let family = if ip.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            // A program that another test starts meanwhile must not keep the port.
            let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None);
            match socket.and_then(|fd| bind(&fd, &IpSocketAddr::new(ip, port))) {
                Ok(()) => true,
                // A machine without IPv6.
                Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => ip.is_ipv6(),
                Err(_) => false,
            }
        })
    })
}

/// The ports that the kernel gives out, or none where that is all of them: a claimed port is then
/// better than nothing.
fn given_out() -> RangeInclusive<u16> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let mut ends = text.split_whitespace().filter_map(|end| end.parse().ok());
    let range = match (ends.next(), ends.next()) {
        (Some(first), Some(last)) => first..=last,
        _ => DEFAULT,
    };
    if *range.start() <= LOWEST && *range.end() == u16::MAX {
        RangeInclusive::new(1, 0)
    } else {
        range
    }
}

/// The kernel's own choice.
const DEFAULT: RangeInclusive<u16> = 32768..=60999;

/// Above the ports of the services that a machine may run.
const LOWEST: u16 = 10_000;

const N_PORTS: u32 = (u16::MAX - LOWEST) as u32 + 1;

/// Ports between the beginnings of two processes that follow each other.
const STEP: u32 = 251;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::{TcpListener, UdpSocket};
    use std::process::Command;
    use std::{env, thread};

    /// Tells this program to reserve this many ports, and to keep them until its input ends.
    const COUNT: &str = "RSOCK_TEST_PORTS";

    #[test]
    fn ports_are_the_callers_own_and_not_the_kernels() {
        let threads: Vec<_> = (0..4)
            .map(|_| thread::spawn(|| (0..50).map(|_| reserved()).collect::<Vec<_>>()))
            .collect();
        let ports: Vec<u16> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
        let different: BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), 200);
        let given_out = given_out();
        assert!(ports.iter().all(|port| !given_out.contains(port)), "{ports:?}, {given_out:?}");
    }

    #[test]
    fn two_processes_have_different_ports() {
        if env::var_os(COUNT).is_some() {
            let ports: Vec<String> = (0..20).map(|_| reserved().to_string()).collect();
            // A line of its own, whatever the harness has printed.
            println!("\nports {}", ports.join(" "));
            // The other process's run must come while these are held.
            let _ = std::io::stdin().read_line(&mut String::new());
            return;
        }
        let mut children: Vec<_> = (0..3)
            .map(|_| {
                let mut command = Command::new(env::current_exe().unwrap());
                command.args([
                    "--exact",
                    "tests::two_processes_have_different_ports",
                    "--nocapture",
                ]);
                command.env(COUNT, "1").stdin(process::Stdio::piped());
                command.stdout(process::Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let mut ports = Vec::new();
        for child in &mut children {
            use std::io::{BufRead, BufReader};
            let lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
            let line = lines.map(Result::unwrap).find(|line| line.starts_with("ports ")).unwrap();
            ports.extend(line.split(' ').skip(1).map(str::to_owned));
        }
        let different: BTreeSet<_> = ports.iter().collect();
        assert_eq!(different.len(), 60, "{ports:?}");
        for mut child in children {
            drop(child.stdin.take());
            assert!(child.wait().unwrap().success());
        }
    }

    #[test]
    fn a_port_in_use_is_not_free() {
        let port = reserved();
        assert!(is_free(port));
        let tcp = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert!(!is_free(port));
        drop(tcp);
        let udp = UdpSocket::bind(("127.0.0.1", port)).unwrap();
        assert!(!is_free(port));
        drop(udp);
        assert!(is_free(port));
        assert!(!is_claimed(port), "this process has it");
    }
}
