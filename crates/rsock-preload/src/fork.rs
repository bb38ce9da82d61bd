//! What happens around every fork: libc calls the functions of [`register`] around `fork`, and
//! hooks call [`before_copy`] for other calls that copy the process.
//!
//! A stream that a child inherits goes to TCP, or stays there: whichever process continues with it
//! then finds all bytes in one place. A stream that had not left TCP may still do so once a single
//! process holds it. The child keeps the parent's view of the table.

use crate::native_peer::listeners;
use crate::slot::Direction;
use crate::{event_set, fdtable, log, quiet_set, signal, tcp_only};
use rsock_core::accelerate::Halt;
use rsock_core::fork;
use rsock_verbs::family;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// What [`prepare`] holds until the fork is over.
struct ForkLocks {
    _locks: fork::ForkGuard,
    _sets: event_set::ForkLocks,
    _quiet_sets: quiet_set::ForkLocks,
    /// Otherwise a stream could move to the ring after [`fdtable::prepare_fork`] without knowing of
    /// the child.
    _halt: Halt,
}

static HELD: AtomicPtr<ForkLocks> = AtomicPtr::new(ptr::null_mut());

/// Has libc call the three functions below around every `fork`.
pub(crate) fn register() {
    fork::note_program_prepares();
    // SAFETY: three functions of the right type that live as long as the process: a preloaded
    // library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn prepare() {
    let halt = Halt::begin();
    let settled = return_to_tcp();
    // The child must not inherit this lock from a thread that it does not have.
    signal::lock_for_fork();
    // Nor the lock on the list of native listeners.
    listeners::prepare_fork();
    let sets = event_set::prepare_fork();
    let quiet_sets = quiet_set::prepare_fork(settled);
    // Last, because native listeners that close free memory.
    let held = Box::new(ForkLocks {
        _locks: fork::prepare(),
        _sets: sets,
        _quiet_sets: quiet_sets,
        _halt: halt,
    });
    HELD.store(Box::into_raw(held), Ordering::Relaxed);
}

/// Has the kernel serve what both processes are going to have.
fn return_to_tcp() -> quiet_set::Settled {
    let settled = quiet_set::settle_before_fork(|fd| fdtable::find_in_core(fd, Direction::Recv));
    fdtable::prepare_fork();
    event_set::settle_before_fork();
    settled
}

/// The process is about to be copied by a call around which libc does not call the functions of
/// [`register`]. A child of such a call may not allocate, and mostly executes another program: it
/// finds its streams on TCP, and counts as one that holds them for good.
pub(crate) fn before_copy() {
    let _halt = Halt::begin();
    let _settled = return_to_tcp();
    fdtable::note_unnoted_child();
    // What a stream of both uses is not used again when this process has closed it.
    family::note_fork();
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
    listeners::after_fork_in_parent();
    signal::unlock_after_fork();
}

unsafe extern "C" fn in_child() {
    release();
    fork::in_child();
    Halt::forget_all();
    listeners::after_fork_in_child();
    signal::unlock_after_fork();
    fdtable::after_fork_in_child();
    tcp_only::after_fork_in_child();
    event_set::after_fork_in_child();
    quiet_set::after_fork_in_child();
    log::line(format_args!("forked"));
}
