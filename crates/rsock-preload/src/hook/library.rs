//! Hooks of `dlopen` and `dlmopen`, for libraries that call libc's functions past the hooks: one
//! that is loaded with `RTLD_DEEPBIND` finds libc's symbols before those of this library, and one
//! in a namespace of its own has another libc. Such a library may wait for, or read, a stream that
//! other code of the process made, so the process stays on TCP from then on.
//!
//! libc decides by the address of its caller where it searches for the library, so the hooks are
//! [`detour`]s.

use super::detour::detour;
use crate::{log, next, process_handoff};
use libc::{Lmid_t, c_char, c_int, c_void};
use rsock_core::accelerate::FallbackReason;

/// As `dlopen(3)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn dlopen() {
    detour!(before_dlopen)
}

/// As `dlmopen(3)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn dlmopen() {
    detour!(before_dlmopen)
}

/// Runs before a `dlopen`; returns the address to continue at.
extern "C" fn before_dlopen(file: *const c_char, flags: c_int) -> *mut c_void {
    if !file.is_null() && flags & libc::RTLD_DEEPBIND != 0 {
        leave_rings();
    }
    next::address::dlopen()
}

/// As [`before_dlopen`], for `dlmopen`.
extern "C" fn before_dlmopen(namespace: Lmid_t, _file: *const c_char, flags: c_int) -> *mut c_void {
    if namespace != libc::LM_ID_BASE || flags & libc::RTLD_DEEPBIND != 0 {
        leave_rings();
    }
    next::address::dlmopen()
}

fn leave_rings() {
    log::line(format_args!("a library that binds to libc first: the process stays on TCP"));
    // A stream that cannot leave stays as it is: to refuse the library would not help it.
    let _ = process_handoff::begin(FallbackReason::DeepBinding);
}
