//! The kernel's asynchronous I/O (`io_submit(2)`), by `syscall` and by libaio's function: the
//! kernel itself reads, writes and polls. The stream leaves the ring before.
//!
//! libaio makes its system call by an instruction of its own. Programs that are linked with the
//! shared library call this function by name.

use crate::symbol::Symbol;
use crate::{arg, event_set, fdtable, handoff, next};
use libc::{c_int, c_long, c_void};
use rsock_core::accelerate::FallbackReason;
use std::ffi::CStr;
use std::{mem, ptr};

/// Looked up once: programs submit requests often.
static SUBMIT: Symbol = Symbol::new();

const LIBRARIES: &[&CStr] = &[c"libaio.so.1", c"libaio.so.1t64"];

type Submit = unsafe extern "C-unwind" fn(*mut c_void, c_long, *const *const Request) -> c_int;

/// A request, up to what is asked about it (`struct iocb` of linux/aio_abi.h).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Request {
    _data: u64,
    _key: [u32; 2],
    _opcode: u16,
    _priority: i16,
    fd: c_int,
}

/// As libaio's `io_submit(3)`: a negative errno on failure.
///
/// # Safety
/// As `io_submit(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn io_submit(
    context: *mut c_void,
    n: c_long,
    requests: *const *const Request,
) -> c_int {
    let next =
        SUBMIT.get(c"io_submit", |name| next::find_in(name, LIBRARIES).unwrap_or(ptr::null_mut()));
    if next.is_null() {
        return -libc::ENOSYS;
    }
    // SAFETY: the caller's promise.
    if let Err(e) = unsafe { before(n, requests) } {
        return -e;
    }
    // SAFETY: libaio's function, with this signature.
    let next = unsafe { mem::transmute::<*mut c_void, Submit>(next) };
    // SAFETY: arguments passed on unchanged.
    unsafe { next(context, n, requests) }
}

/// Hands off the streams and the epoll sets that the requests name.
///
/// # Errors
/// The errno with which the call must fail, because bytes would be lost.
///
/// # Safety
/// `requests` is memory of the program with `n` pointers to requests, or an address where there is
/// none.
pub(super) unsafe fn before(n: c_long, requests: *const *const Request) -> Result<(), c_int> {
    for i in 0..usize::try_from(n).unwrap_or(0) {
        // SAFETY: the caller's promise.
        let Ok(request) = (unsafe { arg::load(requests.wrapping_add(i)) }) else { break };
        // SAFETY: the caller's promise.
        let Ok(Request { fd, .. }) = (unsafe { arg::load(request) }) else { break };
        if fdtable::is_known(fd) || event_set::find(fd).is_some() {
            handoff::before_unhooked_use_of_any(fd, FallbackReason::Aio)?;
        }
    }
    // Where a request is not there, the kernel's call ends with it.
    Ok(())
}
