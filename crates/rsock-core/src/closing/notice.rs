//! The notice: a descriptor that is readable while a number is being closed under calls in
//! progress.
//!
//! Every sleep that no doorbell of the ring can end polls it.

use crate::closing::duplicates;
use crate::{fork, fork_gate};
use rsock_verbs::own_fd;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

const NONE: i32 = -1;
static FD: AtomicI32 = AtomicI32::new(NONE);

/// The descriptor to poll, or -1 if it cannot be created.
pub(crate) fn fd() -> RawFd {
    match FD.load(Ordering::Acquire) {
        NONE => make(),
        fd => fd,
    }
}

/// An entry for `ppoll`.
pub(crate) fn entry() -> libc::pollfd {
    libc::pollfd { fd: fd(), events: libc::POLLIN, revents: 0 }
}

#[cold]
fn make() -> RawFd {
    watch_forks();
    let _inside = fork_gate::enter();
    let Ok(new) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return NONE;
    };
    let new = own_fd::raise(new).into_raw_fd();
    match FD.compare_exchange(NONE, new, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => new,
        Err(other) => {
            // SAFETY: made above, and not published.
            own_fd::close(unsafe { OwnedFd::from_raw_fd(new) });
            other
        }
    }
}

/// Makes the descriptor readable, which wakes every sleeper that polls it.
pub(super) fn raise() {
    with(|fd| {
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    });
}

/// Empties the descriptor, so that its pollers may sleep again.
pub(super) fn clear() {
    with(|fd| {
        let _ = rustix::io::read(fd, &mut [0; 8]);
    });
}

fn with(f: impl FnOnce(BorrowedFd<'_>)) {
    let fd = FD.load(Ordering::Acquire);
    if fd != NONE {
        // SAFETY: only a forked child, which has one thread, ever closes it.
        f(unsafe { BorrowedFd::borrow_raw(fd) });
    }
}

/// Has a forked child close its copies of the parent's notice and duplicates.
pub(super) fn watch_forks() {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    extern "C" fn in_child() {
        let fd = FD.swap(NONE, Ordering::AcqRel);
        if fd != NONE {
            // SAFETY: inherited, and the only thread of this process runs here.
            own_fd::close(unsafe { OwnedFd::from_raw_fd(fd) });
        }
        duplicates::close_all();
        fork_gate::forget_all();
    }
    fork::watch();
    if IS_REGISTERED.load(Ordering::Acquire) {
        return;
    }
    // Not by a `Once`: a child that is forked meanwhile would wait for it for ever. Two threads at
    // the same time register the handler twice, which does no harm. SAFETY: the handler makes
    // system calls and touches atomics only, and stays mapped as long as this library, which is
    // never unloaded while it has sockets.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    IS_REGISTERED.store(true, Ordering::Release);
}
