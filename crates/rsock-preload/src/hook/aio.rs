//! POSIX asynchronous I/O: libc's own threads read and write, without calling the hooks. The stream
//! leaves the ring before.

use super::alias;
use crate::{errno, fdtable, handoff, next};
use libc::{aiocb, c_int, sigevent};
use rsock_core::accelerate::{FallbackReason, Need};
use std::slice;

/// As `aio_read(3)`.
///
/// # Safety
/// As `aio_read(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn aio_read(request: *mut aiocb) -> c_int {
    // SAFETY: null or a request, by the caller's promise.
    if let Err(e) = unsafe { before(request, Need::Both) } {
        return errno::fail_int(e);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::aio_read(request) }
}

/// As `aio_write(3)`.
///
/// # Safety
/// As `aio_write(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn aio_write(request: *mut aiocb) -> c_int {
    // SAFETY: null or a request, by the caller's promise.
    if let Err(e) = unsafe { before(request, Need::Write) } {
        return errno::fail_int(e);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::aio_write(request) }
}

/// As `lio_listio(3)`.
///
/// # Safety
/// As `lio_listio(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn lio_listio(
    mode: c_int,
    list: *const *mut aiocb,
    n: c_int,
    event: *mut sigevent,
) -> c_int {
    let n_requests = usize::try_from(n).unwrap_or(0);
    let requests = if list.is_null() {
        &[][..]
    } else {
        // SAFETY: not null, so `n` entries by the caller's promise.
        unsafe { slice::from_raw_parts(list, n_requests) }
    };
    for &request in requests {
        // SAFETY: null or a request, by the caller's promise.
        let need = match unsafe { request.as_ref() }.map(|request| request.aio_lio_opcode) {
            Some(libc::LIO_READ) => Need::Both,
            Some(libc::LIO_WRITE) => Need::Write,
            _ => continue,
        };
        // SAFETY: as above.
        if let Err(e) = unsafe { before(request, need) } {
            return errno::fail_int(e);
        }
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::lio_listio(mode, list, n, event) }
}

// On 64-bit systems these are the same functions.
alias! {
    aio_read64 = aio_read(request: *mut aiocb) -> c_int;
    aio_write64 = aio_write(request: *mut aiocb) -> c_int;
    lio_listio64 = lio_listio(mode: c_int, list: *const *mut aiocb, n: c_int, event: *mut sigevent)
        -> c_int;
}

/// # Safety
/// `request` is null or a request.
unsafe fn before(request: *const aiocb, need: Need) -> Result<(), c_int> {
    // SAFETY: null or valid by the caller's promise.
    let Some(request) = (unsafe { request.as_ref() }) else { return Ok(()) };
    let fd = request.aio_fildes;
    if fdtable::is_known(fd) {
        handoff::before_unhooked_use(fd, need, FallbackReason::Aio)
    } else {
        Ok(())
    }
}
