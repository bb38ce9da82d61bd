//! Sending on the kernel's socket.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, send, sendmsg};
use std::io::IoSlice;

pub(in crate::accelerate) fn kernel_send(
    fd: BorrowedFd<'_>,
    bufs: &[IoSlice<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    let flags = flags | SendFlags::NOSIGNAL;
    // One buffer costs the kernel less than a list.
    if let [one] = bufs {
        return send(fd, one, flags);
    }
    sendmsg(fd, bufs, &mut SendAncillaryBuffer::default(), flags)
}

/// Whether the program set `O_NONBLOCK`. Asked only when a call would block.
pub(in crate::accelerate) fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|f| f.contains(rustix::fs::OFlags::NONBLOCK))
}
