//! The notice: a descriptor that is readable while a number is being closed under calls in
//! progress.
//!
//! Every sleep that no doorbell of the ring can end polls it. `ppoll` looks at its descriptors
//! again when the thread gets a CPU, and sleeps on if none is readable then. So a closer that did
//! not wait until all calls had woken up leaves the notice readable for good ([`leave_raised`]),
//! and later sleeps poll another descriptor.

use crate::closing::watch_forks;
use crate::fork_gate;
use rsock_verbs::own_fd;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};

const NONE: i32 = -1;
/// Descriptors in turn. A sleeper gets a CPU before as many closers have given up waiting.
const TURNS: usize = 8;
static FDS: [AtomicI32; TURNS] = [const { AtomicI32::new(NONE) }; TURNS];
/// The place of the notice in `FDS`.
static CURRENT: AtomicUsize = AtomicUsize::new(0);
/// Held while the notice is cleared, or another descriptor becomes the notice.
static IS_LOCKED: AtomicBool = AtomicBool::new(false);

/// The descriptor to poll, or -1 if it cannot be created.
pub(crate) fn fd() -> RawFd {
    let place = place();
    match place.load(Ordering::Acquire) {
        NONE => make(place),
        fd => fd,
    }
}

fn place() -> &'static AtomicI32 {
    &FDS[CURRENT.load(Ordering::Acquire) % TURNS]
}

/// An entry for `ppoll`.
pub(crate) fn entry() -> libc::pollfd {
    libc::pollfd { fd: fd(), events: libc::POLLIN, revents: 0 }
}

#[cold]
fn make(place: &AtomicI32) -> RawFd {
    watch_forks();
    let _inside = fork_gate::enter();
    let Ok(new) = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK) else {
        return NONE;
    };
    let new = own_fd::raise(new).into_raw_fd();
    match place.compare_exchange(NONE, new, Ordering::AcqRel, Ordering::Acquire) {
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
    with(place(), |fd| {
        let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
    });
}

/// Empties the descriptor, so that its pollers may sleep again: all of them that a closer waits for
/// have been awake since.
pub(super) fn clear() {
    locked(|| empty(place()));
}

/// Leaves the descriptor readable for sleepers that get no CPU now, and takes another one for later
/// sleeps.
pub(super) fn leave_raised() {
    locked(|| {
        let raised = CURRENT.load(Ordering::Relaxed);
        let next = raised.wrapping_add(1) % TURNS;
        empty(&FDS[next]);
        CURRENT.store(next, Ordering::Release);
        with(&FDS[raised % TURNS], |fd| {
            let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
        });
    });
}

fn empty(place: &AtomicI32) {
    with(place, |fd| {
        let _ = rustix::io::read(fd, &mut [0; 8]);
    });
}

/// For a few system calls in the section of a closer. Not a `Mutex`: the one thread of a forked
/// child resets it.
fn locked(f: impl FnOnce()) {
    while IS_LOCKED.swap(true, Ordering::Acquire) {
        rustix::thread::sched_yield();
    }
    f();
    IS_LOCKED.store(false, Ordering::Release);
}

fn with(place: &AtomicI32, f: impl FnOnce(BorrowedFd<'_>)) {
    let fd = place.load(Ordering::Acquire);
    if fd != NONE {
        // SAFETY: only a forked child, which has one thread, ever closes it.
        f(unsafe { BorrowedFd::borrow_raw(fd) });
    }
}

/// Closes the parent's notices, in a forked child.
pub(super) fn close_all() {
    for place in &FDS {
        let fd = place.swap(NONE, Ordering::AcqRel);
        if fd != NONE {
            // SAFETY: inherited, and the only thread of this process runs here.
            own_fd::close(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
    IS_LOCKED.store(false, Ordering::Relaxed);
}
