//! Creates, binds, connects and closes sockets, and reads their addresses.

use crate::any_socket::AnySocket;
use crate::errno::{error, ret_int, ret_unit};
use crate::{arg, table};
use libc::{c_int, sockaddr, socklen_t};
use rsock_core::datagram::Datagram;
use rsock_core::rsocket::{Family, Socket};
use std::net::Shutdown;
use std::sync::atomic::Ordering;

/// As `socket(2)`: `AF_INET` or `AF_INET6`, `SOCK_STREAM` or `SOCK_DGRAM`, with `SOCK_NONBLOCK` and
/// `SOCK_CLOEXEC`. Anything else is `ENOTSUP`.
#[unsafe(no_mangle)]
pub extern "C" fn rsocket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    ret_int(|| {
        let flags = kind & (libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC);
        let family = match domain {
            libc::AF_INET => Family::V4,
            libc::AF_INET6 => Family::V6,
            _ => return error(libc::ENOTSUP),
        };
        let socket = match (kind & !flags, protocol) {
            (libc::SOCK_STREAM, 0 | libc::IPPROTO_TCP) => {
                AnySocket::Stream(Box::new(Socket::new(family)?))
            }
            (libc::SOCK_DGRAM, 0 | libc::IPPROTO_UDP) => {
                AnySocket::Datagram(Box::new(Datagram::new(family == Family::V6)?))
            }
            _ => return error(libc::ENOTSUP),
        };
        socket.set_nonblocking(flags & libc::SOCK_NONBLOCK != 0);
        table::insert(socket, flags & libc::SOCK_CLOEXEC != 0)
    })
}

/// As `bind(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbind(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    ret_unit(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `bind(2)` promises `len` readable bytes.
        let addr = unsafe { arg::address(addr, len) }?;
        entry.socket.bind(addr)
    })
}

/// As `listen(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn rlisten(fd: c_int, backlog: c_int) -> c_int {
    ret_unit(|| {
        let entry = table::get(fd)?;
        // As in the kernel, a negative backlog is a large one.
        entry.socket.stream()?.listen(u32::try_from(backlog).unwrap_or(u32::MAX))
    })
}

/// As `accept(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn raccept(fd: c_int, addr: *mut sockaddr, len: *mut socklen_t) -> c_int {
    ret_int(|| {
        let entry = table::get(fd)?;
        if !addr.is_null() && len.is_null() {
            return error(libc::EFAULT);
        }
        let socket = entry.socket.stream()?.accept()?;
        let peer = socket.peer_addr()?;
        let close_on_exec = entry.close_on_exec.load(Ordering::Relaxed);
        let accepted = table::insert(AnySocket::Stream(Box::new(socket)), close_on_exec)?;
        // SAFETY: the caller of `accept(2)` promises room for what `len` says.
        unsafe { arg::put_address(addr, len, peer) }?;
        Ok(accepted)
    })
}

/// As `connect(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rconnect(fd: c_int, addr: *const sockaddr, len: socklen_t) -> c_int {
    ret_unit(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `connect(2)` promises `len` readable bytes.
        let addr = unsafe { arg::address(addr, len) }?;
        entry.socket.connect(addr)
    })
}

/// As `shutdown(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn rshutdown(fd: c_int, how: c_int) -> c_int {
    ret_unit(|| {
        let entry = table::get(fd)?;
        entry.socket.shutdown(match how {
            libc::SHUT_RD => Shutdown::Read,
            libc::SHUT_WR => Shutdown::Write,
            libc::SHUT_RDWR => Shutdown::Both,
            _ => return error(libc::EINVAL),
        })
    })
}

/// As `close(2)`.
#[unsafe(no_mangle)]
pub extern "C" fn rclose(fd: c_int) -> c_int {
    ret_unit(|| {
        // Other threads may still be inside a call; this ends their waits.
        table::remove(fd)?.socket.close();
        Ok(())
    })
}

/// As `getpeername(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetpeername(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    ret_unit(|| {
        let peer = table::get(fd)?.socket.peer_addr()?;
        if addr.is_null() {
            return error(libc::EFAULT);
        }
        // SAFETY: the caller of `getpeername(2)` promises room for what `len` says.
        unsafe { arg::put_address(addr, len, peer) }
    })
}

/// As `getsockname(2)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockname(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    ret_unit(|| {
        let local = table::get(fd)?.socket.local_addr()?;
        if addr.is_null() {
            return error(libc::EFAULT);
        }
        // SAFETY: the caller of `getsockname(2)` promises room for what `len` says.
        unsafe { arg::put_address(addr, len, local) }
    })
}
