//! Hooks of calls that make a process, other than `fork`.
//!
//! The children of `vfork` and `clone` may run in the memory of this process, which is noted
//! (`vfork.rs`). Both return twice, or on another stack, so each hook is a [`detour`].

use super::detour::detour;
use crate::{errno, fork, guard, handoff, next, tcp_only, vfork};
use libc::{c_int, c_void, pid_t};
use rsock_core::interrupt;

extern "C" fn before_vfork() -> *mut c_void {
    before_child(libc::CLONE_VM | libc::CLONE_VFORK);
    next::address::vfork()
}

extern "C" fn before_clone(_f: *mut c_void, _stack: *mut c_void, flags: c_int) -> *mut c_void {
    before_child(flags);
    next::address::clone()
}

/// To be called before `clone` makes a child with these flags, or a call that is one of its forms.
pub(super) fn before_child(flags: c_int) {
    let shares_memory = flags & libc::CLONE_VM != 0;
    // What goes back to TCP is looked up in lists that are allocated.
    if !interrupt::is_in_handler() && !guard::is_in_core() && !tcp_only::is_sandboxed() {
        let _errno = errno::Kept::now();
        if !shares_memory {
            fork::before_copy();
        } else if flags & libc::CLONE_VFORK != 0 {
            handoff::before_vfork();
        }
    }
    if shares_memory {
        vfork::note_shared_memory();
    }
}

/// As `_Fork(3)`: as `fork`, without the functions of `pthread_atfork`.
///
/// # Safety
/// As `_Fork(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[allow(non_snake_case, reason = "named after the C function")]
pub(crate) unsafe extern "C-unwind" fn _Fork() -> pid_t {
    before_child(0);
    // SAFETY: the caller's promise.
    unsafe { next::_Fork() }
}

/// As `vfork(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn vfork() {
    detour!(before_vfork)
}

/// As `vfork(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn __vfork() {
    detour!(before_vfork)
}

/// As `clone(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn clone() {
    detour!(before_clone)
}

/// As `clone(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn __clone() {
    detour!(before_clone)
}
