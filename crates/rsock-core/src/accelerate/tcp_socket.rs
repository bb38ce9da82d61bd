//! The kernel's TCP socket of a stream: what it holds, and system calls on it.

use crate::interrupt::Watch;
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout};
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, recv, recvmsg, send, sendmsg,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::time::Duration;

/// Whether the peer has ended its direction, or the connection is broken.
pub(super) fn has_ended(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok_and(|n| n != 0)
}

/// Whether a call that has received something must not receive more from the socket: TCP would have
/// ended it before an urgent byte, and before an error, which the kernel reports once.
pub(super) fn must_stop(fd: BorrowedFd<'_>) -> bool {
    sys::is_at_mark(fd) || has_error(fd) && queued(fd).is_ok_and(|n| n == 0)
}

fn has_error(fd: BorrowedFd<'_>) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: 0, revents: 0 }];
    sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok() && fds[0].revents & libc::POLLERR != 0
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
    let flags = flags | SendFlags::NOSIGNAL;
    // One buffer costs the kernel less than a list.
    if let [one] = bufs {
        return send(fd, one, flags);
    }
    sendmsg(fd, bufs, &mut SendAncillaryBuffer::default(), flags)
}

/// What [`await_input`] has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The socket has input, an end or an error.
    Input,
    /// Nothing, in the time that the caller allowed.
    Nothing,
    /// The call has to end with `EINTR`: a signal handler has run that did not ask for
    /// `SA_RESTART`, or the thread is being cancelled.
    Interrupted,
}

/// Waits in the kernel for input on a TCP socket that is not adopted, for a call that may restart
/// after signal handlers. `watch` has watched since the call began. A handler that runs just before
/// the thread sleeps is noticed after `most`.
///
/// # Errors
/// As `ppoll(2)`.
pub fn await_input(fd: BorrowedFd<'_>, most: Duration, watch: Watch) -> io::Result<Awaited> {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
    match sys::ppoll(&mut fds, Some(most), None) {
        Ok(0) if watch.has_fired() && watch.must_end() => Ok(Awaited::Interrupted),
        Ok(0) => Ok(Awaited::Nothing),
        Ok(_) => Ok(Awaited::Input),
        // With a time limit a call does not restart, whatever the handler asked for.
        Err(e) if e.raw_os_error() == Some(libc::EINTR) => {
            let has_limit = || socket_timeout(fd, Timeout::Recv).is_ok_and(|limit| limit.is_some());
            let must_end = watch.must_end() || has_limit();
            Ok(if must_end { Awaited::Interrupted } else { Awaited::Nothing })
        }
        Err(e) => Err(e),
    }
}

/// Whether the program set `O_NONBLOCK`. Asked only when a call would block.
pub fn is_nonblocking(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|f| f.contains(rustix::fs::OFlags::NONBLOCK))
}
