//! What happens to the table when the process forks.
//!
//! A stream that a child inherits goes, or stays, on TCP: whichever of the two goes on using it then
//! finds all bytes in one place. One that had not moved yet may do so again once a single process holds
//! it. The child keeps the parent's view of the table.

use crate::{doors, fdtable, log, signal};
use rsock_verbs::family;

/// Asks libc to call us around every `fork`.
pub(crate) fn register() {
    // SAFETY: three functions of the right type that live as long as the process: a preloaded
    // library is never unloaded.
    unsafe { libc::pthread_atfork(Some(prepare), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn prepare() {
    fdtable::prepare_fork();
    // After the last block that the child will know: what is made later is the parent's to reuse.
    family::note_fork();
    // The child must not inherit this lock from a thread that it does not have.
    signal::lock_for_fork();
    // Nor this one.
    doors::prepare_fork();
}

unsafe extern "C" fn in_parent() {
    doors::after_fork_in_parent();
    signal::unlock_after_fork();
}

unsafe extern "C" fn in_child() {
    doors::after_fork_in_child();
    signal::unlock_after_fork();
    fdtable::after_fork_in_child();
    log::line(format_args!("forked"));
}
