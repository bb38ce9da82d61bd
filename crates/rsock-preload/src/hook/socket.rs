//! Sockets are made, connected, asked and shut down.

use super::alias;
use crate::doors::Accepted;
use crate::fdtable::datagrams;
use crate::slot::Side;
use crate::{arg, calling, doors, errno, fdtable, guard, log, next, options, tcp_only};
use libc::{c_int, c_void, sockaddr, socklen_t};
use rsock_core::accelerate::FallbackReason;
use rustix::net::Shutdown;
use std::net::SocketAddr;

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
        let kind = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        if kind == libc::SOCK_DGRAM && matches!(domain, libc::AF_INET | libc::AF_INET6) {
            datagrams::note_made(fd);
        }
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
    let result = unsafe { next::bind(fd, addr, len) };
    if result == 0 {
        datagrams::note_bound(fd);
    }
    result
}

/// As `listen(2)`: the kernel's, and a door beside it where the configuration wants one.
///
/// # Safety
/// As `listen(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::listen(fd, backlog) };
    if result == 0 && !guard::is_inside() && !tcp_only::is_on() {
        doors::note_listening(fd);
    }
    result
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
    if fdtable::is_listening(fd)
        && let Some(new) = guard::hold(|| {
            // SAFETY: arguments passed on, with another descriptor of the same socket.
            let kernel = |fd| unsafe { next::accept(fd, addr, len) };
            // SAFETY: the promise of a caller of `accept`.
            unsafe { accept_at_door(fd, addr, len, 0, kernel) }
        })
    {
        return new;
    }
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
    if fdtable::is_listening(fd)
        && flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == 0
        && let Some(new) = guard::hold(|| {
            // SAFETY: arguments passed on, with another descriptor of the same socket.
            let kernel = |fd| unsafe { next::accept4(fd, addr, len, flags) };
            // SAFETY: the promise of a caller of `accept4`.
            unsafe { accept_at_door(fd, addr, len, flags, kernel) }
        })
    {
        return new;
    }
    // SAFETY: arguments passed on unchanged.
    let new = unsafe { next::accept4(fd, addr, len, flags) };
    note_accepted(fd, new);
    new
}

/// As `accept` on a listening socket that may have a door, and whose kernel queue `kernel` asks. `None` if
/// it has none.
///
/// # Safety
/// As `accept(2)`.
unsafe fn accept_at_door(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
    kernel: impl Fn(c_int) -> c_int,
) -> Option<c_int> {
    let accepted = doors::accept(fd, flags, kernel)?;
    match accepted {
        Accepted::Kernel(new) => note_accepted(fd, new),
        Accepted::Visitor(new, peer) => {
            log::line(format_args!("fd {new}: accepted on {fd}, from {peer} without TCP"));
            if !addr.is_null() && !len.is_null() {
                // SAFETY: not null, so valid by the caller's promise.
                unsafe { arg::put_address(peer, addr, len) };
            }
        }
        Accepted::Failed(_) => {}
    }
    Some(accepted.answer())
}

/// The addresses of a stream whose descriptor does not have them.
fn sole_addrs(fd: c_int) -> Option<[SocketAddr; 2]> {
    if !fdtable::is_stream(fd) {
        return None;
    }
    fdtable::find(fd, Side::Send)?.twin().sole_addrs()
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
    if datagrams::is_one(fd) {
        let e = errno::read();
        datagrams::note_connected(fd);
        errno::set(e);
        return result;
    }
    match (result, c_int::from(family)) {
        (0, libc::AF_INET | libc::AF_INET6) => {
            fdtable::note_stream(fd, false);
            log::line(format_args!("fd {fd}: connected"));
        }
        (0, libc::AF_UNSPEC) => fdtable::note_disconnected(fd),
        (-1, libc::AF_INET | libc::AF_INET6) => {
            let mut e = errno::read();
            if matches!(e, libc::ECONNREFUSED | libc::EINPROGRESS)
                && !tcp_only::is_on()
                // SAFETY: readable by the caller's promise.
                && let Some(remote) = unsafe { arg::address(addr, len) }
            {
                let again = || {
                    // SAFETY: arguments passed on unchanged.
                    if unsafe { next::connect(fd, addr, len) } == 0 { 0 } else { errno::read() }
                };
                match calling::after_failure(fd, remote, e, again) {
                    Ok(()) => return 0,
                    Err(now) => e = now,
                }
                errno::set(e);
            }
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
    datagrams::note_shutdown(fd);
    // SAFETY: arguments passed on unchanged.
    unsafe { next::shutdown(fd, how) }
}

/// As `getsockname(2)`: the kernel's, where it knows.
///
/// # Safety
/// As `getsockname(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if let Some([local, _]) = sole_addrs(fd).filter(|_| !addr.is_null() && !len.is_null()) {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { arg::put_address(local, addr, len) };
        return 0;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::getsockname(fd, addr, len) }
}

/// As `getpeername(2)`: the kernel's, where it knows.
///
/// # Safety
/// As `getpeername(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if let Some([_, peer]) = sole_addrs(fd).filter(|_| !addr.is_null() && !len.is_null()) {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { arg::put_address(peer, addr, len) };
        return 0;
    }
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
        fdtable::pin(fd, FallbackReason::Option);
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
    let is_datagram = datagrams::is_one(fd);
    let pins = match is_datagram {
        true => options::pins_datagrams_when_set(level, name, number),
        false => options::pins_when_set(level, name, number),
    };
    if pins {
        fdtable::pin(fd, FallbackReason::Option);
    }
    if is_datagram && (level, name) == (libc::SOL_SOCKET, libc::SO_REUSEADDR) {
        datagrams::note_reuse(fd);
    }
    // SAFETY: arguments passed on unchanged.
    let done = unsafe { next::setsockopt(fd, level, name, value, len) };
    if done == 0 && options::is_of_keepalive(level, name) {
        fdtable::follow_keepalive(fd);
    }
    done
}

alias! {
    __connect = connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
}
