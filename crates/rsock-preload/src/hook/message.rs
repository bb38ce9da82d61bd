//! `sendmsg` and `recvmsg`, one and many.

use super::{datagram, hold_known, transfer};
use crate::fdtable::datagrams;
use crate::slot::Side;
use crate::{arg, errno, fdtable, guard, handover, next};
use libc::{c_int, c_uint, mmsghdr, msghdr, ssize_t, timespec};
use rsock_core::accelerate::{FallbackReason, Need};
use rustix::time::{ClockId, clock_gettime};
use std::ptr;
use std::slice;

/// As `sendmsg(2)`.
///
/// # Safety
/// As `sendmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
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
        && let Some(n) = guard::hold(|| unsafe { send_one(fd, msg, flags) })
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
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn recvmsg(
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> ssize_t {
    let ours = || {
        // SAFETY: a caller of `recvmsg` promises a valid message.
        hold_known(fd, || unsafe { recv_one(fd, msg, flags) })
    };
    // SAFETY: arguments passed on unchanged.
    datagrams::receive(fd, ours, || unsafe { next::recvmsg(fd, msg, flags) })
}

/// As `sendmmsg(2)`.
///
/// # Safety
/// As `sendmmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: a caller promises `n` valid messages.
    let all = unsafe { messages(msgs, n) };
    if all.is_empty() || !is_ours(fd, Side::Send) {
        for msg in all {
            // SAFETY: a valid message, by the same promise.
            if let Err(e) = unsafe { before_passing(&raw const msg.msg_hdr) } {
                return errno::fail_int(e);
            }
        }
        // SAFETY: arguments passed on unchanged.
        return unsafe { next::sendmmsg(fd, msgs, n, flags) };
    }
    // SAFETY: a valid message, by the same promise.
    let each = |msg: &mut mmsghdr| unsafe { sendmsg(fd, &raw const msg.msg_hdr, flags) };
    // Another thread may close the number after any message, and another file be given it.
    let key = fdtable::key(fd);
    let is_same = |_| fdtable::key(fd) == key;
    if !datagrams::is_one(fd) {
        return for_each(all, each, is_same);
    }
    let (mut done, mut is_kernels) = (0, false);
    while done < all.len() {
        let rest = &mut all[done..];
        let first =
            // SAFETY: valid messages, by the same promise.
            guard::hold(|| unsafe { datagram::send_first(fd, rest, flags, &mut is_kernels) });
        done += first.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let Some(next) = all.get_mut(done..done + 1) else { break };
        let sent = if is_kernels {
            // SAFETY: a valid message, by the same promise.
            for_each(
                next,
                |msg| unsafe { next::sendmsg(fd, &raw const msg.msg_hdr, flags) },
                |_| true,
            )
        } else {
            for_each(next, each, |_| true)
        };
        if sent != 1 {
            break;
        }
        done += 1;
        if !is_same(0) {
            break;
        }
    }
    if done == 0 { -1 } else { c_int::try_from(done).unwrap_or(c_int::MAX) }
}

/// As `recvmmsg(2)`.
///
/// # Safety
/// As `recvmmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let ours = || {
        // SAFETY: a caller promises `n` valid messages.
        let all = unsafe { messages(msgs, n) };
        if all.is_empty() || !is_ours(fd, Side::Recv) {
            return None;
        }
        // SAFETY: null or valid by the caller's promise.
        let limit = unsafe { timeout.as_ref() };
        // SAFETY: valid messages, by the same promise.
        Some(unsafe { recv_each(fd, all, flags, limit) })
    };
    // SAFETY: arguments passed on unchanged.
    let kernel = || unsafe { next::recvmmsg(fd, msgs, n, flags, timeout) };
    datagrams::receive(fd, ours, kernel)
}

/// Receives into one message after the other.
///
/// # Safety
/// `all` are valid messages.
unsafe fn recv_each(
    fd: c_int,
    all: &mut [mmsghdr],
    flags: c_int,
    limit: Option<&timespec>,
) -> c_int {
    let is_datagram = datagrams::is_one(fd);
    let now = || {
        let now = clock_gettime(ClockId::Monotonic);
        i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
    };
    let end = limit.map(|t| now() + i128::from(t.tv_sec) * 1_000_000_000 + i128::from(t.tv_nsec));
    let wait_for_one = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    let each = |msg: &mut mmsghdr| {
        // SAFETY: a valid message, by the caller's promise.
        let n = unsafe { recvmsg(fd, &raw mut msg.msg_hdr, flags) };
        if wait_for_one {
            flags |= libc::MSG_DONTWAIT;
        }
        n
    };
    // The end of the stream repeats itself; once is enough. The time is looked at after each
    // message only, as the kernel does.
    // Another thread may close the number after any message, and another file be given it.
    let key = fdtable::key(fd);
    let goes_on = |got| {
        (is_datagram || got != 0) && end.is_none_or(|end| now() < end) && fdtable::key(fd) == key
    };
    for_each(all, each, goes_on)
}

