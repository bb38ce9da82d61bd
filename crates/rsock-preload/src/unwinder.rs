//! The unwinder's functions, found in `libgcc_s.so.1` when a panic or a cancellation needs one.
//!
//! Were that library needed at load time, the loader would search it for every symbol of the
//! program's libraries, before their own; a program that lives for a few milliseconds would take
//! nearly 1 % longer (decision 21). It is opened by name and not linked in, because
//! `pthread_cancel` opens it, too: an unwinder reads the frames that another one began to unwind
//! only where both are the same.
//!
//! Each function of the standard library's `unwind` crate is defined here as a jump to a Rust
//! function, in assembly, because Rust exports what it defines under a C name, and the program's
//! own C++ exceptions must not come here.

use crate::symbol::{Symbol, c_name};
use libc::{c_int, c_void, uintptr_t};
use rustix::fd::BorrowedFd;
use std::arch::global_asm;
use std::ffi::CStr;
use std::mem;
use std::ptr;

/// The unwinder's function of this name. Ends the process where there is none: a panic cannot go on
/// without it, nor return.
fn find_or_abort(name: &CStr) -> *mut c_void {
    // SAFETY: the name is a C string. The library stays open for good.
    let library = unsafe { libc::dlopen(c"libgcc_s.so.1".as_ptr(), libc::RTLD_NOW) };
    let at = if library.is_null() {
        ptr::null_mut()
    } else {
        // SAFETY: the library is open, and the name is a C string.
        unsafe { libc::dlsym(library, name.as_ptr()) }
    };
    if at.is_null() {
        const MISSING: &[u8] = b"rsock: libgcc_s.so.1, which unwinds the stack, is missing\n";
        // SAFETY: not -1. Where the number is closed, nothing is written.
        let stderr = unsafe { BorrowedFd::borrow_raw(libc::STDERR_FILENO) };
        let _ = rustix::io::write(stderr, MISSING);
        std::process::abort();
    }
    at
}

#[cfg(target_arch = "x86_64")]
macro_rules! jump {
    () => {
        "jmp {function}"
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! jump {
    () => {
        "b {function}"
    };
}

macro_rules! unwinder {
    ($($name:ident, $symbol:literal, ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        /// The unwinder's function of this name.
        ///
        /// # Safety
        /// As that function (Itanium C++ ABI, part I, "Exception Handling").
        unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> $ret {
            static FUNCTION: Symbol = Symbol::new();
            const NAME: &CStr = c_name(concat!($symbol, "\0"));
            // SAFETY: the function has this name, and this is its signature.
            let f = unsafe {
                mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($ty),*) -> $ret>(
                    FUNCTION.get(NAME, find_or_abort),
                )
            };
            // SAFETY: the caller's promise.
            unsafe { f($($arg),*) }
        }

        global_asm!(
            concat!(".globl ", $symbol),
            concat!(".hidden ", $symbol),
            concat!(".type ", $symbol, ",@function"),
            concat!($symbol, ":"),
            jump!(),
            function = sym $name,
        );
    )*};
}

/// A structure of the unwinder of which only its address is known here.
type Opaque = *mut c_void;

unwinder! {
    raise_exception, "_Unwind_RaiseException", (exception: Opaque) -> c_int;
    resume, "_Unwind_Resume", (exception: Opaque) -> ();
    delete_exception, "_Unwind_DeleteException", (exception: Opaque) -> ();
    backtrace, "_Unwind_Backtrace", (step: Opaque, argument: Opaque) -> c_int;
    language_specific_data, "_Unwind_GetLanguageSpecificData", (context: Opaque) -> Opaque;
    region_start, "_Unwind_GetRegionStart", (context: Opaque) -> uintptr_t;
    text_base, "_Unwind_GetTextRelBase", (context: Opaque) -> uintptr_t;
    data_base, "_Unwind_GetDataRelBase", (context: Opaque) -> uintptr_t;
    set_register, "_Unwind_SetGR", (context: Opaque, index: c_int, value: uintptr_t) -> ();
    set_ip, "_Unwind_SetIP", (context: Opaque, value: uintptr_t) -> ();
    ip, "_Unwind_GetIP", (context: Opaque) -> uintptr_t;
    ip_info, "_Unwind_GetIPInfo", (context: Opaque, is_before: *mut c_int) -> uintptr_t;
    cfa, "_Unwind_GetCFA", (context: Opaque) -> uintptr_t;
    enclosing_function, "_Unwind_FindEnclosingFunction", (pc: Opaque) -> Opaque;
}
