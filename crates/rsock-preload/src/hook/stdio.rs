//! Hooks of `fdopen` and `fclose`: libc's `FILE` streams over descriptors.

use super::alias;
use crate::{errno, guard, handoff, next};
use libc::{c_char, c_int};
use rsock_core::accelerate::{FallbackReason, Need};
use std::ffi::CStr;

/// As `fdopen(3)`. libc's `FILE` streams make their own system calls, so all bytes of the ring,
/// present and future, must come out of a kernel socket.
///
/// # Safety
/// As `fdopen(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: null or a C string by the caller's promise.
    let only_writes = !mode.is_null() && only_writes(unsafe { CStr::from_ptr(mode) });
    let need = if only_writes { Need::Write } else { Need::Both };
    if let Err(e) = handoff::before_unhooked_use(fd, need, FallbackReason::Stdio) {
        errno::set(e);
        return std::ptr::null_mut();
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::fdopen(fd, mode) }
}

/// Whether a stdio stream of this mode never reads.
fn only_writes(mode: &CStr) -> bool {
    matches!(mode.to_bytes(), [b'w' | b'a', rest @ ..] if !rest.contains(&b'+'))
}

/// As `fclose(3)`, which closes its descriptor without calling `close`.
///
/// # Safety
/// As `fclose(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn fclose(file: *mut libc::FILE) -> c_int {
    if !file.is_null() && !guard::is_in_core() {
        let kept = errno::Kept::now();
        // SAFETY: an open stream by the caller's promise.
        let fd = unsafe { libc::fileno(file) };
        drop(kept);
        super::note_closing(fd);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::fclose(file) }
}

alias! {
    _IO_fdopen = fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    _IO_fclose = fclose(file: *mut libc::FILE) -> c_int;
}
