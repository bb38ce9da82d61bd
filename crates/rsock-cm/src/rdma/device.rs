//! Opened devices: one of each per process, for as long as anything uses it.
#![forbid(unsafe_code)]

use crate::error::Error;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::rdma::{GidEntry, RdmaContext, WeakRdmaContext};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

/// A forked child opens its own, and leaves its parent's alone.
static OPEN: Mutex<Vec<(ProcessId, WeakRdmaContext)>> = Mutex::new(Vec::new());

/// The device called `name`.
pub(super) fn open(name: &str) -> Result<RdmaContext, Error> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let here = process();
    open.retain(|(_, ctx)| ctx.upgrade().is_some());
    let own = open.iter().filter(|(owner, _)| *owner == here);
    if let Some(ctx) = own.filter_map(|(_, ctx)| ctx.upgrade()).find(|ctx| ctx.name() == name) {
        return Ok(ctx);
    }
    let ctx = RdmaContext::open(Some(name))?;
    open.push((here, ctx.downgrade()));
    Ok(ctx)
}

/// The device that has our own address `ip`, and which of its addresses that is. Asks every device.
///
/// # Errors
/// `NoDevice` (`ENODEV`) if none has it; what the drivers answer.
pub fn at(ip: IpAddr) -> Result<(RdmaContext, GidEntry), Error> {
    let mut result = Err(rsock_verbs::Error::NoDevice.into());
    for name in RdmaContext::device_names() {
        let found = open(&name).and_then(|ctx| {
            let entry = ctx.find_gid(ip.into())?;
            Ok((ctx, entry))
        });
        match found {
            Ok(found) => return Ok(found),
            Err(e) => result = Err(e),
        }
    }
    result
}
