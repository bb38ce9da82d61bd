//! Receives that are a part of a program's call, and those that take nothing.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::receive::{Receives, receive};
use crate::accelerate::state::FLAG_RX_PLAIN;
use crate::accelerate::tcp_socket::{kernel_recv, must_stop, tcp_goes_on};
use crate::closing::{Call, Descriptor};
use crate::metrics::Direction;
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{self, IoSliceMut};

/// A receive of zero bytes by `receive`: waits for a byte or the end, as on TCP, and takes nothing.
/// A time limit or a signal that ends the wait is no error, as on TCP.
pub(in crate::accelerate) fn receive_nothing(
    flags: RecvFlags,
    is_nonblocking: impl FnOnce() -> bool,
    receive: impl FnOnce(&mut [IoSliceMut<'_>], RecvFlags) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut byte = [0];
    let look = RecvFlags::PEEK | (flags & RecvFlags::DONTWAIT);
    match receive(&mut [IoSliceMut::new(&mut byte)], look) {
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
            let may_wait = !flags.contains(RecvFlags::DONTWAIT) && !is_nonblocking();
            if may_wait { Ok(0) } else { Err(e) }
        }
        received => received.map(|_| 0),
    }
}

/// A receive by `receive` that only counts bytes.
pub(in crate::accelerate) fn count_bytes(
    flags: RecvFlags,
    receive: impl FnOnce(&mut [IoSliceMut<'_>], RecvFlags) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut byte = [0];
    let counts = RecvFlags::PEEK | RecvFlags::TRUNC;
    receive(&mut [IoSliceMut::new(&mut byte)], flags | counts)
}

impl AcceleratedStream {
    /// Goes on with a receiving call that has received something: as [`Self::recv_by`], but an
    /// error before which TCP would have ended the call is left for the next one.
    ///
    /// # Errors
    /// As [`Self::recv_by`]; `EAGAIN` where TCP would have ended the call.
    pub fn recv_on(
        &self,
        descriptor: Descriptor<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let total: usize = bufs.iter().map(|b| b.len()).sum();
        if total == 0 {
            let is_nonblocking = || self.may_not_wait(descriptor.named(), Direction::Recv);
            return receive_nothing(flags, is_nonblocking, |bufs, look| {
                self.recv_on(descriptor, bufs, look)
            });
        }
        if self.call_stops.is_replaced() {
            let fd = descriptor.named();
            if must_stop(fd) {
                return Err(Errno::AGAIN.into());
            }
            return Ok(kernel_recv(fd, bufs, flags)?);
        }
        let call = Call::begin(&self.closings, descriptor);
        receive(self, &call, bufs, total, flags, 1)
    }

    /// The number of bytes, up to `len`, that a peek finds (`MSG_PEEK | MSG_TRUNC`); `MSG_WAITALL`
    /// waits for all. `len` is not zero.
    ///
    /// # Errors
    /// As [`Self::recv_by`].
    pub fn peek_len(
        &self,
        descriptor: Descriptor<'_>,
        len: usize,
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let call = Call::begin(&self.closings, descriptor);
        count_bytes(flags, |bufs, flags| match self.call_stops.is_replaced() {
            true => Ok(kernel_recv(descriptor.named(), bufs, flags)?),
            false => receive(self, &call, bufs, len, flags, 0),
        })
    }

    /// Continues a receiving call that has received something: receives, without waiting, what the
    /// same call would still receive. Returns zero where TCP would have ended the call.
    #[must_use]
    pub fn recv_more(&self, descriptor: Descriptor<'_>, bufs: &mut [IoSliceMut<'_>]) -> usize {
        let fd = descriptor.named();
        if self.is_served_by_kernel(FLAG_RX_PLAIN) {
            let more = tcp_goes_on(fd).then(|| kernel_recv(fd, bufs, RecvFlags::DONTWAIT));
            return more.and_then(Result::ok).unwrap_or(0);
        }
        // Asked first, as an error would be lost.
        if !self.bytes_readable(fd).is_ok_and(|n| n != 0) {
            return 0;
        }
        let call = Call::begin(&self.closings, descriptor);
        self.try_recv(&call, bufs, RecvFlags::DONTWAIT, 1).unwrap_or(0)
    }
}
