//! The short way of most calls on a UDP socket: one buffer, by the route of the datagram before, or
//! from a queue that has one. As [`super::super::shortcut`] for streams, and apart from it, so that
//! neither makes the other one longer.
//!
//! PERF: a reception and the answer to it take about 1,370 instructions, and 2,270 without this
//! (callgrind).

use super::send::destination;
use crate::fdtable::{self, datagrams};
use crate::hook::shortcut::is_allowed;
use crate::slot::Direction;
use crate::{arg, errno, guard};
use libc::{c_int, c_void, size_t, sockaddr, socklen_t, ssize_t};
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use std::io::{IoSlice, IoSliceMut};

/// Sends `len` bytes at `buf` as one datagram, to the address at `to` or to the peer of a connected
/// socket. `None`: nothing was sent.
///
/// # Safety
/// `buf` is null or has `len` readable bytes, `to` is null or has `to_len`.
#[inline(never)]
#[unsafe(link_section = "rsock_hooks")]
pub(in crate::hook) unsafe fn send_at_once(
    fd: c_int,
    buf: *const c_void,
    len: size_t,
    flags: c_int,
    to: *const sockaddr,
    to_len: socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { arg::bytes(buf, len) }.ok().filter(|bytes| !bytes.is_empty())?;
    let bytes = IoSlice::new(bytes);
    call(fd, Direction::Send, flags, |udp| {
        // SAFETY: the caller's promise.
        let to = unsafe { destination(udp, to, to_len) }?;
        udp.send_at_once(&bytes, to).then_some(bytes.len())
    })
}

/// Receives a datagram of at most `len` bytes to `buf`, and its source to `from` unless that is
/// null. `None`: nothing was received.
///
/// # Safety
/// `buf` is null or has `len` writable bytes. `from` is null, or `from_len` is null or valid and
/// `from` has as many writable bytes as it says.
#[inline(never)]
#[unsafe(link_section = "rsock_hooks")]
pub(in crate::hook) unsafe fn recv_at_once(
    fd: c_int,
    buf: *mut c_void,
    len: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_len: *mut socklen_t,
) -> Option<ssize_t> {
    // SAFETY: the caller's promise.
    let room = unsafe { arg::bytes_mut(buf, len) }.ok().filter(|room| !room.is_empty())?;
    let mut room = IoSliceMut::new(room);
    let may_spin = flags & libc::MSG_DONTWAIT == 0;
    call(fd, Direction::Recv, flags, |udp| {
        // SAFETY: the caller's promise.
        let wants_source = unsafe { arg::room_for_source(from, from_len) }?.is_some();
        udp.recv_at_once(&mut room, may_spin, |source| {
            if wants_source {
                // SAFETY: neither is null, and the rest is the caller's promise.
                unsafe { arg::put_address(source, from, from_len) };
            }
        })
    })
}

/// Makes the call `make` on the UDP socket of `fd`, if it has been adopted.
#[inline(always)]
fn call(
    fd: c_int,
    direction: Direction,
    flags: c_int,
    make: impl FnOnce(&AcceleratedUdp) -> Option<usize>,
) -> Option<ssize_t> {
    if !is_allowed(flags) {
        return None;
    }
    let handle = datagrams::begin_adopted(fd, direction)?;
    let udp = handle.udp();
    let mut moved = Ok(None);
    if let Some(udp) = udp {
        // A panic is an error: the datagram may have been sent.
        moved = Err(guard::AFTER_PANIC);
        guard::run_in_core(|| moved = Ok(make(udp)));
        datagrams::log_news(fd, udp);
    }
    fdtable::end_call(handle);
    moved.transpose().map(errno::ret_len)
}
