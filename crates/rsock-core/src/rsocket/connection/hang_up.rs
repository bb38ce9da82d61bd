//! The end of a connection as its descriptor shows it: the peer's disconnect, its reset or its
//! death.

use crate::engine::ThreadBell;
use crate::rsocket::connection::Connection;
use crate::sys;
use rsock_cm::manager::{Connected, Manager, Status};
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often non-blocking calls that would block check for a hang-up. Nanoseconds.
const CHECK_EVERY_NS: u64 = 20_000;

impl<M: Manager> Connection<M>
where
    M::Backend: ThreadBell,
{
    /// The poll entry for the hang-up; its descriptor is -1 once the hang-up was seen.
    pub(in crate::rsocket) fn hang_up_entry(&self) -> libc::pollfd {
        let gone = self.is_gone.load(Ordering::Relaxed);
        let fd = if gone { -1 } else { self.manager_connection.as_fd().as_raw_fd() };
        libc::pollfd { fd, events: sys::poll_bits(self.manager_connection.interest()), revents: 0 }
    }

    /// Acts on what polling [`Self::hang_up_entry`] found.
    pub(in crate::rsocket) fn note_hang_up(&self, revents: i16) {
        if revents == 0 || self.is_gone.load(Ordering::Acquire) {
            return;
        }
        match self.manager_connection.status() {
            // An event that is not the end.
            Status::Connected if revents & libc::POLLHUP == 0 => return,
            Status::Reset => self.is_reset.store(true, Ordering::Release),
            _ => {}
        }
        self.is_gone.store(true, Ordering::Release);
        // Bytes that arrived before the hang-up stay readable.
        self.stream.peer_gone();
    }

    /// Whether a program that repeats non-blocking calls should check for a hang-up now, which
    /// costs a system call: such a program must learn of the peer's death, too. When a check is due
    /// this also yields the CPU, which the peer may need to answer.
    pub(in crate::rsocket) fn is_check_due(&self) -> bool {
        let now = self.created_at.elapsed().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        if now.saturating_sub(self.checked_at.load(Ordering::Relaxed)) < CHECK_EVERY_NS {
            return false;
        }
        self.checked_at.store(now, Ordering::Relaxed);
        rustix::thread::sched_yield();
        true
    }

    /// Polls for the hang-up without waiting.
    pub(in crate::rsocket) fn check_hang_up(&self) {
        let mut fds = [self.hang_up_entry()];
        if fds[0].fd >= 0 && sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok() {
            self.note_hang_up(fds[0].revents);
        }
    }

    /// As [`Self::check_hang_up`]; says whether the connection has ended.
    pub(in crate::rsocket) fn has_hung_up(&self) -> bool {
        self.check_hang_up();
        self.is_gone.load(Ordering::Acquire)
    }
}
