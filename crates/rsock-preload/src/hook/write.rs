//! Hooks of `write`, `send` and the other calls that send bytes.

use super::rw_flags::message_flags;
use super::transfer::Stage;
use super::{alias, call_known, datagram, shortcut, transfer};
use crate::fdtable::{self, Begun, datagrams};
use crate::slot::Direction;
use crate::{arg, cancel, errno, next};
use libc::{c_int, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::io::IoSlice;
use std::ptr;

/// As `write(2)`.
///
/// # Safety
/// As `write(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn write(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
) -> ssize_t {
    // SAFETY: arguments passed on unchanged.
    let kernel = || unsafe { next::write(fd, buf, len) };
    if arg::is_refused(buf, len, || fdtable::is_known(fd)) {
        return kernel();
    }
    // SAFETY: a caller of `write` promises `len` readable bytes at `buf`.
    unsafe { send_by(fd, buf, len, 0, kernel) }
}

/// As `writev(2)`.
///
/// # Safety
/// As `writev(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn writev(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    if fdtable::is_known(fd)
        // SAFETY: a caller of `writev` promises `n` entries of readable bytes.
        && let Some(n) = cancel::without_cancel(|| unsafe { writev_with(fd, iov, n, 0) })
    {
        return n;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::writev(fd, iov, n) }
}

/// As `pwritev2(2)`: on a stream, `writev` with flags.
///
/// # Safety
/// As `pwritev2(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn pwritev2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let by_hook = || match message_flags(fd, flags)? {
        // SAFETY: a caller of `pwritev2` promises `n` entries of readable bytes.
        Ok(flags) => cancel::without_cancel(|| unsafe { writev_with(fd, iov, n, flags) }),
        Err(e) => Some(errno::fail(e)),
    };
    if offset == -1
        && fdtable::is_known(fd)
        && let Some(n) = by_hook()
    {
        return n;
    }
    // SAFETY: arguments passed on unchanged; a stream fails with ESPIPE at any other offset.
    unsafe { next::pwritev2(fd, iov, n, offset, flags) }
}

/// As `send(2)`.
///
/// # Safety
/// As `send(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn send(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: arguments passed on unchanged.
    let kernel = || unsafe { next::send(fd, buf, len, flags) };
    // SAFETY: a caller of `send` promises `len` readable bytes at `buf`.
    unsafe { send_by(fd, buf, len, flags, kernel) }
}

/// As `sendto(2)`. A connected stream ignores the address, except for its length.
///
/// # Safety
/// As `sendto(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sendto(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> ssize_t {
    // SAFETY: a caller of `sendto` promises `len` readable bytes at `buf`, and a readable address.
    let at_once = || unsafe { datagram::send_at_once(fd, buf, len, flags, addr, addr_len) };
    // SAFETY: as above.
    let by_hook = || call_known(fd, || unsafe { sendto_with(fd, buf, len, flags, addr, addr_len) });
    // The kernel reports an invalid length.
    let is_valid = addr.is_null() || addr_len as usize <= size_of::<libc::sockaddr_storage>();
    if is_valid && let Some(n) = at_once().or_else(by_hook) {
        return n;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::sendto(fd, buf, len, flags, addr, addr_len) }
}

alias! {
    __write = write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t;
    __send = send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    pwritev64v2 = pwritev2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int)
        -> ssize_t;
}

/// Sends by the shortcut, by the long way, or by `kernel`. A frame of this function has nothing to
/// drop.
///
/// # Safety
/// `buf` is null or has `len` readable bytes.
#[inline(always)]
unsafe fn send_by(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let tried = unsafe { shortcut::send(fd, buf, len, flags) };
    // SAFETY: the caller's promise.
    let datagram = || unsafe { datagram::send_at_once(fd, buf, len, flags, ptr::null(), 0) };
    // SAFETY: the caller's promise.
    let long_way = || unsafe { send_by_long_way(fd, buf, len, flags) };
    tried.or(kernel, |kernel| datagram().or_else(long_way).unwrap_or_else(kernel))
}

