//! Hooks of `vfork` and `clone`, whose children may run in the memory of this process. They only
//! note that (`vfork.rs`): both return twice, or on another stack, so each hook is a
//! [`detour`].

use super::detour::detour;
use crate::{next, vfork};
use libc::c_void;

extern "C" fn before_vfork() -> *mut c_void {
    vfork::note_shared_memory();
    next::address::vfork()
}

extern "C" fn before_clone() -> *mut c_void {
    vfork::note_shared_memory();
    next::address::clone()
}

/// As `vfork(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) extern "C" fn vfork() {
    detour!(before_vfork)
}

/// As `vfork(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) extern "C" fn __vfork() {
    detour!(before_vfork)
}

/// As `clone(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) extern "C" fn clone() {
    detour!(before_clone)
}

/// As `clone(2)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) extern "C" fn __clone() {
    detour!(before_clone)
}
