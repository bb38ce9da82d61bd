//! What a stream finds out about its peer: whether it has gone, or its device answers no more.

use crate::accelerate::path::Path;
use crate::accelerate::state::{Receiving, Sending};
use crate::sys;
use rsock_proto::switch::DirectionSwitch;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// After this many reads of an empty ring, the socket is checked for the end of the peer.
pub(super) const SOCKET_CHECK_INTERVAL: u32 = 8;

/// How long a device may say nothing about sent bytes. It repeats a request a few times, for less
/// than that, and then reports a failure. But the kernel's soft RoCE (seen in Linux 6.1) may report
/// none when its interface goes down with requests under way.
const SILENCE_LIMIT: Duration = Duration::from_secs(30);

impl Receiving {
    /// Whether the next read that finds the ring empty checks the socket.
    pub(super) fn is_socket_check_due(&self) -> bool {
        (self.idle_reads + 1).is_multiple_of(SOCKET_CHECK_INTERVAL)
    }

    /// Counts a read that has found the ring empty.
    #[inline]
    pub(super) fn count_idle(&mut self) {
        self.idle_reads = self.idle_reads.wrapping_add(1);
    }
}

/// Notes, before a wait on a full ring, whether the peer is there: once it is gone, a reset depends
/// on what was sent before that. The caller holds the lock.
pub(super) fn check_peer(fd: BorrowedFd<'_>, tx: &mut Sending, path: &Path) {
    if !path.is_remote()
        && tx.switch.is_on_ring()
        && tx.ring_bytes_checked != tx.switch.ring_bytes()
    {
        is_peer_gone(fd, tx, path);
    }
}

/// Whether the socket shows that what this end writes is not read any more: then TCP has the right
/// answer. A half-close of the peer does not count: it stands in the ring before it shows on the
/// socket. When this is uncertain, TCP is slower, but never wrong.
#[cold]
pub(super) fn is_peer_gone(fd: BorrowedFd<'_>, tx: &mut Sending, path: &Path) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    if !sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok_and(|n| n != 0) {
        // A peer that has closed its end of the ring reads nothing more, even if the end of its
        // socket, of which another process may hold a copy for a moment, has not arrived yet.
        if !path.has_failed() {
            tx.ring_bytes_checked = tx.switch.ring_bytes();
        }
        return false;
    }
    fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0 || !path.has_eof()
}

/// Whether the device has been silent about sent bytes for so long that they count as lost.
pub(super) fn is_device_silent(tx: &Sending) -> bool {
    let is_long =
        |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= SILENCE_LIMIT);
    is_long(tx.leaving_since) || is_long(tx.full_since)
}
