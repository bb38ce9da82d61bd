//! A full fence in every thread of the processes that asked for it, at the cost of one system call
//! here and none there.
//!
//! The sender of a large WRITE marks itself busy and then looks whether the region still exists;
//! the region's owner withdraws the region and then looks whether anyone is busy. That is a
//! store-load race on both sides. The owner's side is rare, so it pays for both.

use crate::raw;
use std::sync::atomic::{AtomicU8, Ordering};

/// Whether [`full`] works here, once somebody has tried. Not a lock: the kernel takes its time, and the child
/// of a fork meanwhile would wait for a thread that it does not have.
static ABLE: AtomicU8 = AtomicU8::new(UNTRIED);
const UNTRIED: u8 = 0;
const UNABLE: u8 = 1;
const WORKS: u8 = 2;

/// Registers this process as a target; several threads may, at once. Answers whether [`full`] works here; a
/// forked child inherits the registration.
pub(super) fn register() -> bool {
    let mut able = ABLE.load(Ordering::Acquire);
    if able == UNTRIED {
        let works = membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && full();
        able = if works { WORKS } else { UNABLE };
        ABLE.store(able, Ordering::Release);
    }
    able == WORKS
}

/// Executes the fence in every running thread of every registered process.
pub(super) fn full() -> bool {
    #[cfg(test)]
    CALLS.with(|n| n.set(n.get() + 1));
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

#[cfg(test)]
thread_local! {
    /// Calls of [`full`] on this thread.
    pub(super) static CALLS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes no pointers.
    unsafe { raw::syscall!(libc::SYS_membarrier, command, 0, 0) }.is_ok()
}