/// # Safety
/// `buf` is null or has `len` readable bytes.
#[inline(never)]
#[unsafe(link_section = "rsock_hooks")]
unsafe fn send_by_long_way(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    call_known(fd, || unsafe { send_with(fd, buf, len, flags) })
}

/// # Safety
/// `buf` is null or has `len` readable bytes.
#[inline]
#[unsafe(link_section = "rsock_hooks")]
unsafe fn send_with(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    match fdtable::begin_adopted(fd, Direction::Send) {
        // SAFETY: the caller's promise.
        Begun::Stream(handle) => match unsafe { arg::bytes(buf, len) } {
            Ok(bytes) => {
                transfer::send(handle, fd, &[IoSlice::new(bytes)], flags, Stage::Beginning)
            }
            Err(e) => Some(errno::fail(e)),
        },
        Begun::Kernel => None,
        // SAFETY: the caller's promise.
        Begun::Other => unsafe { send_otherwise(fd, buf, len, flags) },
    }
}

/// As [`send_with`], on a descriptor that has not been adopted as a stream.
///
/// # Safety
/// As [`send_with`].
unsafe fn send_otherwise(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise; the kernel reports other memory.
    if let Some(first) = unsafe { fdtable::send_bytes_first(fd, buf, len, flags) } {
        // SAFETY: the kernel has read as many bytes there.
        return unsafe { transfer::after_first_bytes(fd, first, buf, len, flags) };
    }
    if datagrams::is_udp(fd) {
        // SAFETY: the caller's promise; no address.
        return unsafe { datagram::send_bytes(fd, buf, len, flags, ptr::null(), 0) };
    }
    if !fdtable::is_connection(fd) {
        return None;
    }
    // SAFETY: the caller's promise.
    match unsafe { arg::bytes(buf, len) } {
        Ok(bytes) => transfer::send_any(fd, &[IoSlice::new(bytes)], flags),
        Err(e) => Some(errno::fail(e)),
    }
}

/// As [`send_with`]; a stream ignores the address.
///
/// # Safety
/// `buf` is null or has `len` readable bytes, `addr` is null or has `addr_len`.
#[inline]
unsafe fn sendto_with(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    addr: *const sockaddr,
    addr_len: socklen_t,
) -> Option<ssize_t> {
    if datagrams::is_udp(fd) {
        // SAFETY: the caller's promise.
        return unsafe { datagram::send_bytes(fd, buf, len, flags, addr, addr_len) };
    }
    // SAFETY: the caller's promise.
    if let Err(e) = unsafe { arg::check_address(addr.cast(), addr_len) } {
        return Some(errno::fail(e));
    }
    // SAFETY: the caller's promise.
    unsafe { send_with(fd, buf, len, flags) }
}

/// # Safety
/// `iov` is null or has `n` entries of readable bytes.
unsafe fn writev_with(fd: c_int, iov: *const iovec, n: c_int, flags: c_int) -> Option<ssize_t> {
    let begun = match fdtable::begin_adopted(fd, Direction::Send) {
        Begun::Stream(handle) => Some(handle),
        Begun::Kernel => return None,
        Begun::Other if datagrams::is_udp(fd) => {
            // SAFETY: the caller's promise.
            return unsafe { datagram::send_vector(fd, iov, n, flags) };
        }
        Begun::Other if fdtable::is_connection(fd) => None,
        Begun::Other => return None,
    };
    let Ok(n) = usize::try_from(n) else { return Some(errno::fail(libc::EINVAL)) };
    // SAFETY: the caller's promise.
    let result = unsafe {
        arg::with_slices(iov, n, libc::EINVAL, |bufs| {
            if bufs.iter().all(|buf| buf.is_empty()) {
                return Some(0);
            }
            match begun {
                Some(handle) => transfer::send(handle, fd, bufs, flags, Stage::Beginning),
                None => transfer::send_any(fd, bufs, flags),
            }
        })
    };
    result.unwrap_or_else(|e| Some(errno::fail(e)))
}
