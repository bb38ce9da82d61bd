//! Which threads watch the events of a shared queue: of all that sleep on its shares only a few, or
//! each event would wake every one of them.
//!
//! A thread that goes to sleep watches, for its completion is likely to be the next. A thread that
//! was woken by an event for others stops watching if enough others watch, and relies on them to
//! ring it. The last watcher that leaves rings a sleeper that does not watch, which takes over.
//!
//! Invariant: while a thread sleeps without watching, another one watches, or has been rung to.
#![forbid(unsafe_code)]

use super::waiters::Event;
use crate::device::Parked;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most threads that go on watching after an event for others.
const FEW: usize = 2;

/// The threads that sleep on a shared queue.
#[derive(Debug, Default)]
pub(super) struct EventWatchers(Mutex<Sleepers>);

#[derive(Debug, Default)]
struct Sleepers {
    n_watching: usize,
    /// The threads that do not watch.
    others: Vec<Arc<Event>>,
}

/// The condition and the descriptors of a sleep.
pub(super) struct EventSleep<'a, Take, IsWoken> {
    /// Where the device's events arrive.
    pub(super) events: BorrowedFd<'a>,
    /// Takes one of them, and distributes completions.
    pub(super) take: Take,
    /// Rung for the thread alone.
    pub(super) event: &'a Arc<Event>,
    /// Whether there is something for the thread; true before `event` is rung for that.
    pub(super) is_woken: IsWoken,
}

impl EventWatchers {
    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sleeps until there is something for this thread, at most for `timeout`.
    pub(super) fn sleep<Take, IsWoken>(
        &self,
        sleep: &EventSleep<'_, Take, IsWoken>,
        timeout: Option<Duration>,
    ) -> Parked
    where
        Take: Fn(),
        IsWoken: Fn() -> bool,
    {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        let mut is_watching = true;
        self.lock().n_watching += 1;
        let parked = loop {
            let slept = sleep.sleep(is_watching, deadline);
            if let Some(parked) = slept {
                break parked;
            }
            let mut sleepers = self.lock();
            // A thread that is no longer on the list was rung to take over, and is counted as a
            // watcher.
            is_watching |= !sleepers.forget(sleep.event);
            if !is_watching {
                // Rung without a completion: it watches from here on.
                sleepers.n_watching += 1;
                is_watching = true;
            } else if sleepers.n_watching > FEW {
                sleepers.n_watching -= 1;
                sleepers.others.push(Arc::clone(sleep.event));
                is_watching = false;
            }
        };
        let mut sleepers = self.lock();
        is_watching |= !sleepers.forget(sleep.event);
        if is_watching {
            sleepers.leave();
        }
        parked
    }
}

impl Sleepers {
    /// Removes `event` from the list; returns whether it was there.
    fn forget(&mut self, event: &Arc<Event>) -> bool {
        let place = self.others.iter().position(|other| Arc::ptr_eq(other, event));
        place.map(|place| self.others.swap_remove(place)).is_some()
    }

    /// Counts one watcher less.
    fn leave(&mut self) {
        self.n_watching -= 1;
        if self.n_watching == 0
            && let Some(next) = self.others.pop()
        {
            self.n_watching = 1;
            // With the lock held: the ring is there when its thread sees that it is off the list.
            next.ring();
        }
    }
}

impl<Take: Fn(), IsWoken: Fn() -> bool> EventSleep<'_, Take, IsWoken> {
    /// Sleeps once; `None` if it woke without a reason.
    fn sleep(&self, is_watching: bool, deadline: Option<Instant>) -> Option<Parked> {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [
            PollFd::new(&**self.event, PollFlags::IN),
            PollFd::from_borrowed_fd(self.events, PollFlags::IN),
        ];
        let slept = poll(&mut fds[..1 + usize::from(is_watching)], left.as_ref());
        let [is_rung, has_event] = fds.map(|fd| !fd.revents().is_empty());
        if has_event {
            (self.take)();
        }
        if is_rung {
            // Before the check: a later ring is for a later event.
            self.event.drain();
        }
        match slept {
            _ if (self.is_woken)() => Some(Parked::Woken),
            Ok(0) => Some(Parked::TimedOut),
            Ok(_) => None,
            Err(rustix::io::Errno::INTR) => Some(Parked::Interrupted),
            // Nothing to sleep on: let the caller check again.
            Err(_) => Some(Parked::Woken),
        }
    }
}
