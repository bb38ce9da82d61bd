//! Shared memory: what the device needs of the system, then a stream that uses it.

use super::{Device, Findings};
use crate::library;
use rsock_core::metrics::{self, FallbackReason, Transport};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, netlink, socket_with, sockopt};
use rustix::process::{Resource, getrlimit};
use std::fs;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

pub(super) fn look() -> Findings {
    let mut findings = Findings::new(Device::Soft);
    findings.check_switch(["tcp", "rdma"], "shared memory");
    memory(&mut findings);
    names(&mut findings);
    owners(&mut findings);
    descriptors(&mut findings);
    foreign(&mut findings);
    copies(&mut findings);
    program(&mut findings);
    if !findings.is_stopped() {
        stream(&mut findings);
    }
    findings
}

/// Checks that memory files can be made and sealed.
fn memory(findings: &mut Findings) {
    let make = || -> io::Result<()> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("rsock-doctor", flags)?;
        ftruncate(&file, 1 << 20)?;
        Ok(fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?)
    };
    match make() {
        Ok(()) => findings.fine("memory", "memory files can be made and sealed"),
        Err(e) => findings.stopped(
            "memory",
            format!("no sealed memory file can be made: {e}"),
            "let the container's seccomp profile allow memfd_create and fcntl(F_ADD_SEALS)",
        ),
    }
}

/// Checks abstract Unix sockets, over which two processes find each other, and the credentials that
/// the kernel gives of the peer.
fn names(findings: &mut Findings) {
    let connect_to_self = || -> io::Result<bool> {
        let name = SocketAddr::from_abstract_name(format!("rsock-doctor-{}", std::process::id()))?;
        let listener = UnixListener::bind_addr(&name)?;
        let client = UnixStream::connect_addr(&name)?;
        let (server, _) = listener.accept()?;
        let [ours, theirs] =
            [sockopt::socket_peercred(&client)?, sockopt::socket_peercred(&server)?];
        Ok(ours.uid == theirs.uid && ours.uid == rustix::process::geteuid())
    };
    match connect_to_self() {
        Ok(true) => findings.fine("names", "processes find each other by abstract Unix sockets"),
        Ok(false) => findings.stopped(
            "names",
            "the kernel names another user as the peer of our own socket",
            "run both ends in one user namespace",
        ),
        Err(e) => findings.stopped(
            "names",
            format!("no abstract Unix socket can be made and connected to: {e}"),
            "let AppArmor, Landlock or seccomp allow abstract Unix sockets",
        ),
    }
}

/// Checks that the kernel tells which process holds the other end of a TCP connection.
fn owners(findings: &mut Findings) {
    let protocol = Some(netlink::SOCK_DIAG);
    let flags = SocketFlags::CLOEXEC;
    match socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol) {
        Ok(_) => findings
            .fine("owners", "the kernel tells which user holds a TCP connection (sock_diag)"),
        Err(e) => findings.stopped(
            "owners",
            format!("the kernel does not tell which user holds a TCP connection (sock_diag): {e}"),
            "modprobe tcp_diag, or let the container have NETLINK_SOCK_DIAG sockets",
        ),
    }
}

/// Checks how many files this process may open.
fn descriptors(findings: &mut Findings) {
    /// A connection under the preload library takes two descriptors, and those of the library may
    /// be at most half of all.
    const ENOUGH: u64 = 1024;
    match getrlimit(Resource::Nofile).current {
        Some(limit) if limit < ENOUGH => findings.limited(
            "descriptors",
            format!(
                "{limit} open files at most; once half of them are in use, connections stay on TCP"
            ),
            "ulimit -n 65536, or LimitNOFILE=65536 for a service",
        ),
        limit => {
            let limit = limit.map_or("without limit".to_owned(), |n| format!("{n} at most"));
            findings.fine("descriptors", format!("open files: {limit}"));
        }
    }
}

