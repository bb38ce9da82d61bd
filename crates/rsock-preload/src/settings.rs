//! Whether the environment has settings: the core need not look for each by its name if not.

use libc::c_char;
use rsock_core::config::environment;
use std::ffi::CStr;
use std::iter;

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Tells the core if there are none. Called when the library is loaded, before the program could
/// change its environment.
pub(crate) fn look_for_any() {
    // SAFETY: a pointer of the C library, which no code changes while libraries are loaded.
    let mut next = unsafe { environ };
    if next.is_null() {
        return environment::note_empty();
    }
    let mut variables = iter::from_fn(|| {
        // SAFETY: not null, and the pointer below has not been the last.
        let variable = unsafe { *next };
        // SAFETY: the array ends with a null pointer, which the caller does not step over.
        next = unsafe { next.add(1) };
        // SAFETY: what is not null is a C string.
        (!variable.is_null()).then(|| unsafe { CStr::from_ptr(variable) })
    });
    let is_setting = |v: &CStr| v.to_bytes().starts_with(environment::PREFIX.as_bytes());
    if !variables.any(is_setting) {
        environment::note_empty();
    }
}
