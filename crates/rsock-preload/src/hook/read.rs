//! Hooks of `read`, `recv` and the other calls that receive bytes.

use super::rw_flags::message_flags;
use super::transfer::Stage;
use super::{alias, call_known, datagram, shortcut, transfer};
use crate::fdtable::{self, Begun, datagrams};
use crate::slot::Direction;
use crate::{arg, cancel, errno, next};
use libc::{c_int, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t};
use std::io::IoSliceMut;
use std::ptr;

/// As `read(2)`.
///
/// # Safety
/// As `read(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
    // SAFETY: arguments passed on unchanged.
    let kernel = || unsafe { next::read(fd, buf, len) };
    if arg::is_refused(buf, len, || fdtable::is_known(fd)) {
        return kernel();
    }
    // SAFETY: a caller of `read` promises `len` writable bytes at `buf`.
    let by_hook = || call_known(fd, || unsafe { read_with(fd, buf, len) });
    // SAFETY: as above.
    unsafe { recv_by(fd, buf, len, 0, by_hook, kernel) }
}

/// As `readv(2)`.
///
/// # Safety
/// As `readv(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn readv(fd: c_int, iov: *const iovec, n: c_int) -> ssize_t {
    let by_hook = || {
        // SAFETY: a caller of `readv` promises `n` entries of writable bytes.
        call_known(fd, || unsafe { readv_with(fd, iov, n, 0) })
    };
    // SAFETY: arguments passed on unchanged.
    datagrams::receive(fd, by_hook, || unsafe { next::readv(fd, iov, n) })
}

/// As `preadv2(2)`: on a stream, `readv` with flags.
///
/// # Safety
/// As `preadv2(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn preadv2(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    offset: off_t,
    flags: c_int,
) -> ssize_t {
    let by_hook = || {
        if offset != -1 || !fdtable::is_known(fd) {
            return None;
        }
        match message_flags(fd, flags)? {
            // SAFETY: a caller of `preadv2` promises `n` entries of writable bytes.
            Ok(flags) => cancel::without_cancel(|| unsafe { readv_with(fd, iov, n, flags) }),
            Err(e) => Some(errno::fail(e)),
        }
    };
    // SAFETY: arguments passed on unchanged; a stream fails with ESPIPE at any other offset.
    datagrams::receive(fd, by_hook, || unsafe { next::preadv2(fd, iov, n, offset, flags) })
}

/// As `recv(2)`.
///
/// # Safety
/// As `recv(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn recv(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> ssize_t {
    // SAFETY: arguments passed on unchanged.
    let kernel = || unsafe { next::recv(fd, buf, len, flags) };
    // SAFETY: a caller of `recv` promises `len` writable bytes at `buf`.
    let by_hook = || call_known(fd, || unsafe { recv_with(fd, buf, len, flags) });
    // SAFETY: as above.
    unsafe { recv_by(fd, buf, len, flags, by_hook, kernel) }
}

/// As `recvfrom(2)`. A connected stream has no address to report.
///
/// # Safety
/// As `recvfrom(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn recvfrom(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    let by_hook = || {
        if datagrams::is_udp(fd) {
            // SAFETY: a caller of `recvfrom` promises `len` writable bytes at `buf`, and room for
            // an address.
            return cancel::without_cancel(|| unsafe {
                datagram::recv_bytes(fd, buf, len, flags, addr, addr_len)
            });
        }
        // SAFETY: a caller of `recvfrom` promises `len` writable bytes at `buf`.
        let n = call_known(fd, || unsafe { recv_with(fd, buf, len, flags) })?;
        if n >= 0
            && !addr.is_null()
            // SAFETY: memory of the program, or an address where there is none.
            && let Err(e) = unsafe { store_no_address(addr_len) }
        {
            return Some(errno::fail(e));
        }
        Some(n)
    };
    // SAFETY: arguments passed on unchanged.
    let kernel = || unsafe { next::recvfrom(fd, buf, len, flags, addr, addr_len) };
    // SAFETY: as above.
    let tried = unsafe { datagram::recv_at_once(fd, buf, len, flags, addr, addr_len) };
    tried.unwrap_or_else(|| datagrams::receive(fd, by_hook, kernel))
}

/// As `read(2)`, of at most `room` bytes.
///
/// # Safety
/// As `read(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
) -> ssize_t {
    if len > room {
        // SAFETY: arguments passed on unchanged; the next definition ends the program.
        return unsafe { next::__read_chk(fd, buf, len, room) };
    }
    // SAFETY: a caller promises `len` writable bytes at `buf`.
    unsafe { read(fd, buf, len) }
}

/// As `recv(2)`, of at most `room` bytes.
///
/// # Safety
/// As `recv(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn __recv_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if len > room {
        // SAFETY: arguments passed on unchanged; the next definition ends the program.
        return unsafe { next::__recv_chk(fd, buf, len, room, flags) };
    }
    // SAFETY: a caller promises `len` writable bytes at `buf`.
    unsafe { recv(fd, buf, len, flags) }
}

/// As `recvfrom(2)`, of at most `room` bytes.
///
/// # Safety
/// As `recvfrom(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn __recvfrom_chk(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    room: size_t,
    flags: c_int,
    addr: *mut sockaddr,
    addr_len: *mut socklen_t,
) -> ssize_t {
    if len > room {
        // SAFETY: arguments passed on unchanged; the next definition ends the program.
        return unsafe { next::__recvfrom_chk(fd, buf, len, room, flags, addr, addr_len) };
    }
    // SAFETY: a caller promises `len` writable bytes at `buf`, and room for the address.
    unsafe { recvfrom(fd, buf, len, flags, addr, addr_len) }
}

