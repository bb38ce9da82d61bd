//! The hooks of `pthread_cancel` and `pthread_setcanceltype`.

use crate::cancel;
use libc::{c_int, pthread_t};

/// As `pthread_cancel(3)`.
///
/// # Safety
/// As `pthread_cancel(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { cancel::cancel_thread(thread) }
}

/// As `pthread_setcanceltype(3)`.
///
/// # Safety
/// As `pthread_setcanceltype(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn pthread_setcanceltype(
    kind: c_int,
    old: *mut c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { cancel::set_type(kind, old) }
}
