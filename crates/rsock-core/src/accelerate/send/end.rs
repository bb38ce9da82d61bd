//! When there is nobody any more to send to, or nobody knows.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_TX_PLAIN, Sending};
use crate::metrics::{self, Direction};
use crate::sys;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::time::{Duration, Instant};

/// How long a device may be silent about what it was given. It repeats a request a few times, for less
/// than that, and then says that it failed; but the kernel's soft RoCE (seen in Linux 6.1) may forget
/// to, when its interface goes down with requests under way.
const STUCK: Duration = Duration::from_secs(30);

impl AcceleratedStream {
    /// The path between hosts failed, and nobody knows what of the bytes sent has arrived. So the connection
    /// ends, whatever TCP still could do. The caller holds the lock.
    pub(in crate::accelerate) fn break_off(
        &self,
        fd: BorrowedFd<'_>,
        tx: &mut Sending,
    ) -> io::Error {
        let how = self.how_to_break(tx);
        tx.switch.break_off();
        self.note_path(Direction::Send, metrics::Transport::Tcp);
        self.dirs.raise(FLAG_TX_PLAIN);
        self.break_connection(fd, how)
    }
}

/// For who waits on a full ring: takes note of whether the peer is there, as what it does with what has been
/// sent is asked when it has gone. The caller holds the lock.
pub(in crate::accelerate) fn meet(fd: BorrowedFd<'_>, tx: &mut Sending, path: &Path) {
    if !path.is_far() && tx.switch.is_on_ring() && tx.met_bytes != tx.switch.ring_bytes() {
        is_deserted(fd, tx, path);
    }
}

/// Whether the socket says that nobody reads what we write any more: then TCP has the right answer.
/// A half-close is none: it stands in the ring before the socket knows of it. Where in doubt, TCP
/// is slower, never wrong.
#[cold]
pub(in crate::accelerate) fn is_deserted(
    fd: BorrowedFd<'_>,
    tx: &mut Sending,
    path: &Path,
) -> bool {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 }];
    if !sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok_and(|n| n != 0) {
        // A peer that has let go of the ring reads nothing more, although the end of its socket, of
        // which another process may hold a copy for a moment, has not come yet.
        if !path.has_failed() {
            tx.met_bytes = tx.switch.ring_bytes();
        }
        return false;
    }
    fds[0].revents & (libc::POLLHUP | libc::POLLERR) != 0 || !path.has_eof()
}

/// Whether the device has been silent for so long about what it was given that it counts as lost.
pub(in crate::accelerate) fn is_silent(tx: &Sending) -> bool {
    let is_long = |since: Option<Instant>| since.is_some_and(|since| since.elapsed() >= STUCK);
    is_long(tx.leaving_since) || is_long(tx.full_since)
}
