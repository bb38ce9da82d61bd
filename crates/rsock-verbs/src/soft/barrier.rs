//! A full fence in every thread of the processes that asked for it, at the cost of one system call
//! here and none there.
//!
//! The sender of a large WRITE marks itself busy and then looks whether the region still exists;
//! the region's owner withdraws the region and then looks whether anyone is busy. That is a
//! store-load race on both sides. The owner's side is rare, so it pays for both.

use std::sync::OnceLock;

static ABLE: OnceLock<bool> = OnceLock::new();

/// Registers this process as a target. Answers whether [`full`] works here; a forked child
/// inherits the registration.
pub(super) fn register() -> bool {
    *ABLE.get_or_init(|| membarrier(libc::MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED) && full())
}

/// Executes the fence in every running thread of every registered process.
pub(super) fn full() -> bool {
    membarrier(libc::MEMBARRIER_CMD_GLOBAL_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    // SAFETY: takes no pointers.
    let r = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    r == 0
}
