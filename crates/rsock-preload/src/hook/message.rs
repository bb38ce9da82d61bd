//! `sendmsg` and `recvmsg`.

use super::passed_fds::before_passing;
use super::transfer::Stage;
use super::{call_known, datagram, transfer};
use crate::fdtable::{self, datagrams};
use crate::slot::Direction;
use crate::{arg, cancel, errno, next};
use libc::{c_int, msghdr, ssize_t};
use rsock_core::accelerate::FallbackReason;

/// As `sendmsg(2)`.
///
/// # Safety
/// As `sendmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: a caller of `sendmsg` promises a valid message.
    if let Err(e) = unsafe { before_passing(msg) } {
        return errno::fail(e);
    }
    if fdtable::is_known(fd)
        // SAFETY: as above.
        && let Some(n) = cancel::without_cancel(|| unsafe { send_one(fd, msg, flags) })
    {
        return n;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::sendmsg(fd, msg, flags) }
}

/// As `recvmsg(2)`.
///
/// # Safety
/// As `recvmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    let by_hook = || {
        // SAFETY: a caller of `recvmsg` promises a valid message.
        call_known(fd, || unsafe { recv_one(fd, msg, flags, Stage::Beginning) })
    };
    // SAFETY: arguments passed on unchanged.
    datagrams::receive(fd, by_hook, || unsafe { next::recvmsg(fd, msg, flags) })
}

/// As [`recvmsg`], for a call that has received a message: an error of a stream is left for the
/// next call.
///
/// # Safety
/// As `recvmsg(2)`.
pub(super) unsafe fn recv_next(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
    let by_hook = || {
        // SAFETY: a caller promises a valid message.
        call_known(fd, || unsafe { recv_one(fd, msg, flags, Stage::Continued) })
    };
    // SAFETY: arguments passed on unchanged.
    datagrams::receive(fd, by_hook, || unsafe { next::recvmsg(fd, msg, flags) })
}

/// # Safety
/// `msg` is null or a valid message to send.
unsafe fn send_one(fd: c_int, msg: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if datagrams::is_udp(fd) {
        // SAFETY: the caller's promise.
        return unsafe { datagram::send_message(fd, msg, flags) };
    }
    let handle = fdtable::begin_call(fd, Direction::Send)?;
    // SAFETY: null or valid by the caller's promise.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return Some(errno::fail(libc::EFAULT)) };
    if msg.msg_controllen != 0 && handle.stream().is_native() {
        return Some(errno::fail(libc::EINVAL));
    }
    if msg.msg_controllen != 0 {
        drop(handle);
        // Time stamps, zero copy or a mistake: only the kernel can tell.
        fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    if !msg.msg_name.is_null() && msg.msg_namelen.cast_signed() < 0 {
        return Some(errno::fail(libc::EINVAL));
    }
    // SAFETY: memory of the program.
    if let Err(e) = unsafe { arg::check_address(msg.msg_name, msg.msg_namelen) } {
        return Some(errno::fail(e));
    }
    // SAFETY: the vector of a valid message.
    let result = unsafe {
        arg::with_slices(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, |bufs| {
            transfer::send(handle, fd, bufs, flags, Stage::Beginning)
        })
    };
    result.unwrap_or_else(|e| Some(errno::fail(e)))
}

/// # Safety
/// `msg` is null or a valid message to receive into.
unsafe fn recv_one(fd: c_int, msg: *mut msghdr, flags: c_int, stage: Stage) -> Option<ssize_t> {
    if datagrams::is_udp(fd) {
        // SAFETY: the caller's promise.
        return unsafe { datagram::recv_message(fd, msg, flags) };
    }
    let handle = fdtable::begin_call(fd, Direction::Recv)?;
    // SAFETY: null or valid by the caller's promise.
    let Some(msg) = (unsafe { msg.as_mut() }) else { return Some(errno::fail(libc::EFAULT)) };
    if !msg.msg_name.is_null() && msg.msg_namelen.cast_signed() < 0 {
        return Some(errno::fail(libc::EINVAL));
    }
    let result = if flags & libc::MSG_TRUNC != 0 {
        // SAFETY: the vector of a valid message.
        let len = unsafe { arg::len_of_slices(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE) };
        len.map(|len| transfer::discard(handle, fd, len, flags, stage))
    } else {
        // SAFETY: as above.
        unsafe {
            arg::with_slices_mut(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, |bufs| {
                transfer::recv(handle, fd, bufs, flags, stage)
            })
        }
    };
    let n = result.unwrap_or_else(|e| Some(errno::fail(e)))?;
    if n >= 0 {
        if !msg.msg_name.is_null() {
            msg.msg_namelen = 0;
        }
        msg.msg_controllen = 0;
        // COMPAT: the kernel reports this flag back, and no other for a stream.
        msg.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    }
    Some(n)
}
