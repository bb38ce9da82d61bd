//! Descriptors are given to programs that are about to start.

use crate::slot::Side;
use crate::{fdtable, next};
use libc::{c_int, posix_spawn_file_actions_t};
use rsock_core::twin::PinReason;

/// As `posix_spawn_file_actions_adddup2(3)`. libc does what it says without calling `dup2`.
///
/// # Safety
/// As `posix_spawn_file_actions_adddup2(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    if fdtable::is_known(fd) {
        fdtable::pin(fd, PinReason::Passed);
        if let Some(handle) = fdtable::find(fd, Side::Send) {
            // What it still has in the ring is seen to when the program starts.
            handle.give();
        }
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::posix_spawn_file_actions_adddup2(actions, fd, new) }
}
