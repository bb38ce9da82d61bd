//! How a thread that has tried in vain learns that something was dispatched since: the pump, on whichever
//! thread it runs, takes completions that another thread waits for.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, Ordering, fence};

/// The words, in family memory.
#[repr(C)]
#[derive(Debug, Default)]
pub(super) struct Marks {
    /// Raised by every dispatch: waiters compare it with what they saw before they tried.
    events: AtomicU32,
    /// Threads waiting, or about to.
    waiters: AtomicU32,
}

impl Marks {
    /// To be taken before a try; what it tried is looked at again when this has changed.
    #[inline]
    pub(super) fn now(&self) -> u32 {
        // SYNC(dispatched): pairs with the Release in `announce`: a thread that sees the number sees what
        // was dispatched.
        self.events.load(Ordering::Acquire)
    }

    /// Something was dispatched; `wake` is called if a thread may sleep.
    #[inline]
    pub(super) fn announce(&self, wake: impl FnOnce()) {
        // SYNC(dispatched): pairs with the Acquire in `now`.
        self.events.fetch_add(1, Ordering::Release);
        // SYNC(waiting): a waiter counts itself, fences, and looks at `events`; we raise `events`, fence,
        // and look at the count: one of us sees the other.
        fence(Ordering::SeqCst);
        if self.waiters.load(Ordering::Relaxed) != 0 {
            wake();
        }
    }

    /// Counts a waiter in. It looks at [`Self::now`] once more before it sleeps.
    pub(super) fn enter(&self) {
        self.waiters.fetch_add(1, Ordering::Relaxed);
        // SYNC(waiting): pairs with the fence in `announce`.
        fence(Ordering::SeqCst);
    }

    /// Counts a waiter out.
    pub(super) fn leave(&self) {
        self.waiters.fetch_sub(1, Ordering::Release);
    }
}
