//! A process of rsock that outlives the program's process, and that the program does not see.
//!
//! It is made by cloning without libc's knowledge, so that neither the program's fork handlers run
//! nor its handler of `SIGCHLD`; twice, so that the program need not wait for it; and in a session
//! of its own, so that signals for the program's group or terminal do not reach it.
//!
//! Invariant: threads other than the caller's do not exist in the new process, and whatever libc
//! locks they held stay held. What runs there must not allocate.

use crate::sys;
use rsock_verbs::raw;
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body` in a process that holds no descriptors but `keep`, and exits after it. When this
/// returns, `note` has been called with the process's id, in a process between the two.
///
/// # Errors
/// As `fork(2)`: `EAGAIN`, `ENOMEM`.
pub(in crate::accelerate) fn spawn<const N: usize>(
    keep: [Option<BorrowedFd<'_>>; N],
    note: impl FnOnce(u32),
    body: impl FnOnce(),
) -> io::Result<()> {
    // No signal handler of the program may run in the new processes.
    let unblocked = sys::block_signals()?;
    let child = clone();
    if matches!(child, Ok(0)) {
        // The parent waits for this process, which leaves its own child to the system.
        match clone() {
            Ok(0) => {
                let body = || {
                    become_detached(keep.map(|fd| fd.map_or(-1, |fd| fd.as_raw_fd())));
                    body();
                };
                // Above this frame is a copy of the program.
                exit(i32::from(catch_unwind(AssertUnwindSafe(body)).is_err()));
            }
            Ok(pid) => {
                let noted = catch_unwind(AssertUnwindSafe(|| note(pid.cast_unsigned())));
                exit(if noted.is_ok() { 0 } else { libc::EAGAIN });
            }
            Err(e) => exit(e.raw_os_error().unwrap_or(libc::EAGAIN)),
        }
    }
    let result = child.and_then(reap);
    sys::restore_signals(unblocked);
    result
}

/// Makes this copy of the program an ordinary process with `keep` as its only descriptors.
fn become_detached<const N: usize>(mut keep: [RawFd; N]) {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir(c"/");
    let _ = rustix::thread::set_name(c"rsock-relay");
    keep.sort_unstable();
    let mut first = 0;
    for fd in keep.into_iter().filter(|&fd| fd >= 0) {
        close_range(first, fd - 1);
        first = fd + 1;
    }
    close_range(first, RawFd::MAX);
    for signal in 1..=64 {
        // SIGKILL and SIGSTOP cannot be changed, and stay as they are.
        reset_action(signal);
    }
    sys::restore_signals(0);
}

/// Clones this process; no signal reports the end of the copy. As `fork(2)`: 0 in the copy.
fn clone() -> io::Result<i32> {
    // SAFETY: a child in memory of its own that goes on on a copy of this stack: `fork` without
    // libc's part of it. Callers do only what works without that part.
    let pid = unsafe { raw::syscall!(libc::SYS_clone, 0usize, 0usize, 0usize, 0usize, 0usize) }?;
    i32::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::EAGAIN))
}

/// Waits for the child, whose exit status is its errno.
fn reap(child: i32) -> io::Result<()> {
    let mut status = 0;
    // SAFETY: a live status word; null is allowed for the rest.
    let pid =
        unsafe { raw::syscall!(libc::SYS_wait4, child, &raw mut status, libc::__WALL, 0usize) };
    if pid.ok() != usize::try_from(child).ok() || !libc::WIFEXITED(status) {
        return Err(io::Error::from_raw_os_error(libc::EAGAIN));
    }
    match libc::WEXITSTATUS(status) {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

fn exit(code: i32) -> ! {
    loop {
        // SAFETY: ends the process at once; takes no pointers.
        let _ = unsafe { raw::syscall!(libc::SYS_exit_group, code) };
    }
}

/// Closes `first..=last`.
fn close_range(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: this process is a copy in which only this code runs: no owner of these descriptors
    // goes on.
    let done = unsafe { raw::syscall!(libc::SYS_close_range, first, last, 0) };
    if done.is_err() {
        // A kernel before 5.9.
        for fd in first..=last.min(1 << 16) {
            // SAFETY: as above.
            unsafe { rustix::io::close(fd) };
        }
    }
}

/// Restores the kernel's default action for a signal.
fn reset_action(signal: i32) {
    /// At least as large as the kernel's, on every architecture: handler, flags, restorer, mask.
    const ACTION: [u64; 4] = [0; 4];
    const SIGSET: usize = 8;
    let old = std::ptr::null_mut::<u64>();
    // SAFETY: the default action is all zeros; nothing is written.
    let _ = unsafe { raw::syscall!(libc::SYS_rt_sigaction, signal, ACTION.as_ptr(), old, SIGSET) };
}
