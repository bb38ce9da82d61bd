//! Hooks of `socket`, `socketpair`, `bind`, `listen`, `shutdown`, `getsockname` and `getpeername`.

use crate::fdtable::datagrams;
use crate::native_peer::listeners;
use crate::room::with_room;
use crate::slot::Direction;
use crate::{arg, errno, event_set, fdtable, guard, next, tcp_only};
use libc::{c_int, sockaddr, socklen_t};
use rsock_core::accelerate::note_kernel_call;
use rustix::net::Shutdown;
use std::net::SocketAddr;

/// As `socket(2)`.
///
/// # Safety
/// As `socket(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn socket(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let fd = with_room(|| unsafe { next::socket(domain, kind, protocol) });
    if fd >= 0 && !guard::is_in_core() {
        fdtable::note_made(fd);
        let kind = kind & !(libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
        if kind == libc::SOCK_DGRAM && matches!(domain, libc::AF_INET | libc::AF_INET6) {
            datagrams::note_made(fd);
        }
    }
    fd
}

/// As `socketpair(2)`: its sockets may have numbers that this library still takes for others.
///
/// # Safety
/// As `socketpair(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    pair: *mut c_int,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::socketpair(domain, kind, protocol, pair) };
    if result == 0 && !guard::is_in_core() {
        // SAFETY: the kernel has written two numbers there.
        let made = unsafe { pair.cast::<[c_int; 2]>().read_unaligned() };
        made.into_iter().for_each(fdtable::note_made);
    }
    result
}

/// As `bind(2)`, by the kernel.
///
/// # Safety
/// As `bind(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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

/// As `listen(2)`, by the kernel, with a native listener where the configuration wants one.
///
/// # Safety
/// As `listen(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn listen(fd: c_int, backlog: c_int) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::listen(fd, backlog) };
    if result == 0 && !guard::is_in_core() && !tcp_only::is_on() {
        listeners::note_listening(fd);
    }
    result
}

/// As `shutdown(2)`.
///
/// # Safety
/// As `shutdown(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let direction = match how {
        libc::SHUT_RD => Some(Shutdown::Read),
        libc::SHUT_WR => Some(Shutdown::Write),
        libc::SHUT_RDWR => Some(Shutdown::Both),
        _ => None,
    };
    if let Some(direction) = direction
        && let Some(handle) = fdtable::begin_call(fd, Direction::Send)
        && handle.is_same_socket() != Some(false)
    {
        note_kernel_call();
        let result = guard::call_core(|| handle.stream().shutdown(handle.fd(), direction));
        event_set::note_changed(fd);
        return errno::ret_int(result.map(|()| 0));
    }
    datagrams::note_shutdown(fd);
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::shutdown(fd, how) };
    event_set::note_changed(fd);
    result
}

/// As `getsockname(2)`, by the kernel, except for streams without TCP.
///
/// # Safety
/// As `getsockname(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn getsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if let Some([local, _]) = native_addrs(fd).filter(|_| !addr.is_null() && !len.is_null()) {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { arg::put_address(local, addr, len) };
        return 0;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::getsockname(fd, addr, len) }
}

/// As `getpeername(2)`, by the kernel, except for streams without TCP.
///
/// # Safety
/// As `getpeername(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn getpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if let Some([_, peer]) = native_addrs(fd).filter(|_| !addr.is_null() && !len.is_null()) {
        // SAFETY: not null, so valid by the caller's promise.
        unsafe { arg::put_address(peer, addr, len) };
        return 0;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::getpeername(fd, addr, len) }
}

/// The addresses of a stream without TCP: its descriptor does not have them.
fn native_addrs(fd: c_int) -> Option<[SocketAddr; 2]> {
    if !fdtable::is_stream(fd) {
        return None;
    }
    Some(fdtable::find(fd, Direction::Send)?.stream().native()?.addrs())
}