/// Checks that a program can expose memory to its peer that rsock did not allocate.
fn foreign(findings: &mut Findings) {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    match scope.trim() {
        "" | "0" | "1" => findings
            .fine("iomap", "memory of any kind can be opened to a peer of the same user (riomap)"),
        scope if can_trace() => findings.fine(
            "iomap",
            format!("kernel.yama.ptrace_scope is {scope}, but CAP_SYS_PTRACE lets riomap work"),
        ),
        scope => findings.limited(
            "iomap",
            format!(
                "kernel.yama.ptrace_scope is {scope}: riomap of a program's own memory is refused"
            ),
            "sysctl kernel.yama.ptrace_scope=1; streams and Rust's Stream::expose work without",
        ),
    }
}

/// Whether this process has `CAP_SYS_PTRACE`.
fn can_trace() -> bool {
    const CAP_SYS_PTRACE: u32 = 19;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_capability(&status, CAP_SYS_PTRACE)
}

fn has_capability(status: &str, capability: u32) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let bits = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    bits.is_some_and(|bits| bits >> capability & 1 == 1)
}

/// Checks that the processor has stores that bypass its caches, which large copies use.
fn copies(findings: &mut Findings) {
    match streaming_stores() {
        Some(name) => {
            findings.fine("copies", format!("large ones go around the caches, with {name}"));
        }
        None => findings.limited(
            "copies",
            "the processor has neither AVX2 nor AVX-512: large copies go through the caches",
            "nothing to be done; transfers of more than 4 KiB may be slower",
        ),
    }
}

/// The widest stores that bypass the caches here, by name.
fn streaming_stores() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            return Some("AVX-512");
        }
        if is_x86_feature_detected!("avx2") {
            return Some("AVX2");
        }
    }
    None
}

/// Checks that the library for unmodified programs is there.
fn program(findings: &mut Findings) {
    match library::find() {
        Ok(path) => findings.fine("library", format!("rsock run uses {}", path.display())),
        Err(e) => findings.limited(
            "library",
            format!("rsock run does not work: {e}"),
            "keep the library beside this command",
        ),
    }
}

/// Checks that a stream between two sockets of this process leaves TCP.
fn stream(findings: &mut Findings) {
    match why_on_tcp() {
        Ok(None) => findings.fine("stream", "a TCP connection to ourselves moved to shared memory"),
        Ok(Some(why)) => findings.stopped(
            "stream",
            format!("a TCP connection to ourselves stayed on TCP: {why}"),
            "see what the other lines say, and docs/limits.md",
        ),
        Err(e) => findings.stopped(
            "stream",
            format!("no TCP connection to ourselves: {e}"),
            "bring the loopback interface up: ip link set lo up",
        ),
    }
}

/// Returns why such a stream stays on TCP; `None` if it moved to shared memory.
fn why_on_tcp() -> io::Result<Option<&'static str>> {
    /// More round trips than a connection makes before it moves.
    const TRIPS: u32 = 4000;
    let listener = rsock::Listener::bind("127.0.0.1:0")?;
    let mut client = rsock::Stream::connect(listener.local_addr()?)?;
    let (mut server, _) = listener.accept()?;
    let mut why = "rsock does not say why";
    for trip in 1..=TRIPS {
        client.write_all(&[1])?;
        server.read_exact(&mut [0])?;
        server.write_all(&[2])?;
        client.read_exact(&mut [0])?;
        if trip % 100 != 0 {
            continue;
        }
        let local = client.local_addr()?;
        let process = metrics::read_process(std::process::id())?;
        let own = process.into_iter().flat_map(|p| p.connections).find(|c| c.local == local);
        let Some(own) = own else { continue };
        if [own.tx_transport, own.rx_transport] == [Some(Transport::Soft); 2] {
            return Ok(None);
        }
        why = match own.fallback.map_or("", FallbackReason::describe) {
            "" => "it had not moved after many round trips",
            pinned => pinned,
        };
    }
    Ok(Some(why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_bits() {
        let status = "Name:\tx\nCapPrm:\tffffffffffffffff\nCapEff:\t0000000000080000\n";
        assert!(has_capability(status, 19));
        assert!(!has_capability(status, 18) && !has_capability("", 19));
    }
}
