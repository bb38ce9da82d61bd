//! What happens to the table when the process forks.
//!
//! A stream that a child inherits goes, or stays, on TCP: whichever of the two goes on using it then
//! finds all bytes in one place. One that had not moved yet may do so again once a single process holds
//! it. The child keeps the parent's view of the table.

use crate::{doors, fdtable, log, signal};
use rsock_core::accelerate::Halt;
use rsock_core::fork;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What the core holds while the process forks.
struct Held {
    _locks: fork::ForkGuard,
    /// A stream that moves to the ring after [`fdtable::prepare_fork`] would not know of the child.
    _halt: Halt,
}

static HELD: AtomicPtr<Held> = AtomicPtr::new(ptr::null_mut());

/// Asks libc to call us around every `fork`.
pub(crate) fn register() {
    // SAFETY: three functions of the right type that live as long as the process: a preloaded
    // library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn prepare() {
    let halt = Halt::begin();
    fdtable::prepare_fork();
    // The child must not inherit this lock from a thread that it does not have.
    signal::lock_for_fork();
    // Nor this one.
    doors::prepare_fork();
    // Last: doors that close give memory back.
    let held = Box::new(Held { _locks: fork::prepare(), _halt: halt });
    HELD.store(Box::into_raw(held), Ordering::Relaxed);
}

/// Ends what [`prepare`] began.
fn release() {
    let held = HELD.swap(ptr::null_mut(), Ordering::Relaxed);
    if !held.is_null() {
        // SAFETY: stored by `prepare` on this very thread (in a child, its copy), and taken once.
        drop(unsafe { Box::from_raw(held) });
    }
}

unsafe extern "C" fn in_parent() {
    release();
    doors::after_fork_in_parent();
    signal::unlock_after_fork();
}

unsafe extern "C" fn in_child() {
    release();
    Halt::forget_all();
    doors::after_fork_in_child();
    signal::unlock_after_fork();
    fdtable::after_fork_in_child();
    log::line(format_args!("forked"));
}
