//! Waiting for a stream: spinning, parked, or asleep on descriptors.

use crate::engine::{Interest, ThreadBell, Wake};
use crate::interrupt::Watch;
use crate::metrics::Direction;
use crate::rsocket::connection::Established;
use crate::sys;
use rsock_cm::manager::Manager;
use rsock_verbs::{Backend, Bell};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long the cheapest sleep lasts before the anchor is watched, too.
const PARK: Duration = Duration::from_millis(10);

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(in crate::rsocket) enum Patience {
    /// Not at all.
    None,
    /// Not at all, and the caller watches the anchor by itself.
    Watched,
    /// Until then, or for ever.
    Until(Option<Instant>),
}

impl Patience {
    /// For a call that starts now.
    pub(in crate::rsocket) fn new(nonblocking: bool, limit: Option<Duration>) -> Self {
        if nonblocking {
            Self::None
        } else {
            Self::Until(limit.and_then(|l| sys::now().checked_add(l)))
        }
    }
}

impl<M: Manager> Established<M>
where
    M::Backend: ThreadBell,
{
    /// Waits until something has changed since `mark`.
    pub(super) fn wait(
        &self,
        interest: Interest,
        mark: u32,
        patience: Patience,
        watch: Watch,
    ) -> io::Result<()> {
        let Patience::Until(deadline) = patience else {
            if matches!(patience, Patience::None) && self.is_look_due() {
                self.look_at_anchor();
                let _ = self.stream.keep_alive();
            }
            return if self.stream.has_changed(mark) { Ok(()) } else { would_block() };
        };
        let direction = match interest {
            Interest::Read => Direction::Recv,
            Interest::Write => Direction::Send,
        };
        if interest == Interest::Read
            && let Some(woken) = self.stream.nap(mark, sys::time_left(deadline), watch)
        {
            self.stat.add_wakeup(direction);
            match woken {
                Wake::Changed => return Ok(()),
                Wake::Interrupted if watch.must_end() => return interrupted(),
                Wake::Interrupted | Wake::TimedOut => {}
            }
        }
        if self.stream.spin(interest, mark) {
            self.stat.add_spin(direction);
            return Ok(());
        }
        self.stat.add_wakeup(direction);
        let limit = |most: Duration| sys::time_left(deadline).map_or(most, |left| left.min(most));
        match self.stream.park(mark, limit(PARK)) {
            Wake::Changed => return Ok(()),
            Wake::Interrupted if watch.must_end() => return interrupted(),
            Wake::Interrupted | Wake::TimedOut => {}
        }
        M::Backend::with_bell(&self.ctx, |bell| self.sleep(bell, mark, deadline, watch))?
    }

    /// Sleeps on descriptors: the bell, and the anchor.
    fn sleep(
        &self,
        bell: &<M::Backend as Backend>::Bell,
        mark: u32,
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        loop {
            let Some(armed) = self.stream.arm(bell, mark) else { return Ok(()) };
            let mut fds = [
                libc::pollfd { fd: bell.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 },
                self.anchor_entry(),
            ];
            let left = sys::time_left(deadline);
            let bound = armed.bound();
            let limit = [left, bound].into_iter().flatten().min();
            let slept = sys::sleep(&mut fds, limit, None, watch);
            drop(armed);
            if fds[0].revents != 0 {
                bell.drain();
            }
            self.note_anchor(fds[1].revents);
            if self.stream.has_changed(mark) {
                return Ok(());
            }
            match slept {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {
                    if watch.must_end() {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
                Ok(_) if left.is_some_and(|left| left.is_zero()) => return would_block(),
                Ok(_) => {}
            }
        }
    }

    /// Waits until the peer has everything, is gone, or time is up.
    pub(super) fn drain(&self, limit: Duration) {
        let deadline = sys::now().checked_add(limit);
        while !self.is_gone.load(Ordering::Acquire) {
            let (watch, mark) = (Watch::begin(), self.stream.mark());
            if self.stream.is_drained() {
                break;
            }
            match self.wait(Interest::Write, mark, Patience::Until(deadline), watch) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => break,
                _ => {}
            }
        }
    }
}

fn would_block() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

fn interrupted() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EINTR))
}
