//! Opened devices: one of each per process, for as long as anything uses it.
#![forbid(unsafe_code)]

use crate::error::Error;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::mutex::try_lock;
use rsock_verbs::rdma::{GidEntry, RdmaContext, WeakRdmaContext};
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A forked child opens its own, and leaves its parent's alone.
static OPEN: Mutex<Devices> = Mutex::new(Vec::new());

/// The process that has found the list unlocked; 0 for none.
static USER: AtomicU32 = AtomicU32::new(0);

type Devices = Vec<(ProcessId, WeakRdmaContext)>;

/// The list. `None` in a forked child if another thread of its parent was opening a device at the
/// fork: that takes long, so nothing waits for it before a fork.
fn list(here: ProcessId) -> Option<MutexGuard<'static, Devices>> {
    let first = USER.compare_exchange(0, here.0, Ordering::Relaxed, Ordering::Relaxed);
    if first.is_ok() || first == Err(here.0) {
        return Some(OPEN.lock().unwrap_or_else(PoisonError::into_inner));
    }
    let list = try_lock(&OPEN)?;
    USER.store(here.0, Ordering::Relaxed);
    Some(list)
}

/// The device called `name`.
pub(super) fn open(name: &str) -> Result<RdmaContext, Error> {
    let here = process();
    let Some(mut open) = list(here) else { return Ok(RdmaContext::open(Some(name))?) };
    open.retain(|(_, ctx)| ctx.upgrade().is_some());
    let own = open.iter().filter(|(owner, _)| *owner == here);
    if let Some(ctx) = own.filter_map(|(_, ctx)| ctx.upgrade()).find(|ctx| ctx.name() == name) {
        return Ok(ctx);
    }
    let ctx = RdmaContext::open(Some(name))?;
    open.push((here, ctx.downgrade()));
    Ok(ctx)
}

/// The device that has the local address `ip`, and the index of the address on it. Asks devices in
/// turn until one has it.
///
/// # Errors
/// `NoDevice` (`ENODEV`) if none has it; the drivers' errors.
pub fn at(ip: IpAddr) -> Result<(RdmaContext, GidEntry), Error> {
    let mut result = Err(rsock_verbs::Error::NoDevice.into());
    let names = RdmaContext::device_names();
    for name in &names {
        match on(name, ip) {
            Ok(found) => return Ok(nearer(&names, &found, ip).unwrap_or(found)),
            Err(e) => result = Err(e),
        }
    }
    result
}

/// Device `name`, if it has `ip`.
fn on(name: &str, ip: IpAddr) -> Result<(RdmaContext, GidEntry), Error> {
    let ctx = open(name)?;
    let entry = ctx.find_gid(ip.into())?;
    Ok((ctx, entry))
}

/// The device of the very network interface that has `ip`, if that is another one than was `found`.
///
/// The kernel gives a device the addresses of those interfaces, too, that lie above its own (VLAN,
/// macvlan). Where one of them has a device itself, packets to its addresses come in there.
fn nearer(
    names: &[String],
    (ctx, entry): &(RdmaContext, GidEntry),
    ip: IpAddr,
) -> Option<(RdmaContext, GidEntry)> {
    let owner = interface(ctx.name(), entry.port, entry.index)?;
    if interface(ctx.name(), entry.port, OWN)? == owner {
        return None;
    }
    names.iter().filter(|name| *name != ctx.name()).find_map(|name| {
        let is_its = |port: &u8| interface(name, *port, OWN).is_some_and(|own| own == owner);
        // Only that one is opened: for the others it reads a file.
        let port = (1..=MOST_PORTS).take_while(|port| has_port(name, *port)).find(is_its)?;
        on(name, ip).ok().filter(|(_, entry)| entry.port == port)
    })
}

/// The network interface that has an address of a port; nothing on InfiniBand.
fn interface(device: &str, port: u8, index: u8) -> Option<String> {
    let name = fs::read_to_string(port_dir(device, port).join(format!("gid_attrs/ndevs/{index}")));
    Some(name.ok()?.trim().to_owned()).filter(|name| !name.is_empty())
}

fn has_port(device: &str, port: u8) -> bool {
    port_dir(device, port).exists()
}

fn port_dir(device: &str, port: u8) -> PathBuf {
    Path::new("/sys/class/infiniband").join(device).join("ports").join(port.to_string())
}

/// Where a port's table has the link-local address of its own interface.
const OWN: u8 = 0;
/// Most ports that are checked.
const MOST_PORTS: u8 = 8;
