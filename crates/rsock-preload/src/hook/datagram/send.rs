//! Sends datagrams past the kernel.

use crate::fdtable::datagrams;
use crate::slot::Direction;
use crate::{arg, errno, guard, options};
use libc::{c_int, c_uint, c_void, iovec, mmsghdr, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use rsock_core::accelerate::FallbackReason;
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::ptr;

/// Sends `bufs` as one datagram on `fd`, to the address at `to` or the peer of a connected socket.
///
/// # Safety
/// `to` is null or has `to_len` readable bytes.
unsafe fn send(
    fd: c_int,
    bufs: &[IoSlice<'_>],
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<ssize_t> {
    let handle = datagrams::begin_call(fd, Direction::Send)?;
    let udp = handle.udp()?;
    if flags & !options::DATAGRAM_SEND_FLAGS != 0 {
        drop(handle);
        crate::fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    // SAFETY: the caller's promise.
    let Some(to) = (unsafe { destination(udp, to, to_len) }) else {
        udp.note_sent_by_kernel();
        return None;
    };
    let sent = guard::call_core(|| Ok(udp.send(handle.fd(), bufs, to)));
    datagrams::log_news(fd, udp);
    if sent != Ok(true) {
        return None;
    }
    let len: usize = bufs.iter().map(|buf| buf.len()).sum();
    Some(errno::ret_len(Ok(len)))
}

/// The destination of a datagram: the address at `to`, or none for the peer of a connected socket.
/// The outer `None` leaves the call to the kernel.
///
/// # Safety
/// `to` is null or has `to_len` readable bytes.
#[inline]
pub(super) unsafe fn destination(
    udp: &AcceleratedUdp,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<Option<SocketAddr>> {
    if to.is_null() {
        return Some(None);
    }
    // SAFETY: the caller's promise.
    let to = unsafe { arg::address(to, to_len) }?;
    // An address of the other family, or with a scope: only the kernel can resolve it.
    let is_plain = match to {
        SocketAddr::V4(_) => !udp.is_v6(),
        SocketAddr::V6(to) => udp.is_v6() && to.scope_id() == 0,
    };
    is_plain.then_some(Some(to))
}

/// Sends the first of `msgs`, as many as can go past the kernel, with one doorbell for all that go
/// to one peer, and stores their lengths. Returns their number. Sets `is_kernels` if the next one
/// is known to be the kernel's.
///
/// # Safety
/// Valid messages to send.
pub(in crate::hook) unsafe fn send_first(
    fd: c_int,
    msgs: &mut [mmsghdr],
    flags: c_int,
    is_kernels: &mut bool,
) -> Option<c_int> {
    *is_kernels = false;
    let handle = datagrams::begin_call(fd, Direction::Send)?;
    let udp = handle.udp()?;
    if flags & !options::DATAGRAM_SEND_FLAGS != 0 {
        return None;
    }
    let n = guard::call_core(|| {
        let mut batch = udp.begin_batch(handle.fd());
        let mut n = 0;
        for mmsghdr { msg_hdr: msg, msg_len } in msgs {
            if msg.msg_controllen != 0 {
                break;
            }
            // SAFETY: the address of a valid message.
            let to = unsafe { destination(udp, msg.msg_name.cast(), msg.msg_namelen) };
            let Some(to) = to else { break };
            let mut send = |bufs: &[IoSlice<'_>]| {
                batch.send(bufs, to).then(|| bufs.iter().map(|buf| buf.len()).sum::<usize>())
            };
            // SAFETY: the vector of a valid message.
            let sent =
                unsafe { arg::with_slices(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, &mut send) };
            match sent {
                Ok(Some(len)) => *msg_len = c_uint::try_from(len).unwrap_or(c_uint::MAX),
                Ok(None) => {
                    *is_kernels = true;
                    break;
                }
                Err(_) => break,
            }
            n += 1;
        }
        Ok(n)
    });
    datagrams::log_news(fd, udp);
    n.ok()
}

/// As `sendto(2)`.
///
/// # Safety
/// `buf` is null or has `len` readable bytes, `to` is null or has `to_len`.
pub(in crate::hook) unsafe fn send_bytes(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise. The kernel reports a null pointer.
    let bytes = unsafe { arg::bytes(buf, len) }.ok()?;
    // SAFETY: as above.
    unsafe { send(fd, &[IoSlice::new(bytes)], flags, to, to_len) }
}

/// As `writev(2)`.
///
/// # Safety
/// `iov` is null or has `n` entries of readable bytes.
pub(in crate::hook) unsafe fn send_vector(
    fd: c_int,
    iov: *const iovec,
    n: c_int,
    flags: c_int,
) -> Option<ssize_t> {
    let send_all = |bufs: &[IoSlice<'_>]| {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return None;
        }
        // SAFETY: no address.
        unsafe { send(fd, bufs, flags, ptr::null(), 0) }
    };
    // SAFETY: the caller's promise.
    unsafe { arg::with_slices(iov, usize::try_from(n).ok()?, libc::EINVAL, send_all) }.ok()?
}

/// As `sendmsg(2)`.
///
/// # Safety
/// `msg` is null or a valid message to send.
pub(in crate::hook) unsafe fn send_message(
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> Option<ssize_t> {
    // SAFETY: null or valid by the caller's promise. What is wrong with it the kernel says.
    let msg = unsafe { msg.as_ref() }?;
    if msg.msg_controllen != 0 {
        // Control data is for the kernel; later datagrams must not overtake this one.
        crate::fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    let (to, to_len) = (msg.msg_name.cast_const().cast(), msg.msg_namelen);
    // SAFETY: the address of a valid message.
    let send_all = |bufs: &[IoSlice<'_>]| unsafe { send(fd, bufs, flags, to, to_len) };
    // SAFETY: the vector of a valid message.
    unsafe { arg::with_slices(msg.msg_iov, msg.msg_iovlen, libc::EMSGSIZE, send_all) }.ok()?
}
