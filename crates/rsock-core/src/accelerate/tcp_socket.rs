//! The kernel's TCP socket of a stream: what it holds, and system calls on it.

use crate::accelerate::kernel_look::note_kernel_call;
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, send, sendmsg,
    sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};

/// Whether the peer has ended its direction, or the connection is broken.
pub(super) fn has_ended(fd: BorrowedFd<'_>) -> bool {
    sys::poll_now(fd, libc::POLLRDHUP) != 0
}

/// Whether a call that has received something must not receive more from the socket: TCP would have
/// ended it before an urgent byte, and before an error, which the kernel reports once.
pub(super) fn must_stop(fd: BorrowedFd<'_>) -> bool {
    sys::is_at_mark(fd) || has_error(fd) && queued(fd).is_ok_and(|n| n == 0)
}

/// Whether the socket has an error that no call has reported.
pub(super) fn has_error(fd: BorrowedFd<'_>) -> bool {
    sys::poll_now(fd, 0) & libc::POLLERR != 0
}

/// Whether the same call can go on to receive from the kernel's queue: it holds bytes, and the
/// first is not urgent.
pub(super) fn tcp_goes_on(fd: BorrowedFd<'_>) -> bool {
    queued(fd).is_ok_and(|n| n != 0) && !sys::is_at_mark(fd)
}

/// Bytes in the kernel's receive queue, up to an urgent byte.
pub(super) fn queued(fd: BorrowedFd<'_>) -> io::Result<usize> {
    Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(usize::MAX))
}

pub(super) fn peek_one(fd: BorrowedFd<'_>) -> Result<usize, Errno> {
    let mut byte = [0u8; 1];
    kernel_recv(fd, &mut [IoSliceMut::new(&mut byte)], RecvFlags::PEEK | RecvFlags::DONTWAIT)
}

pub(super) fn kernel_recv(
    fd: BorrowedFd<'_>,
    bufs: &mut [IoSliceMut<'_>],
    flags: RecvFlags,
) -> Result<usize, Errno> {
    note_kernel_call();
    // One buffer costs the kernel less than a list.
    if let [one] = bufs {
        return recv(fd, &mut **one, flags).map(|(n, _)| n);
    }
    recvmsg(fd, bufs, &mut RecvAncillaryBuffer::default(), flags).map(|m| m.bytes)
}

pub(super) fn kernel_send(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    note_kernel_call();
    let flags = flags | SendFlags::NOSIGNAL;
    // One buffer costs the kernel less than a list.
    if let [one] = bufs {
        return send(fd, one, flags);
    }
    sendmsg(fd, bufs, &mut SendAncillaryBuffer::default(), flags)
}

/// Has the kernel send what it holds back, for bytes to come (`MSG_MORE`, `TCP_CORK`) or for an
/// acknowledgement of the peer (Nagle's algorithm). It would hold that for up to 200 ms.
///
/// # Source
/// tcp(7): to set `TCP_NODELAY` forces an explicit flush of pending output, even if `TCP_CORK` is
/// set.
pub(super) fn push(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    let is_nodelay = sockopt::tcp_nodelay(fd)?;
    sockopt::set_tcp_nodelay(fd, true)?;
    if is_nodelay { Ok(()) } else { sockopt::set_tcp_nodelay(fd, false) }
}

/// Whether the program set `O_NONBLOCK`. Asked only when a call would block.
pub fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|f| f.contains(rustix::fs::OFlags::NONBLOCK))
}
