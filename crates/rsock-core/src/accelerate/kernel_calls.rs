//! Counts the system calls that each thread makes for the program.
//!
//! A wait may spare a look at the kernel that it has made a moment ago, but not if the program has
//! done something since that the kernel tells of: closed the other end of a connection, or written
//! to a pipe.

use std::cell::Cell;

rsock_verbs::per_thread! {
    /// System calls of the calling thread; wraps.
    COUNT: Cell<u32>, "kernel_calls"
}

/// Notes that the calling thread makes a system call for the program.
#[inline]
pub fn note_kernel_call() {
    COUNT.with(|count| count.set(count.get().wrapping_add(1)));
}

/// The number of such calls that this thread has made.
#[inline]
pub(super) fn kernel_calls() -> u32 {
    COUNT.with(Cell::get)
}
