//! Closes a descriptor in a helper process that shares this process's descriptor table and does
//! nothing else, so that a close that blocks delays no thread of the program.
//!
//! A close first takes the number out of the table, which never waits, and then notifies the file.
//! The helper puts a memory file in the descriptor's place, so that the number does not become free
//! at a moment that this process does not know; then this process closes that. No call of this
//! process can wait, except for the helper to get a CPU.

use crate::own_fd;
use crate::raw;
use rustix::fs::{MemfdFlags, fcntl_get_seals, memfd_create};
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Most helpers that run at the same time.
const MOST: usize = 8;
/// How often to check whether a helper has begun, and nanoseconds between two checks: more than ten
/// seconds in all. On a busy machine a new process may not run for a second.
const CHECKS: (u32, i64) = (100_000, 100_000);

/// Process ids of helpers that have not been reaped; 0 is a free slot. If an id is lost, an ended
/// helper stays a defunct process until this process ends; nothing else depends on them.
static HELPERS: [AtomicI32; MOST] = [const { AtomicI32::new(0) }; MOST];
/// A slot whose helper is being started.
const TAKEN: i32 = -1;
/// Descriptors that could not be given to a helper and stay open.
static KEPT: AtomicUsize = AtomicUsize::new(0);

/// Whether other processes have sent so many descriptors whose close waits that no more of their
/// messages should be taken: every helper is busy.
#[must_use]
pub fn is_flooded() -> bool {
    HELPERS.iter().all(is_at_work) || KEPT.load(Ordering::Relaxed) >= MOST
}

/// Descriptors of other processes that stay open for good, because no helper could close them: all
/// were busy, or did not get a CPU for long.
#[must_use]
pub fn n_kept_open() -> usize {
    KEPT.load(Ordering::Relaxed)
}

/// Whether the helper of this slot runs. Reaps it if it has ended, which never blocks.
fn is_at_work(place: &AtomicI32) -> bool {
    match place.load(Ordering::Relaxed) {
        0 => false,
        TAKEN => true,
        pid => {
            if has_ended(pid) {
                let _ = place.compare_exchange(pid, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
            place.load(Ordering::Relaxed) != 0
        }
    }
}

/// Closes `fd`, or keeps it open for good if no helper can be started.
pub(super) fn close(fd: OwnedFd) {
    // While it is open, programs that close all descriptors leave it alone.
    own_fd::register(fd.as_raw_fd());
    if replace(&fd) {
        own_fd::close(fd);
    } else {
        KEPT.fetch_add(1, Ordering::Relaxed);
        let _ = fd.into_raw_fd();
    }
}

/// Puts a memory file in the place of what `fd` names.
fn replace(fd: &OwnedFd) -> bool {
    let Ok(harmless) =
        memfd_create(c"rsock-closed", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
    else {
        return false;
    };
    let take = |place: &&AtomicI32| {
        !is_at_work(place)
            && place.compare_exchange(0, TAKEN, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    let mut is_replaced = false;
    if let Some(place) = HELPERS.iter().find(take) {
        let pid = begin(fd.as_raw_fd(), harmless.as_raw_fd()).unwrap_or(0);
        is_replaced = pid != 0 && has_begun(fd, pid);
        place.store(pid, Ordering::Relaxed);
    }
    own_fd::close(harmless);
    is_replaced
}

/// Waits until helper `pid` has put the memory file in the place of `fd`, which it does as soon as
/// it gets a CPU; false if it never does.
fn has_begun(fd: &OwnedFd, pid: i32) -> bool {
    for _ in 0..CHECKS.0 {
        let is_over = has_ended(pid);
        if fcntl_get_seals(fd).is_ok() {
            return true;
        }
        if is_over {
            return false;
        }
        let pause = rustix::thread::Timespec { tv_sec: 0, tv_nsec: CHECKS.1 };
        let _ = rustix::thread::nanosleep(&pause);
    }
    false
}

/// Starts a helper; returns its process id.
fn begin(fd: i32, harmless: i32) -> Option<i32> {
    const SIGSET: usize = 8;
    let none = std::ptr::null_mut::<u64>();
    let (all, mut before) = (u64::MAX, 0u64);
    // No handler of the program may run in the new process, which has a copy of its memory and its
    // own descriptors.
    // SAFETY: both masks are as large as the kernel takes them to be.
    let blocked = unsafe {
        raw::syscall!(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const all,
            &raw mut before,
            SIGSET
        )
    };
    blocked.ok()?;
    // Without a signal at its end, so that the program's `wait` does not see it.
    // SAFETY: `fork` without libc's part of it. The child makes system calls only.
    let pid = unsafe {
        raw::syscall!(libc::SYS_clone, libc::CLONE_FILES, 0usize, 0usize, 0usize, 0usize)
    };
    if matches!(pid, Ok(0)) {
        // It ends with the thread that started it.
        // SAFETY: takes no pointers.
        let _ = unsafe { raw::syscall!(libc::SYS_prctl, libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let name = c"rsock-closer".as_ptr();
        // SAFETY: a string that ends.
        let _ = unsafe { raw::syscall!(libc::SYS_prctl, libc::PR_SET_NAME, name) };
        // SAFETY: takes no pointers; the number's owner has given it up.
        let _ = unsafe { raw::syscall!(libc::SYS_dup3, harmless, fd, libc::O_CLOEXEC) };
        loop {
            // SAFETY: ends the process at once; takes no pointers.
            let _ = unsafe { raw::syscall!(libc::SYS_exit_group, 0) };
        }
    }
    let begun = pid.ok().and_then(|pid| i32::try_from(pid).ok());
    // SAFETY: as above; the old mask is not requested.
    let _ = unsafe {
        raw::syscall!(libc::SYS_rt_sigprocmask, libc::SIG_SETMASK, &raw const before, none, SIGSET)
    };
    begun
}

/// Reaps process `pid` if it has ended; says whether it has.
fn has_ended(pid: i32) -> bool {
    let nothing = std::ptr::null_mut::<i32>();
    let flags = libc::WNOHANG | libc::__WALL;
    // SAFETY: neither a status nor a usage is requested.
    let ended = unsafe { raw::syscall!(libc::SYS_wait4, pid, nothing, flags, 0usize) };
    // An error means that it is no longer a child of this process, or is one of the process that
    // forked this one.
    !matches!(ended, Ok(0))
}
