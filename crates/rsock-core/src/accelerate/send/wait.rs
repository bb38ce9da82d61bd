//! Waiting for room to send.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::path::Path;
use crate::accelerate::peer_check::check_peer;
use crate::accelerate::receive::sleep_with_bell;
use crate::accelerate::send::Blocked;
use crate::engine::Wake;
use crate::interrupt::{Section, Watch};
use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

impl AcceleratedStream {
    /// Sleeps until the socket has one of `events`, or the reader asks this end to leave the ring,
    /// which is answered; without a path until the search for the peer goes on.
    pub(in crate::accelerate) fn sleep_on_socket(
        &self,
        fd: BorrowedFd<'_>,
        events: i16,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        let Some(path) = self.asking_path() else {
            return self.sleep_without_path(fd, events, left, watch);
        };
        // In this order: what comes after the check changes what the mark is compared with.
        let mark = path.mark();
        self.answer_leave(fd);
        sleep_with_bell(fd, events, path, mark, left, watch).map(drop)
    }

    /// Notes whether the peer is there, before a wait on a full ring.
    pub(super) fn check_peer_before_waiting(&self, fd: BorrowedFd<'_>, blocked: &Blocked) {
        if let (Blocked::Ring(_), Some(path)) = (blocked, self.path()) {
            let _section = Section::enter();
            check_peer(fd, &mut self.dirs.tx.0.lock(), path);
        }
    }

    /// Notes that the program is told that there is no room, or none for the rest.
    pub(super) fn note_told(&self, fd: BorrowedFd<'_>, blocked: &Blocked, has_sent: bool) {
        let _section = Section::enter();
        let mut tx = self.dirs.tx.0.lock();
        tx.full_sends.note_told(sys::now(), has_sent);
        let ring = self.path().filter(|_| matches!(blocked, Blocked::Ring(_)));
        if let Some(path) = ring {
            check_peer(fd, &mut tx, path);
        }
        drop(tx);
        self.dirs.shared.0.full_sends.fetch_add(1, Ordering::Release);
        // An epoll set looks at an edge only where something has happened since its last look. The
        // next look sees that the ring is full, so that it is given up in time, or, if another
        // thread has looked meanwhile, that there is room again.
        if let Some(path) = ring.filter(|_| self.watched_by().is_some()) {
            path.announce();
        }
    }
}

/// Sleeps until there is room on the ring, or for `limit`.
///
/// # Errors
/// `EINTR` if a handler of the call's `watch` has run.
pub(in crate::accelerate) fn park_for_room(
    path: &Path,
    mark: u32,
    limit: Duration,
    watch: Watch,
) -> io::Result<()> {
    let woken = path.park(mark, limit);
    // A handler may have run before the thread slept: the kernel did not interrupt the sleep then.
    if woken == Wake::Interrupted || watch.has_fired() { Err(Errno::INTR.into()) } else { Ok(()) }
}
