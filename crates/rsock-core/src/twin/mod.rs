//! TCP first, then a faster path: a kernel TCP socket (the *twin*) that may move to a ring in
//! shared memory at an exact byte offset, and back.
//!
//! The preload library and the async adapter both build on [`Twin`]. A twin does not own its
//! descriptor: the program does. Every call therefore takes the descriptor it came in by (a `dup`
//! has another number for the same twin).

use rustix::event::PollFlags;
use rustix::fd::BorrowedFd;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use std::io::{self, IoSlice, IoSliceMut};

/// Why a stream is, and stays, on TCP. Shown by `rsock stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u8)]
pub enum PinReason {
    /// Not pinned.
    None = 0,
    /// The descriptor was added to an epoll set.
    Epoll,
    /// The descriptor was inherited by a forked child.
    Fork,
    /// The program wrapped the descriptor in a stdio stream.
    Stdio,
    /// The descriptor became standard input, output or error.
    StandardStream,
    /// An option, flag or ioctl that only the kernel can honour.
    Option,
    /// The descriptor was passed to another process.
    Passed,
    /// The descriptor table or memory is nearly exhausted.
    Resources,
    /// Bytes were written behind our back.
    ForeignWriter,
    /// The peer runs as another user, or could not be verified.
    Untrusted,
    /// The peer does not run rsock, or has not been found.
    NoPeer,
    /// The peer's address is not on this host.
    Remote,
    /// The path failed or the peer broke the protocol.
    PathFailed,
    /// Switched off by configuration.
    Configured,
}

/// One accelerated-or-not TCP connection.
///
/// Safe to share between threads; sending and receiving do not disturb each other.
#[derive(Debug)]
pub struct Twin {
    _private: (),
}

impl Twin {
    /// Wraps a connected TCP socket. `None` if it can never be accelerated (wrong family, not
    /// connected, switched off): then the caller forgets about it.
    #[must_use]
    pub fn adopt(fd: BorrowedFd<'_>) -> Option<Self> {
        let _ = fd;
        Some(Self { _private: () })
    }

    /// As `sendmsg(2)` without control data, on a blocking or non-blocking descriptor; `flags` as
    /// given by the program. Never raises SIGPIPE itself: the caller does, on `EPIPE` without
    /// `MSG_NOSIGNAL`.
    ///
    /// # Errors
    /// As `sendmsg(2)`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`...
    pub fn send(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &[IoSlice<'_>],
        flags: SendFlags,
    ) -> io::Result<usize> {
        let mut control = rustix::net::SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(fd, bufs, &mut control, flags | SendFlags::NOSIGNAL)?)
    }

    /// As `recvmsg(2)` without control data; `MSG_PEEK`, `MSG_WAITALL`, `MSG_DONTWAIT` and
    /// `MSG_TRUNC` as on TCP.
    ///
    /// # Errors
    /// As `recvmsg(2)`: `EAGAIN`, `EINTR`, `ECONNRESET`...
    pub fn recv(
        &self,
        fd: BorrowedFd<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let mut control = rustix::net::RecvAncillaryBuffer::default();
        Ok(rustix::net::recvmsg(fd, bufs, &mut control, flags)?.bytes)
    }

    /// As `shutdown(2)`.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
        Ok(rustix::net::shutdown(fd, how)?)
    }

    /// Bytes that a `recv` could return now (`FIONREAD`).
    ///
    /// # Errors
    /// As `ioctl(FIONREAD)`.
    pub fn bytes_readable(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(usize::MAX))
    }

    /// Bytes sent and not yet taken by the peer (`SIOCOUTQ`).
    ///
    /// # Errors
    /// As `ioctl(SIOCOUTQ)`.
    pub fn bytes_unsent(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let _ = fd;
        Ok(0)
    }

    /// Whether the kernel alone knows this stream's readiness now: no ring in use in either
    /// direction and none about to be. Then `poll` and friends may go straight to the kernel, once.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        true
    }

    /// Readiness on the fast path, to be joined with what the kernel says of the descriptor:
    /// (`events that hold now`, `kernel events to ignore`).
    #[must_use]
    pub fn readiness(&self, fd: BorrowedFd<'_>) -> Readiness {
        let _ = fd;
        Readiness { ready: PollFlags::empty(), mask: PollFlags::all() }
    }

    /// Leaves the fast path for good: what is written from now on goes to TCP. Needs no answer of
    /// the peer and never blocks.
    pub fn pin(&self, fd: BorrowedFd<'_>, reason: PinReason) {
        let _ = (fd, reason);
    }

    /// The program is about to close its last descriptor of this twin (the kernel decides whether
    /// it really is the last of all). Resets the connection if unread bytes are in the ring.
    pub fn close(&self, fd: BorrowedFd<'_>) {
        let _ = fd;
    }
}

/// What the fast path says of a stream's readiness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Readiness {
    /// Events that hold now.
    pub ready: PollFlags,
    /// Events of the kernel's socket that count; others must be masked out, because (for
    /// instance) the twin is always writable.
    pub mask: PollFlags,
}

/// One entry of [`poll`].
#[derive(Debug)]
pub struct PollEntry<'a> {
    /// The descriptor as the program named it; negative ones are skipped, as by `poll(2)`.
    pub fd: i32,
    /// Its twin, if it is one of ours.
    pub twin: Option<&'a Twin>,
    /// Events asked for.
    pub events: PollFlags,
    /// Events found.
    pub revents: PollFlags,
}

/// As `ppoll(2)` over twins and ordinary descriptors alike. `timeout` is in nanoseconds, `None`
/// waits without end; `sigmask` is applied while sleeping. Returns the number of entries with
/// events.
///
/// # Errors
/// As `ppoll(2)`.
pub fn poll(
    entries: &mut [PollEntry<'_>],
    timeout: Option<std::time::Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    let mut fds: Vec<libc::pollfd> = entries
        .iter()
        .map(|e| libc::pollfd { fd: e.fd, events: e.events.bits().cast_signed(), revents: 0 })
        .collect();
    let n = crate::sys::ppoll(&mut fds, timeout, sigmask)?;
    for (entry, fd) in entries.iter_mut().zip(&fds) {
        entry.revents = PollFlags::from_bits_retain(fd.revents.cast_unsigned());
    }
    Ok(n)
}