/// Whether `fd` may have messages for us in the given direction; a UDP socket counts it as a call.
fn is_ours(fd: c_int, side: Side) -> bool {
    fdtable::enter(fd, side).is_some() || datagrams::enter(fd, side).is_some()
}

/// The messages of a call, of which the kernel takes 1024 at most.
///
/// # Safety
/// `msgs` is null or has `n` valid messages during `'a`.
unsafe fn messages<'a>(msgs: *mut mmsghdr, n: c_uint) -> &'a mut [mmsghdr] {
    if msgs.is_null() {
        return &mut [];
    }
    // SAFETY: not null, so valid by the caller's promise.
    unsafe { slice::from_raw_parts_mut(msgs, n.min(1024) as usize) }
}

/// Runs `each` on the messages while it succeeds and `goes_on`, and counts.
fn for_each(
    msgs: &mut [mmsghdr],
    mut each: impl FnMut(&mut mmsghdr) -> ssize_t,
    goes_on: impl Fn(ssize_t) -> bool,
) -> c_int {
    let mut done = 0;
    for msg in msgs {
        let got = each(msg);
        let Ok(len) = c_uint::try_from(got) else {
            return if done == 0 { -1 } else { done };
        };
        msg.msg_len = len;
        done += 1;
        if !goes_on(got) {
            break;
        }
    }
    done
}

/// # Safety
/// `msg` is null or a valid message to send.
unsafe fn send_one(fd: c_int, msg: *const msghdr, flags: c_int) -> Option<ssize_t> {
    if datagrams::is_one(fd) {
        // SAFETY: the caller's promise.
        return unsafe { datagram::send_message(fd, msg, flags) };
    }
    let handle = fdtable::enter(fd, Side::Send)?;
    // SAFETY: null or valid by the caller's promise.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return Some(errno::fail(libc::EFAULT)) };
    if msg.msg_controllen != 0 && handle.twin().is_sole() {
        return Some(errno::fail(libc::EINVAL));
    }
    if msg.msg_controllen != 0 {
        drop(handle);
        // Time stamps, zero copy or a mistake: only the kernel knows.
        fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    if !msg.msg_name.is_null() && msg.msg_namelen.cast_signed() < 0 {
        return Some(errno::fail(libc::EINVAL));
    }
    // SAFETY: the vector of a valid message.
    let result = unsafe {
        arg::with_slices(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, |bufs| {
            transfer::send(handle, fd, bufs, flags)
        })
    };
    result.unwrap_or_else(|e| Some(errno::fail(e)))
}

/// # Safety
/// `msg` is null or a valid message to receive into.
unsafe fn recv_one(fd: c_int, msg: *mut msghdr, flags: c_int) -> Option<ssize_t> {
    if datagrams::is_one(fd) {
        // SAFETY: the caller's promise.
        return unsafe { datagram::recv_message(fd, msg, flags) };
    }
    let handle = fdtable::enter(fd, Side::Recv)?;
    // SAFETY: null or valid by the caller's promise.
    let Some(msg) = (unsafe { msg.as_mut() }) else { return Some(errno::fail(libc::EFAULT)) };
    if !msg.msg_name.is_null() && msg.msg_namelen.cast_signed() < 0 {
        return Some(errno::fail(libc::EINVAL));
    }
    // SAFETY: the vector of a valid message.
    let result = unsafe {
        arg::with_slices_mut(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, |bufs| {
            transfer::recv(handle, fd, bufs, flags)
        })
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

/// Hands over the streams whose descriptors the message passes to another process.
///
/// # Errors
/// Of [`handover::before_use`].
///
/// # Safety
/// `msg` is null or a valid message to send.
unsafe fn before_passing(msg: *const msghdr) -> Result<(), c_int> {
    // SAFETY: null or valid by the caller's promise.
    let Some(given) = (unsafe { msg.as_ref() }) else { return Ok(()) };
    let (control, len) = (given.msg_control, given.msg_controllen);
    if control.is_null() || len < size_of::<libc::cmsghdr>() {
        return Ok(());
    }
    // SAFETY: a valid message with control data.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !at.is_null() {
        // SAFETY: inside the control data; copied, because it need not be aligned.
        let header = unsafe { ptr::read_unaligned(at) };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            let header_len = size_of::<libc::cmsghdr>();
            let n = header.cmsg_len.min(len).saturating_sub(header_len) / size_of::<c_int>();
            // SAFETY: the data of a header inside the control data.
            let data = unsafe { libc::CMSG_DATA(at) };
            for i in 0..n {
                // SAFETY: `n` is what the length of the data says.
                let fd = unsafe { data.add(i * size_of::<c_int>()) };
                // SAFETY: as above; unaligned reads are what this call is for.
                let fd = unsafe { fd.cast::<c_int>().read_unaligned() };
                handover::before_use(fd, Need::Both, FallbackReason::Passed)?;
            }
        }
        // SAFETY: a header of this message.
        at = unsafe { libc::CMSG_NXTHDR(msg, at) };
    }
    Ok(())
}
