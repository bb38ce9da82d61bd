//! liburing's functions that make an io_uring.
//!
//! liburing makes its system calls by instructions of its own, which no hook of a libc function
//! sees. Programs that are linked with the shared library call these functions by name.

use crate::{log, next, process_handoff};
use libc::{c_int, c_uint, c_void, size_t};
use rsock_core::accelerate::FallbackReason;
use std::ffi::CStr;
use std::mem;

const LIBRARIES: &[&CStr] = &[c"liburing.so.2", c"liburing.so.1"];

/// Declares hooks of functions of liburing, which return a negative errno on failure.
macro_rules! hooks {
    ($($name:ident ($($arg:ident: $ty:ty),*);)*) => {
        $(
            /// As liburing's function of that name; the process stays on TCP from then on.
            ///
            /// # Safety
            /// As liburing's function.
            #[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
            pub(crate) unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
                const NAME: &str = concat!(stringify!($name), "\0");
                let name = CStr::from_bytes_with_nul(NAME.as_bytes()).ok();
                let Some(next) = name.and_then(|name| next::find_in(name, LIBRARIES)) else {
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
