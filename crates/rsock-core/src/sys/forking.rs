//! Forks of this process, and lazily created values that do not block a forked child.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Number of forks of this process since the first call. A caller that finds it changed knows that
/// other processes may hold its descriptors too.
pub(crate) fn forks() -> u32 {
    static FORKS: AtomicU32 = AtomicU32::new(0);
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    extern "C" fn in_parent() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    // Two threads at the same time register the handler twice, and each fork counts twice: callers
    // only compare. No thread waits for another, which a forked child may not have.
    if !IS_REGISTERED.load(Ordering::Relaxed) {
        // SAFETY: the handler does nothing but add to an atomic, and stays mapped as long as this
        // library, which is never unloaded while it has sockets.
        unsafe { libc::pthread_atfork(None, Some(in_parent), None) };
        IS_REGISTERED.store(true, Ordering::Relaxed);
    }
    FORKS.load(Ordering::Relaxed)
}

/// The value of `cell`, which `make` creates if there is none. Unlike `OnceLock::get_or_init` it
/// runs `make` outside of the cell's lock, so that a child that is forked meanwhile does not wait
/// for ever. Of two values that are created at the same time, one is dropped.
pub(crate) fn get_or_make<T>(cell: &OnceLock<T>, make: impl FnOnce() -> T) -> &T {
    match cell.get() {
        Some(value) => value,
        None => {
            let made = make();
            cell.get_or_init(|| made)
        }
    }
}
