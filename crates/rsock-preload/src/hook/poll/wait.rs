//! A wait for all entries of a `poll` or `select`.

use super::named::{Named, event_flags, fill_in};
use crate::guard;
use libc::{c_int, pollfd, sigset_t};
use rsock_core::accelerate::{self, PollDescriptor};
use smallvec::SmallVec;
use std::time::Duration;

/// Calls with up to this many descriptors allocate nothing here.
pub(in crate::hook) const FEW: usize = 16;

/// How many entries have to be off TCP, so that the library waits for all.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::hook) enum OffTcp {
    One,
    Any,
}

/// Waits for all entries. `None` if the kernel's `poll` suffices.
///
/// The error is an `errno` of `poll(2)`.
pub(in crate::hook) fn wait(
    fds: &mut [pollfd],
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
    least: OffTcp,
) -> Option<Result<usize, c_int>> {
    let mut is_any_needed = false;
    let mut all: SmallVec<[Option<Named>; FEW]> = SmallVec::with_capacity(fds.len());
    for p in fds.iter() {
        let named = Named::find(p.fd, event_flags(p));
        is_any_needed |= named.as_ref().is_some_and(Named::is_needed);
        all.push(named);
    }
    if !is_any_needed && least == OffTcp::One {
        return None;
    }
    let mut entries: SmallVec<[PollDescriptor<'_>; FEW]> = SmallVec::new();
    entries.resize_with(fds.len(), || PollDescriptor::SKIPPED);
    for ((p, named), entry) in fds.iter().zip(&all).zip(&mut entries) {
        fill_in(entry, p, named.as_ref());
    }
    Some(call(fds, &mut entries, limit, mask))
}

fn call(
    fds: &mut [pollfd],
    entries: &mut [PollDescriptor<'_>],
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Result<usize, c_int> {
    let found = guard::call_core(|| accelerate::poll(entries, limit, mask));
    for (p, entry) in fds.iter_mut().zip(entries.iter()).filter(|_| found != Err(libc::EINVAL)) {
        // The kernel reports none of an interrupted call.
        p.revents = if found.is_ok() { entry.revents.bits().cast_signed() } else { 0 };
    }
    found
}
