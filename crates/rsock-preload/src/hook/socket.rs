//! Sockets are made, connected, asked and shut down.

use super::alias;
use crate::slot::Side;
use crate::{errno, fdtable, guard, log, next, options};
use libc::{c_int, c_void, sockaddr, socklen_t};
use rsock_core::twin::PinReason;
use rustix::net::Shutdown;

/// As `socket(2)`.
///
/// # Safety
/// As `socket(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let fd = unsafe { next::socket(domain, kind, protocol) };
    if fd >= 0 && !guard::is_inside() {
        fdtable::note_made(fd);
    }
    fd
}

/// As `bind(2)`: the kernel's.
///
/// # Safety
/// As `bind(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn bind(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    unsafe { next::bind(fd, addr, len) }
}

/// As `listen(2)`: the kernel's.
///
/// # Safety
/// As `listen(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: arguments passed on unchanged.
    unsafe { next::listen(fd, backlog) }
}

/// As `accept(2)`.
///
/// # Safety
/// As `accept(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let new = unsafe { next::accept(fd, addr, len) };
    note_accepted(fd, new);
    new
}

/// As `accept4(2)`.
///
/// # Safety
/// As `accept4(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let new = unsafe { next::accept4(fd, addr, len, flags) };
    note_accepted(fd, new);
    new
}

fn note_accepted(listener: c_int, new: c_int) {
    if new >= 0 && !guard::is_inside() {
        fdtable::note_accepted(listener, new);
        log::line(format_args!("fd {new}: accepted on {listener}"));
    }
}

/// As `connect(2)`.
///
/// # Safety
/// As `connect(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn connect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::connect(fd, addr, len) };
    if guard::is_inside() || addr.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return result;
    }
    // SAFETY: inside an address that is long enough for its family.
    let family = unsafe { &raw const (*addr).sa_family };
    // SAFETY: readable by the caller's promise.
    let family = unsafe { family.read_unaligned() };
    match (result, c_int::from(family)) {
        (0, libc::AF_INET | libc::AF_INET6) => {
            fdtable::note_stream(fd, false);
            log::line(format_args!("fd {fd}: connected"));
        }
        (0, libc::AF_UNSPEC) => fdtable::note_disconnected(fd),
        (-1, libc::AF_INET | libc::AF_INET6) => {
            let e = errno::read();
            // Interrupted or not to be waited for, the connection goes on being made.
            if matches!(e, libc::EINPROGRESS | libc::EINTR | libc::EAGAIN) {
                fdtable::note_stream(fd, true);
                log::line(format_args!("fd {fd}: connecting"));
                errno::set(e);
            }
        }
        _ => {}
    }
    result
}

/// As `shutdown(2)`.
///
/// # Safety
/// As `shutdown(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let direction = match how {
        libc::SHUT_RD => Some(Shutdown::Read),
        libc::SHUT_WR => Some(Shutdown::Write),
        libc::SHUT_RDWR => Some(Shutdown::Both),
        _ => None,
    };
    if let Some(direction) = direction
        && let Some(handle) = fdtable::enter(fd, Side::Send)
        && handle.is_same_socket() != Some(false)
    {
        let result = guard::enter(|| handle.twin().shutdown(handle.fd(), direction));
        return errno::ret_int(result.map(|()| 0));
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::shutdown(fd, how) }
}

/// As `getsockname(2)`: the kernel's.
///
/// # Safety
/// As `getsockname(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    unsafe { next::getsockname(fd, addr, len) }
}

/// As `getpeername(2)`: the kernel's.
///
/// # Safety
/// As `getpeername(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    unsafe { next::getpeername(fd, addr, len) }
}

/// As `getsockopt(2)`: the kernel's answer.
///
/// # Safety
/// As `getsockopt(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if options::pins_when_asked(level, name) {
        fdtable::pin(fd, PinReason::Option);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::getsockopt(fd, level, name, value, len) }
}

/// As `setsockopt(2)`: the kernel's, and it may keep the stream on TCP.
///
/// # Safety
/// As `setsockopt(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let number = (!value.is_null() && len as usize >= size_of::<c_int>())
        // SAFETY: long enough for an int, and readable by the caller's promise.
        .then(|| unsafe { value.cast::<c_int>().read_unaligned() });
    if options::pins_when_set(level, name, number) {
        fdtable::pin(fd, PinReason::Option);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::setsockopt(fd, level, name, value, len) }
}

alias! {
    __connect = connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
}
