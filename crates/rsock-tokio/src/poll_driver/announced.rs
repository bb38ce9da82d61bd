//! The streams that are announced to a poll driver: one ready set, with one descriptor, for all
//! streams in shared memory that the tasks of a runtime wait for.

use crate::async_fd;
use crate::waiter::Waiter;
use rsock_core::{ReadyNumber, SoftReadySet};
use std::io;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll};
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// See the module.
#[derive(Debug)]
pub(crate) struct AnnouncedStreams {
    set: AsyncFd<SoftReadySet>,
    /// By their numbers in the set.
    places: Mutex<Vec<Weak<Waiter>>>,
}

impl AnnouncedStreams {
    pub(super) fn new(runtime: &Handle) -> io::Result<Self> {
        let set = SoftReadySet::new().map_err(io::Error::other)?;
        let _inside = runtime.enter();
        Ok(Self { set: async_fd::register(set)?, places: Mutex::default() })
    }

    fn places(&self) -> MutexGuard<'_, Vec<Weak<Waiter>>> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives `waiter` a place; `None` if its source can have none.
    pub(super) fn join(&self, waiter: &Waiter) -> Option<ReadyNumber> {
        let number = waiter.source.join_set(self.set.get_ref())?;
        let mut places = self.places();
        let i = number.0 as usize;
        if places.len() <= i {
            places.resize(i + 1, Weak::new());
        }
        places[i] = waiter.this.clone();
        Some(number)
    }

    /// Gives up the place of `waiter`.
    pub(super) fn leave(&self, waiter: &Waiter, number: ReadyNumber) {
        // Before the number is free for another stream.
        if let Some(place) = self.places().get_mut(number.0 as usize) {
            *place = Weak::new();
        }
        waiter.source.leave_set(self.set.get_ref(), number);
    }

    pub(super) fn has_any(&self) -> bool {
        self.set.get_ref().has_any()
    }

    /// Takes the announcements; returns the streams.
    pub(super) fn take(&self) -> Vec<Arc<Waiter>> {
        let mut numbers = Vec::new();
        self.set.get_ref().take(|number| numbers.push(number.0 as usize));
        let places = self.places();
        numbers.into_iter().filter_map(|i| places.get(i)?.upgrade()).collect()
    }

    /// All streams that have a place.
    pub(super) fn all(&self) -> Vec<Arc<Waiter>> {
        self.places().iter().filter_map(Weak::upgrade).collect()
    }

    /// Has the task of `cx` woken by the next announcement. False if there is one already.
    pub(super) fn arm(&self, cx: &mut Context<'_>) -> bool {
        while let Poll::Ready(guard) = self.set.poll_read_ready(cx) {
            // An error says that the runtime ends, and so does the driver.
            let Ok(mut guard) = guard else { break };
            guard.clear_ready();
            // After that: a ring that comes from here on is a new event.
            self.set.get_ref().drain();
        }
        self.set.get_ref().arm()
    }

    /// Undoes [`Self::arm`]: what comes from now on rings no doorbell.
    pub(super) fn disarm(&self) {
        self.set.get_ref().disarm();
    }
}

/// How many waits for announcements began lately and go on: within the last one or two periods,
/// which the driver counts. All accesses are Relaxed: the number only decides how to wait.
#[derive(Debug, Default)]
pub(super) struct RecentWaits {
    period: AtomicU32,
    /// Those that began in even and in odd periods. Races may leave one below zero for a period.
    n: [AtomicI32; 2],
}

impl RecentWaits {
    /// Counts a wait; returns the period that it began in.
    pub(super) fn begin(&self) -> u32 {
        let period = self.period.load(Ordering::Relaxed);
        self.count(period).fetch_add(1, Ordering::Relaxed);
        period
    }

    /// A wait is over that began in `period`.
    pub(super) fn end(&self, period: u32) {
        if self.period.load(Ordering::Relaxed).wrapping_sub(period) < 2 {
            self.count(period).fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(super) fn number(&self) -> usize {
        let n = self.n.each_ref().map(|n| usize::try_from(n.load(Ordering::Relaxed)).unwrap_or(0));
        n[0] + n[1]
    }

    /// Begins the next period.
    pub(super) fn advance(&self) {
        let period = self.period.load(Ordering::Relaxed).wrapping_add(1);
        self.count(period).store(0, Ordering::Relaxed);
        self.period.store(period, Ordering::Relaxed);
    }

    fn count(&self, period: u32) -> &AtomicI32 {
        &self.n[period as usize % 2]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_recent_for_one_or_two_periods_and_not_after_their_end() {
        let waits = RecentWaits::default();
        let first = waits.begin();
        let second = waits.begin();
        assert_eq!(waits.number(), 2);
        waits.end(first);
        waits.advance();
        let third = waits.begin();
        assert_eq!(waits.number(), 2);
        waits.advance();
        assert_eq!(waits.number(), 1, "the second began two periods ago");
        waits.end(second);
        assert_eq!(waits.number(), 1);
        waits.end(third);
        assert_eq!(waits.number(), 0);
    }
}
