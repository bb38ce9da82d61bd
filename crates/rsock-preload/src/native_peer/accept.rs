//! `accept` on a listening socket that has a native listener beside it.

use super::listeners;
use crate::{errno, fdtable, guard};
use libc::c_int;
use rsock_core::accelerate::NativeStream;
use rsock_core::interrupt::Watch;
use rsock_verbs::HighFd;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::FdFlags;
use rustix::net::sockopt;
use std::io;
use std::net::SocketAddr;
use std::time::Instant;

/// How a call of `accept` ended.
pub(crate) enum Accepted {
    /// By the kernel's answer.
    Kernel(c_int),
    /// By a peer without TCP: the descriptor and the peer's address.
    Native(c_int, SocketAddr),
    Failed(c_int),
}

/// As `accept` on `fd`; `kernel` accepts from the kernel's queue of the listening socket that it is
/// given. `None` if there is no native listener.
pub(crate) fn accept(fd: c_int, flags: c_int, kernel: impl Fn(c_int) -> c_int) -> Option<Accepted> {
    let listener = listeners::of(fd)?;
    let mut watch = Watch::begin();
    // SAFETY: not -1, since it has a native listener; only duplicated.
    let named = unsafe { BorrowedFd::borrow_raw(fd) };
    // Other threads may close the number while this one sleeps.
    let kept = guard::call_core(|| Ok(HighFd::new(rustix::io::fcntl_dupfd_cloexec(named, 0)?)));
    let kept = match kept {
        Ok(kept) => kept,
        Err(e) => return Some(Accepted::Failed(e)),
    };
    let socket = kept.as_fd();
    let fd = socket.as_raw_fd();
    let is_nonblocking =
        rustix::fs::fcntl_getfl(socket).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
    let limit = sockopt::socket_timeout(socket, sockopt::Timeout::Recv).ok().flatten();
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    loop {
        match guard::call_core(|| listener.native.accept(socket)) {
            Ok(Some((placeholder, stream))) => return Some(publish(placeholder, stream, flags)),
            Ok(None) => {}
            Err(e) => return Some(Accepted::Failed(e)),
        }
        if is_nonblocking {
            return Some(Accepted::Kernel(kernel(fd)));
        }
        let is_acceptor = listener.become_acceptor();
        if is_acceptor && is_ready(socket) {
            let new = kernel(fd);
            listener.stop_accepting();
            return Some(Accepted::Kernel(new));
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let waited = guard::call_core(|| listener.wait(is_acceptor, fd, left));
        if is_acceptor {
            listener.stop_accepting();
        }
        match waited {
            Ok(0) => return Some(Accepted::Failed(libc::EAGAIN)),
            Ok(_) => {}
            Err(libc::EINTR) if !watch.must_end() && deadline.is_none() => watch.restart(),
            Err(e) => return Some(Accepted::Failed(e)),
        }
    }
}

/// Whether the kernel's queue has a connection.
fn is_ready(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|n| n != 0)
}

/// Gives the descriptor of a native stream to the program.
fn publish(placeholder: OwnedFd, stream: NativeStream, flags: c_int) -> Accepted {
    let [_, peer] = stream.addrs();
    let made = guard::call_core(|| {
        let (fd, is_asked) = (placeholder.as_raw_fd(), |flag| flags & flag != 0);
        if !is_asked(libc::SOCK_NONBLOCK) {
            rustix::fs::fcntl_setfl(&placeholder, OFlags::empty())?;
        }
        if !is_asked(libc::SOCK_CLOEXEC) {
            rustix::io::fcntl_setfd(&placeholder, FdFlags::empty())?;
        }
        fdtable::note_stream_made(fd, stream).map_err(io::Error::from_raw_os_error)?;
        Ok((placeholder.into_raw_fd(), peer))
    });
    match made {
        Ok((fd, peer)) => Accepted::Native(fd, peer),
        Err(e) => Accepted::Failed(e),
    }
}

impl Accepted {
    /// As C has it: the descriptor, or -1 and `errno`.
    pub(crate) fn answer(&self) -> c_int {
        match self {
            Self::Kernel(new) | Self::Native(new, _) => *new,
            Self::Failed(e) => errno::fail_int(*e),
        }
    }
}
