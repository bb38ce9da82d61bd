//! The duplicates that calls in progress use once their descriptor's number is closed.
//!
//! They belong to this process: a forked child has none of the calls that they are for.

use crate::closing::{notice, watch_forks};
use crate::fork_gate;
use crate::sys;
use rsock_verbs::own_fd;
use rustix::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use rustix::io::DupFlags;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::Duration;

const NONE: i32 = -1;
/// Largest number of duplicates. Calls on further numbers that are closed under them fail.
const MAX_DUPLICATES: usize = 64;
/// Largest number that fits the state word of `Closings`.
const LARGEST: RawFd = (1 << 23) - 2;

static ALL: [AtomicI32; MAX_DUPLICATES] = [const { AtomicI32::new(NONE) }; MAX_DUPLICATES];
/// The entry of a duplicate that [`revoke`] or [`close`] works on.
const BUSY: i32 = -2;
/// For each: when it was left to calls that have not switched, by [`sys::tick`]; 0 if it was not.
static LEFT: [AtomicU32; MAX_DUPLICATES] = [const { AtomicU32::new(0) }; MAX_DUPLICATES];

/// Duplicates `fd`: another number for its file.
pub(super) fn make(fd: BorrowedFd<'_>) -> Option<RawFd> {
    watch_forks();
    let _inside = fork_gate::enter();
    let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).ok()?;
    let fd = own_fd::raise(fd);
    let number = fd.as_raw_fd();
    let is_noted = number <= LARGEST
        && ALL.iter().any(|entry| {
            entry.compare_exchange(NONE, number, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        });
    if is_noted {
        return Some(fd.into_raw_fd());
    }
    own_fd::close(fd);
    None
}

/// Closes what [`make`] returned.
pub(super) fn close(fd: RawFd) {
    let _inside = fork_gate::enter();
    loop {
        let mut is_busy = false;
        for (entry, left) in ALL.iter().zip(&LEFT) {
            match entry.compare_exchange(fd, BUSY, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    left.store(0, Ordering::Relaxed);
                    entry.store(NONE, Ordering::Release);
                    // SAFETY: taken from the list just now, so open and given up by its last user.
                    own_fd::close(unsafe { OwnedFd::from_raw_fd(fd) });
                    return;
                }
                Err(other) => is_busy |= other == BUSY,
            }
        }
        if !is_busy {
            return;
        }
        rustix::thread::sched_yield();
    }
}

/// Leaves what [`make`] returned to calls that have not switched.
pub(super) fn leave(fd: RawFd) {
    let entry = ALL.iter().position(|entry| entry.load(Ordering::Acquire) == fd);
    if let Some(left) = entry.and_then(|at| LEFT.get(at)) {
        left.store(sys::tick().max(1), Ordering::Relaxed);
    }
}

/// Closes the files behind duplicates that were left longer ago than `lifetime`. The numbers stay
/// reserved, and name the notice's file, because a call may still use them.
pub(super) fn revoke(lifetime: Duration) {
    let lifetime = u32::try_from(lifetime.as_millis()).unwrap_or(u32::MAX);
    for (entry, left) in ALL.iter().zip(&LEFT) {
        let since = left.load(Ordering::Relaxed);
        if since == 0 || sys::tick().wrapping_sub(since) < lifetime {
            continue;
        }
        let placeholder = notice::fd();
        let _inside = fork_gate::enter();
        let fd = entry.load(Ordering::Acquire);
        let is_taken = fd >= 0
            && placeholder >= 0
            && entry.compare_exchange(fd, BUSY, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if !is_taken {
            continue;
        }
        // SAFETY: open as long as the process: see `notice::with`.
        let placeholder = unsafe { BorrowedFd::borrow_raw(placeholder) };
        // SAFETY: taken from the list until it is put back below, so open and owned here; not
        // closed here.
        let mut kept = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
        let _ = rustix::io::dup3(placeholder, &mut kept, DupFlags::CLOEXEC);
        left.store(0, Ordering::Relaxed);
        entry.store(fd, Ordering::Release);
    }
}

/// Closes all duplicates, in a forked child: its copies would keep connections open.
pub(super) fn close_all() {
    for entry in &ALL {
        let fd = entry.swap(NONE, Ordering::AcqRel);
        if fd >= 0 {
            // SAFETY: taken from the list just now; the threads that used it are not in this
            // process.
            own_fd::close(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}

#[cfg(test)]
pub(super) fn is_listed(fd: RawFd) -> bool {
    ALL.iter().any(|entry| entry.load(Ordering::Relaxed) == fd)
}
