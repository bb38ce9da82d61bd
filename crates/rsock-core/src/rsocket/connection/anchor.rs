//! The connection behind a stream, whose end is the peer's word or its death.

use crate::engine::ThreadBell;
use crate::rsocket::connection::Established;
use crate::sys;
use rsock_cm::manager::{Connected, Manager, Status};

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How often calls in vain look at the anchor. Nanoseconds.
const LOOK_EVERY_NS: u64 = 20_000;

impl<M: Manager> Established<M>
where
    M::Backend: ThreadBell,
{
    /// What to poll of the anchor: its end, once.
    pub(in crate::rsocket) fn anchor_entry(&self) -> libc::pollfd {
        let gone = self.is_gone.load(Ordering::Relaxed);
        let fd = if gone { -1 } else { self.connection.as_fd().as_raw_fd() };
        libc::pollfd { fd, events: sys::poll_bits(self.connection.interest()), revents: 0 }
    }

    /// Takes note of what polling [`Self::anchor_entry`] found.
    pub(in crate::rsocket) fn note_anchor(&self, revents: i16) {
        if revents == 0 || self.is_gone.load(Ordering::Acquire) {
            return;
        }
        match self.connection.status() {
            // Something else came of it.
            Status::Connected if revents & libc::POLLHUP == 0 => return,
            Status::Reset => self.is_reset.store(true, Ordering::Release),
            _ => {}
        }
        self.is_gone.store(true, Ordering::Release);
        // What arrived before the hang-up stays readable.
        self.stream.peer_gone();
    }

    /// For a program that waits by calling us again and again: whether it is time to look at the
    /// anchor, which costs a system call. Such a program must learn of the peer's death, too, and
    /// must leave the CPU to a peer that needs it to answer: when it is time, this yields.
    pub(in crate::rsocket) fn is_look_due(&self) -> bool {
        let now = self.born.elapsed().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        if now.saturating_sub(self.looked_at.load(Ordering::Relaxed)) < LOOK_EVERY_NS {
            return false;
        }
        self.looked_at.store(now, Ordering::Relaxed);
        rustix::thread::sched_yield();
        true
    }

    /// Asks whether the anchor has hung up; never waits.
    pub(in crate::rsocket) fn look_at_anchor(&self) {
        let mut fds = [self.anchor_entry()];
        if fds[0].fd >= 0 && sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok() {
            self.note_anchor(fds[0].revents);
        }
    }

    /// As [`Self::look_at_anchor`]. Whether the connection is over.
    pub(in crate::rsocket) fn look_at_anchor_once(&self) -> bool {
        self.look_at_anchor();
        self.is_gone.load(Ordering::Acquire)
    }
}
