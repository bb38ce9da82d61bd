//! Waiting for room to send.

use crate::accelerate::counters::Waited;
use crate::accelerate::path::Path;
use crate::accelerate::peer_check::check_peer;
use crate::accelerate::receive::sleep_with_bell;
use crate::accelerate::send::Blocked;
use crate::accelerate::{AcceleratedStream, PATIENCE};
use crate::engine::{Interest, Wake};
use crate::interrupt::{Restart, Section, Watch};
use crate::metrics::Direction;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use std::time::Duration;

impl AcceleratedStream {
    /// Sleeps until the socket has one of `events`, or the reader asks this end to leave the ring,
    /// which is answered.
    pub(in crate::accelerate) fn sleep_on_socket(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        events: i16,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
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

    /// Waits until sending may go on. It waits for the ring for a bounded time only: then the
    /// caller's next try moves to TCP, where the kernel notices whatever happened to the peer.
    pub(super) fn sleep_until_room(
        &self,
        fd: BorrowedFd<'_>,
        blocked: &Blocked,
        left: Option<Duration>,
        watch: &mut Watch,
        partial: bool,
    ) -> io::Result<()> {
        match (blocked, self.path()) {
            (Blocked::Ring(mark) | Blocked::Leaving(mark), Some(path)) => {
                if path.spin(Interest::Write, *mark) {
                    self.count_wait(Direction::Send, Waited::Spinning);
                    return Ok(());
                }
                self.count_wait(Direction::Send, Waited::Sleeping);
                self.check_peer_before_waiting(fd, blocked);
                park_for_room(
                    path,
                    *mark,
                    left.map_or(PATIENCE, |l| l.min(PATIENCE)),
                    watch,
                    partial,
                )
            }
            _ => {
                let slept = match self.asking_path() {
                    Some(path) => self.sleep_on_socket(fd, path, libc::POLLOUT, left, *watch),
                    None => self.sleep_without_path(fd, libc::POLLOUT, left, *watch),
                };
                watch.after_sleep(slept, Restart::of(!partial && left.is_none()))
            }
        }
    }
}

/// Sleeps until there is room on the ring, or for `limit`. A `partial` call has sent something
/// before.
pub(in crate::accelerate) fn park_for_room(
    path: &Path,
    mark: u32,
    limit: Duration,
    watch: &mut Watch,
    partial: bool,
) -> io::Result<()> {
    let woken = path.park(mark, limit);
    // A handler may have run before the thread slept: the kernel did not interrupt the sleep then.
    let interrupted = woken == Wake::Interrupted || watch.has_fired();
    if interrupted && (partial || watch.must_end()) {
        return Err(Errno::INTR.into());
    }
    watch.restart();
    Ok(())
}