alias! {
    __read = read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t;
    preadv64v2 = preadv2(fd: c_int, iov: *const iovec, n: c_int, offset: off_t, flags: c_int)
        -> ssize_t;
}

/// Stores the length of no address. As the kernel does it, after the bytes were received.
///
/// # Safety
/// `len` is memory of the program that the call is to write, or an address where there is none.
unsafe fn store_no_address(len: *mut socklen_t) -> Result<(), c_int> {
    // SAFETY: the caller's promise; an integer.
    let room = unsafe { arg::load(len) }?;
    if room.cast_signed() < 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's promise.
    unsafe { arg::store(&0, len) }
}

/// Receives by the shortcut of streams or of datagrams, by `by_hook`, or by `kernel`. A frame of
/// this function has nothing to drop.
///
/// # Safety
/// `buf` is null or has `len` writable bytes.
#[inline(always)]
unsafe fn recv_by(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    by_hook: impl FnMut() -> Option<ssize_t>,
    kernel: impl Fn() -> ssize_t,
) -> ssize_t {
    // SAFETY: the caller's promise.
    let tried = unsafe { shortcut::recv(fd, buf, len, flags) };
    let (from, from_len) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the caller's promise, and no room for an address.
    let datagram = || unsafe { datagram::recv_at_once(fd, buf, len, flags, from, from_len) };
    tried.or(kernel, |kernel| datagram().unwrap_or_else(|| datagrams::receive(fd, by_hook, kernel)))
}

/// # Safety
/// `buf` is null or has `len` writable bytes.
#[inline]
unsafe fn read_with(fd: c_int, buf: *mut c_void, len: size_t) -> Option<ssize_t> {
    if len == 0 {
        // COMPAT: `read` of nothing returns at once, unlike `recv`.
        return fdtable::begin_call(fd, Direction::Recv).map(|_| 0);
    }
    // SAFETY: the caller's promise.
    unsafe { recv_with(fd, buf, len, 0) }
}

/// # Safety
/// `buf` is null or has `len` writable bytes.
#[inline]
unsafe fn recv_with(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> Option<ssize_t> {
    match fdtable::begin_adopted(fd, Direction::Recv) {
        Begun::Stream(handle) if flags & libc::MSG_TRUNC != 0 => {
            transfer::discard(handle, fd, len, flags, Stage::Beginning)
        }
        // SAFETY: the caller's promise.
        Begun::Stream(handle) => match unsafe { arg::bytes_mut(buf, len) } {
            Ok(room) => {
                transfer::recv(handle, fd, &mut [IoSliceMut::new(room)], flags, Stage::Beginning)
            }
            Err(_) => transfer::recv_nowhere(handle, fd, flags),
        },
        Begun::Kernel => None,
        // SAFETY: the caller's promise.
        Begun::Other => unsafe { recv_otherwise(fd, buf, len, flags) },
    }
}

/// As [`recv_with`], on a descriptor that has not been adopted as a stream.
///
/// # Safety
/// As [`recv_with`].
unsafe fn recv_otherwise(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise; the kernel reports other memory.
    if let Some(first) = unsafe { fdtable::recv_bytes_first(fd, buf, len, flags) } {
        return Some(errno::ret_len(first));
    }
    if datagrams::is_udp(fd) {
        // SAFETY: the caller's promise; no address.
        return unsafe {
            datagram::recv_bytes(fd, buf, len, flags, ptr::null_mut(), ptr::null_mut())
        };
    }
    if !fdtable::is_connection(fd) {
        return None;
    }
    if flags & libc::MSG_TRUNC != 0 {
        let handle = fdtable::begin_call(fd, Direction::Recv)?;
        return transfer::discard(handle, fd, len, flags, Stage::Beginning);
    }
    // SAFETY: the caller's promise.
    match unsafe { arg::bytes_mut(buf, len) } {
        Ok(room) => transfer::recv_any(fd, &mut [IoSliceMut::new(room)], flags),
        Err(_) => {
            let handle = fdtable::begin_call(fd, Direction::Recv)?;
            transfer::recv_nowhere(handle, fd, flags)
        }
    }
}

/// # Safety
/// `iov` is null or has `n` entries of writable bytes.
unsafe fn readv_with(fd: c_int, iov: *const iovec, n: c_int, flags: c_int) -> Option<ssize_t> {
    if datagrams::is_udp(fd) {
        // SAFETY: the caller's promise.
        return unsafe { datagram::recv_vector(fd, iov, n, flags) };
    }
    if !fdtable::is_connection(fd) {
        return None;
    }
    let Ok(n) = usize::try_from(n) else { return Some(errno::fail(libc::EINVAL)) };
    // SAFETY: the caller's promise.
    let result = unsafe {
        arg::with_slices_mut(iov, n, libc::EINVAL, |bufs| {
            if bufs.iter().all(|buf| buf.is_empty()) {
                return Some(0);
            }
            transfer::recv_any(fd, bufs, flags)
        })
    };
    result.unwrap_or_else(|e| Some(errno::fail(e)))
}
