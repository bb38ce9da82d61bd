//! Waiting for a stream to change: spinning, then parked on a futex, then asleep in `ppoll`.

use crate::engine::{Interest, ThreadBell, Wake, poll_entries};
use crate::interrupt::Watch;
use crate::metrics::Direction;
use crate::rsocket::connection::Connection;
use crate::sys;
use rsock_cm::manager::Manager;
use rsock_verbs::{Backend, Bell};
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long a thread is parked before it also watches for a hang-up, which takes `ppoll`.
const PARK: Duration = Duration::from_millis(10);

/// A call that may not wait tries again so often in a row, where something has happened that was of
/// no use to it. Such things may happen without end, and the caller's event loop has to run.
const MOST_TRIES: u32 = 16;

/// How long a call may wait.
#[derive(Clone, Copy, Debug)]
pub(in crate::rsocket) enum WaitPolicy {
    /// Not at all; now and then the call checks for a hang-up.
    Nonblocking,
    /// Not at all, and the caller's event loop watches for the hang-up.
    NonblockingWatched,
    /// Until this time; `None` is without limit.
    Until(Option<Instant>),
}

impl WaitPolicy {
    /// For a call that starts now and waits for `limit` at most.
    #[inline]
    pub(in crate::rsocket) fn within(limit: Option<Duration>) -> Self {
        Self::Until(limit.and_then(|limit| sys::now().checked_add(limit)))
    }
}

/// How a call waits, and what its waits have been.
#[derive(Debug)]
pub(super) struct Waits {
    policy: WaitPolicy,
    watch: Watch,
    /// How often in a row a call that may not wait has been told to try again.
    n_tries: u32,
}

impl Waits {
    /// Of a call that begins now.
    pub(super) fn begin(policy: WaitPolicy) -> Self {
        Self { policy, watch: Watch::begin(), n_tries: 0 }
    }

    /// The call has transferred something.
    pub(super) fn note_progress(&mut self) {
        self.n_tries = 0;
    }
}

impl<M: Manager> Connection<M>
where
    M::Backend: ThreadBell,
{
    /// Waits until the stream has changed since `mark`.
    pub(super) fn wait(&self, interest: Interest, mark: u32, waits: &mut Waits) -> io::Result<()> {
        let Waits { policy, watch, .. } = *waits;
        let WaitPolicy::Until(deadline) = policy else {
            if matches!(policy, WaitPolicy::Nonblocking) && self.is_check_due() {
                self.check_hang_up();
                let _ = self.stream.keep_alive();
            }
            waits.n_tries += 1;
            let tries_again = waits.n_tries <= MOST_TRIES && self.stream.has_changed(mark);
            return if tries_again { Ok(()) } else { would_block() };
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

    /// Sleeps in `ppoll`, on the doorbell and the hang-up descriptor.
    fn sleep(
        &self,
        bell: &<M::Backend as Backend>::Bell,
        mark: u32,
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        loop {
            let Some(armed) = self.stream.arm(bell, mark) else { return Ok(()) };
            let [socket, pipe] = poll_entries(bell);
            let mut fds = [socket, pipe, self.hang_up_entry()];
            let left = sys::time_left(deadline);
            let bound = armed.bound();
            let limit = [left, bound].into_iter().flatten().min();
            let slept = sys::sleep(&mut fds, limit, None, watch);
            drop(armed);
            if fds[..2].iter().any(|fd| fd.revents != 0) {
                bell.drain();
            }
            self.note_hang_up(fds[2].revents);
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

    /// Waits until the peer has all bytes, has gone, or `limit` is over.
    pub(super) fn drain(&self, limit: Duration) {
        let deadline = sys::now().checked_add(limit);
        while !self.is_gone.load(Ordering::Acquire) {
            let mut waits = Waits::begin(WaitPolicy::Until(deadline));
            let mark = self.stream.mark();
            if self.stream.is_drained() {
                break;
            }
            match self.wait(Interest::Write, mark, &mut waits) {
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
