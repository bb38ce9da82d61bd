//! The hook of `connect`.

use super::alias;
use crate::fdtable::datagrams;
use crate::native_peer::connector;
use crate::{arg, errno, fdtable, guard, log, next, tcp_only};
use libc::{c_int, sockaddr, socklen_t};
use rsock_core::accelerate::NativeStream;

/// As `connect(2)`.
///
/// # Safety
/// As `connect(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn connect(
    fd: c_int,
    addr: *const sockaddr,
    len: socklen_t,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::connect(fd, addr, len) };
    if guard::is_in_core() || addr.is_null() || (len as usize) < size_of::<libc::sa_family_t>() {
        return result;
    }
    // SAFETY: inside an address that is long enough for its family.
    let family = unsafe { &raw const (*addr).sa_family };
    // SAFETY: readable by the caller's promise.
    let family = unsafe { family.read_unaligned() };
    if datagrams::is_udp(fd) {
        let _errno = errno::Kept::now();
        datagrams::note_connected(fd);
        return result;
    }
    match (result, c_int::from(family)) {
        (0, libc::AF_INET | libc::AF_INET6) => {
            fdtable::note_connected(fd);
            log::line(format_args!("fd {fd}: connected"));
        }
        (0, libc::AF_UNSPEC) => fdtable::note_disconnected(fd),
        (-1, libc::AF_INET | libc::AF_INET6) => {
            let mut e = errno::read();
            if matches!(e, libc::ECONNREFUSED | libc::EINPROGRESS)
                && NativeStream::may_connect_anywhere()
                && !tcp_only::is_on()
                // SAFETY: readable by the caller's promise.
                && let Some(remote) = unsafe { arg::address(addr, len) }
            {
                let again = || {
                    // SAFETY: arguments passed on unchanged.
                    if unsafe { next::connect(fd, addr, len) } == 0 { 0 } else { errno::read() }
                };
                match connector::after_refusal(fd, remote, e, again) {
                    Ok(()) => return 0,
                    Err(now) => e = now,
                }
                errno::set(e);
            }
            // Interrupted or non-blocking, the connection is still being made.
            if matches!(e, libc::EINPROGRESS | libc::EINTR | libc::EAGAIN) {
                fdtable::note_connecting(fd);
                log::line(format_args!("fd {fd}: connecting"));
                errno::set(e);
            }
        }
        _ => {}
    }
    result
}

alias! {
    __connect = connect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int;
}
