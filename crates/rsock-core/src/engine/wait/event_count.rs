//! An event count: how a waiting thread learns that another thread has dispatched completions.
//!
//! The pump runs on whichever thread holds the `recv` lock, so it takes completions that other
//! threads wait for.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// The words, in family memory.
#[repr(C)]
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    /// Raised by every dispatch: a waiter compares it with the value that it read before its try.
    events: AtomicU32,
    /// Threads that wait, or are about to.
    waiters: AtomicU32,
}

impl EventCount {
    /// The number of dispatches, wrapping. A caller reads it before a try, and tries again once it
    /// has changed.
    #[inline]
    pub(crate) fn now(&self) -> u32 {
        // SYNC(dispatched): pairs with the Release in `announce`: a thread that sees the number
        // sees what was dispatched.
        self.events.load(Ordering::Acquire)
    }

    /// Counts a dispatch; calls `wake` if a thread may sleep.
    #[inline]
    pub(crate) fn announce(&self, wake: impl FnOnce()) {
        // SYNC(dispatched): pairs with the Acquire in `now`.
        self.events.fetch_add(1, Ordering::Release);
        // SYNC(waiting): a waiter counts itself, fences, and loads `events`; this thread raises
        // `events`, fences, and loads the count: at least one of the two sees the other.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            wake();
        }
    }

    /// Counts a waiter in. It calls [`Self::now`] once more before it sleeps.
    pub(crate) fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // SYNC(waiting): pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
    }

    /// Counts a waiter out.
    pub(crate) fn leave(&self) {
        self.waiters.fetch_sub(1, Ordering::Release);
    }
}
