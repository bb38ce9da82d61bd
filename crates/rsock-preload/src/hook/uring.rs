//! liburing's functions that make an io_uring.
//!
//! liburing makes its system calls by instructions of its own, which no hook of a libc function
//! sees. Programs that are linked with the shared library call these functions by name.

use crate::{log, process_handoff};
use libc::{c_int, c_uint, c_void, size_t};
use rsock_core::accelerate::FallbackReason;
use std::ffi::CStr;
use std::mem;

/// Declares hooks of functions of liburing, which return a negative errno on failure.
macro_rules! hooks {
    ($($name:ident ($($arg:ident: $ty:ty),*);)*) => {
        $(
            /// As liburing's function of that name; the process stays on TCP from then on.
            ///
            /// # Safety
            /// As liburing's function.
            #[cfg_attr(not(test), unsafe(no_mangle))]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
                const NAME: &str = concat!(stringify!($name), "\0");
                let Some(next) = CStr::from_bytes_with_nul(NAME.as_bytes()).ok().and_then(next)
                else {
                    return -libc::ENOSYS;
                };
                if let Err(e) = before() {
                    return -e;
                }
                // SAFETY: liburing's function of this name and signature.
                let next = unsafe {
                    mem::transmute::<*mut c_void, unsafe extern "C-unwind" fn($($ty),*) -> c_int>(
                        next,
                    )
                };
                // SAFETY: arguments passed on unchanged.
                unsafe { next($($arg),*) }
            }
        )*
    };
}

hooks! {
    io_uring_setup(entries: c_uint, params: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void,
        memory: *mut c_void, len: size_t);
    io_uring_queue_init_try_nosqarr(entries: c_uint, ring: *mut c_void, flags: c_uint);
}

/// Before the io_uring is made, because one call may make it and begin to use it.
fn before() -> Result<(), c_int> {
    log::line(format_args!("io_uring of liburing: the process stays on TCP"));
    process_handoff::begin(FallbackReason::IoUring)
}

/// liburing's own definition. A library that was loaded at run time for local use is not in the
/// order in which symbols are looked up, so it is searched by name.
fn next(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a C string.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return Some(found);
    }
    [c"liburing.so.2", c"liburing.so.1"].into_iter().find_map(|library| {
        // SAFETY: a C string; nothing is loaded that is not.
        let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        if handle.is_null() {
            return None;
        }
        // SAFETY: an open library and a C string.
        let found = unsafe { libc::dlsym(handle, name.as_ptr()) };
        // SAFETY: counted by `dlopen` just now; the caller's own use keeps it.
        unsafe { libc::dlclose(handle) };
        (!found.is_null()).then_some(found)
    })
}
