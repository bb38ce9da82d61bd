//! Servers of tests: a port for each, and the moment from which it can be connected to.

use crate::Running;
use std::net::{IpAddr, TcpListener};
use std::process::Command;
use std::thread;

/// A port of `ip` that nobody has now.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn free_port(ip: IpAddr) -> u16 {
    let probe = TcpListener::bind((ip, 0)).expect("a port");
    probe.local_addr().expect("its number").port()
}

/// Waits until `server` listens, which `is_listening` asks the kernel.
///
/// # Panics
/// If it ends before.
pub fn await_listening(server: &mut Running, mut is_listening: impl FnMut() -> bool) {
    while !is_listening() {
        if let Some(status) = server.try_wait().expect("its state") {
            panic!("the server ended before it listened: {status}");
        }
        thread::yield_now();
    }
}

/// Waits until `server` listens on `port` of an RDMA device, as the kernel's connection manager sees it.
///
/// # Panics
/// If it ends before; without the program `rdma`.
pub fn await_rdma_listener(port: u16, server: &mut Running) {
    let address = format!("{port} ");
    await_listening(server, || {
        let listing = Command::new("rdma").args(["resource", "show", "cm_id"]).output();
        let listing = listing.expect("the kernel's list");
        let listing = String::from_utf8_lossy(&listing.stdout).into_owned() + "\n";
        listing.lines().any(|line| line.contains("LISTEN") && line.contains(&address))
    });
}
