//! Formatted output to a descriptor: libc makes the system call itself, so such a stream stays on
//! TCP.
//!
//! `dprintf` takes a variable number of arguments: its hook is a [`detour`].

use super::detour::detour;
use crate::{fdtable, handoff, next};
use libc::{c_char, c_int, c_void};
use rsock_core::accelerate::{FallbackReason, Need};

/// As `vdprintf(3)`.
///
/// # Safety
/// As `vdprintf(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn vdprintf(
    fd: c_int,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    note(fd);
    // SAFETY: arguments passed on unchanged: C passes a `va_list` as a pointer here.
    unsafe { next::vdprintf(fd, format, args) }
}

/// As `vdprintf(3)`, checked.
///
/// # Safety
/// As `vdprintf(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn __vdprintf_chk(
    fd: c_int,
    flag: c_int,
    format: *const c_char,
    args: *mut c_void,
) -> c_int {
    note(fd);
    // SAFETY: arguments passed on unchanged.
    unsafe { next::__vdprintf_chk(fd, flag, format, args) }
}

/// As `backtrace_symbols_fd(3)`.
///
/// # Safety
/// As `backtrace_symbols_fd(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn backtrace_symbols_fd(
    frames: *const *mut c_void,
    n: c_int,
    fd: c_int,
) {
    note(fd);
    // SAFETY: arguments passed on unchanged.
    unsafe { next::backtrace_symbols_fd(frames, n, fd) }
}

fn note(fd: c_int) {
    if fdtable::has_no_tcp(fd) {
        // Bytes that libc writes itself must not be lost silently.
        let _ = handoff::before_unhooked_use(fd, Need::Write, FallbackReason::Stdio);
    } else if fdtable::is_known(fd) {
        fdtable::pin(fd, FallbackReason::Stdio);
    }
}

/// Runs before a `dprintf`; returns the address to continue at.
extern "C" fn before(fd: c_int) -> *mut c_void {
    note(fd);
    next::address::dprintf()
}

/// As [`before`], for the checked variant.
extern "C" fn before_checked(fd: c_int) -> *mut c_void {
    note(fd);
    next::address::__dprintf_chk()
}

/// As `dprintf(3)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn dprintf() {
    detour!(before)
}

/// As `dprintf(3)`, checked.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn __dprintf_chk() {
    detour!(before_checked)
}
