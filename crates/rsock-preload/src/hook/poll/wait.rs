//! A wait for all entries of a `poll` or `select`.

use super::named::{Named, entry, event_flags};
use crate::guard;
use libc::{c_int, pollfd, sigset_t};
use rsock_core::accelerate::{self, PollDescriptor};
use rustix::event::PollFlags;
use std::time::Duration;

/// Calls with up to this many descriptors allocate nothing here.
const FEW: usize = 16;
/// Most calls have no more than so many, and do not fill in sixteen.
const FEWEST: usize = 4;

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
    if fds.len() <= FEWEST {
        return wait_for_few::<FEWEST>(fds, limit, mask, least);
    }
    if fds.len() <= FEW {
        return wait_for_few::<FEW>(fds, limit, mask, least);
    }
    let mut all: Vec<Option<Named>> = Vec::new();
    all.resize_with(fds.len(), || None);
    if !find(fds, &mut all) && least == OffTcp::One {
        return None;
    }
    let mut entries: Vec<PollDescriptor<'_>> =
        fds.iter().zip(all.iter()).map(|(p, named)| entry(p, named.as_ref())).collect();
    Some(call(fds, &mut entries, limit, mask))
}

/// As [`wait`], for at most `N` entries.
fn wait_for_few<const N: usize>(
    fds: &mut [pollfd],
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
    least: OffTcp,
) -> Option<Result<usize, c_int>> {
    let mut all = [const { None }; N];
    let all = &mut all[..fds.len()];
    if !find(fds, all) && least == OffTcp::One {
        return None;
    }
    let mut entries: [PollDescriptor<'_>; N] = std::array::from_fn(|i| match fds.get(i) {
        Some(p) => entry(p, all[i].as_ref()),
        None => Named::entry(None, -1, PollFlags::empty()),
    });
    Some(call(fds, &mut entries[..fds.len()], limit, mask))
}

/// Finds the sockets of the entries. Returns whether one of them takes more than the kernel.
fn find(fds: &[pollfd], all: &mut [Option<Named>]) -> bool {
    let mut is_any_needed = false;
    for (p, named) in fds.iter().zip(all) {
        *named = Named::find(p.fd, event_flags(p));
        is_any_needed |= named.as_ref().is_some_and(Named::is_needed);
    }
    is_any_needed
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
