//! The placeholder: the kernel TCP socket that a program holds for a native stream.
//!
//! It is connected to another socket of this process, which keeps it connected and never reads.
//! Event loops watch the placeholder, so it has to show whether the stream has room: while there is
//! none, its send buffer is small and full.

#![forbid(unsafe_code)]

use crate::accelerate::socket_proxy;
use crate::sys;
use rsock_verbs::HighFd;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SendFlags, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The part of a native stream that belongs to the program's descriptor.
#[derive(Debug)]
pub(super) struct Placeholder {
    /// The socket that the program's descriptor is connected to.
    _other_end: HighFd,
    /// The normal size of the send buffer, while the placeholder shows that there is no room.
    full: Mutex<Option<usize>>,
}

/// The number of placeholders that show that there is no room.
static N_FULL: AtomicUsize = AtomicUsize::new(0);

impl Drop for Placeholder {
    fn drop(&mut self) {
        if self.full.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            N_FULL.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Placeholder {
    pub(super) fn new(other_end: OwnedFd) -> Self {
        Self { _other_end: HighFd::new(other_end), full: Mutex::new(None) }
    }

    fn full(&self) -> MutexGuard<'_, Option<usize>> {
        self.full.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the placeholder `fd` show that there is no room: its send buffer is made small, and
    /// filled.
    pub(super) fn show_full(&self, fd: BorrowedFd<'_>) {
        let mut full = self.full();
        if full.is_none()
            && let Ok(size) = sockopt::socket_send_buffer_size(fd)
        {
            *full = Some(size);
            N_FULL.fetch_add(1, Ordering::SeqCst);
            let _ = sockopt::set_socket_send_buffer_size(fd, 1);
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            // The other end is never read, so the next call has less to fill.
            while rustix::net::send(fd, &[0; 4096], flags).is_ok() {}
        }
    }

    /// Reverts [`Self::show_full`]: epoll sets report that there is room.
    pub(super) fn show_room(&self, fd: BorrowedFd<'_>) {
        let full = self.full().take();
        if let Some(size) = full {
            N_FULL.fetch_sub(1, Ordering::SeqCst);
            // The kernel reports twice the size that it was given.
            let _ = sockopt::set_socket_send_buffer_size(fd, size / 2);
        }
    }

    /// Whether it shows that there is no room.
    pub(super) fn shows_full(&self) -> bool {
        self.full().is_some()
    }
}

/// Whether any placeholder of this process shows that there is no room.
#[inline]
pub(super) fn any_shows_full() -> bool {
    N_FULL.load(Ordering::Relaxed) != 0
}

/// A placeholder for the program that passes for a socket which `listener` has accepted, and its
/// other end.
///
/// # Errors
/// As `socket(2)` and `connect(2)`.
pub(super) fn accepted(
    listener: BorrowedFd<'_>,
    local: SocketAddr,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let (program, kept) = socket_proxy::placeholder(sockopt::socket_domain(listener)?, local.ip())?;
    socket_proxy::copy_options(listener, program.as_fd());
    Ok((program, kept))
}

/// A socket with the options and flags of `fd` whose peer has reset it.
///
/// # Errors
/// As `socket(2)` and `connect(2)`.
pub(super) fn reset(fd: BorrowedFd<'_>, ip: IpAddr) -> io::Result<OwnedFd> {
    let (program, kept) = socket_proxy::placeholder(sockopt::socket_domain(fd)?, ip)?;
    socket_proxy::copy_options(fd, program.as_fd());
    rustix::fs::fcntl_setfl(&program, rustix::fs::fcntl_getfl(fd)?)?;
    let _ = sockopt::set_socket_linger(&kept, Some(Duration::ZERO));
    sys::close(kept);
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::io::Errno;
    use rustix::net::AddressFamily;
    use std::net::Ipv4Addr;

    const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    fn pair() -> (OwnedFd, OwnedFd) {
        socket_proxy::placeholder(AddressFamily::INET, LOCALHOST).expect("a placeholder")
    }

    fn is_writable(fd: &OwnedFd) -> bool {
        let mut fds = [PollFd::new(fd, PollFlags::OUT)];
        poll(&mut fds, Some(&Timespec::default())).expect("poll") != 0
    }

    #[test]
    fn a_placeholder_is_writable_unless_it_shows_that_there_is_no_room() {
        let (program, kept) = pair();
        let placeholder = Placeholder::new(kept);
        assert!(is_writable(&program) && !placeholder.shows_full());
        placeholder.show_full(program.as_fd());
        assert!(!is_writable(&program) && placeholder.shows_full() && any_shows_full());
        placeholder.show_room(program.as_fd());
        assert!(is_writable(&program) && !placeholder.shows_full());
    }

    #[test]
    fn the_socket_that_replaces_a_placeholder_reports_a_reset() {
        let (program, _kept) = pair();
        let reset = reset(program.as_fd(), LOCALHOST).expect("a socket");
        let mut fds = [PollFd::new(&reset, PollFlags::IN)];
        poll(&mut fds, None).expect("poll");
        assert_eq!(rustix::io::read(&reset, &mut [0; 1]), Err(Errno::CONNRESET));
    }
}
