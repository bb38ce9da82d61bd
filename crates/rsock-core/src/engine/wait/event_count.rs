//! An event count: how a waiting thread learns that another thread has dispatched completions.
//!
//! The pump runs on whichever thread holds the `recv` lock, so it takes completions that other
//! threads wait for.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The number of dispatches, wrapping, in the upper half, and of the threads that wait, or are
/// about to, in the lower half. One word, in family memory: each of the two sides changes its half
/// and reads the other one in one step, so that one of them sees what the other has done.
#[repr(transparent)]
#[derive(Debug, Default)]
pub(crate) struct EventCount(AtomicU64);

const DISPATCH: u64 = 1 << 32;
const WAITERS: u64 = DISPATCH - 1;

impl EventCount {
    /// The number of dispatches. A caller reads it before a try, and tries again once it has
    /// changed.
    #[inline]
    pub(crate) fn now(&self) -> u32 {
        // SYNC(dispatched): pairs with the Release in `announce`: a thread that sees the number
        // sees what was dispatched.
        (self.0.load(Ordering::Acquire) >> 32) as u32
    }

    /// Counts a dispatch; calls `wake` if a thread may sleep.
    #[inline]
    pub(crate) fn announce(&self, wake: impl FnOnce()) {
        // SYNC(dispatched): pairs with the Acquire in `now` and `enter`.
        let before = self.0.fetch_add(DISPATCH, Ordering::Release);
        if before & WAITERS != 0 {
            wake();
        }
    }

    /// Counts a waiter in. It calls [`Self::now`] once more before it sleeps.
    pub(crate) fn enter(&self) {
        // SYNC(waiting): this comes before or after each `announce`: one that comes after finds the
        // waiter, and the dispatch of one that came before is seen by the next `now`.
        self.0.fetch_add(1, Ordering::Acquire);
    }

    /// Counts a waiter out. One too many changes nothing: it must not reach the other half.
    pub(crate) fn leave(&self) {
        let fewer = |word: u64| (word & WAITERS != 0).then(|| word - 1);
        let _ = self.0.fetch_update(Ordering::Release, Ordering::Relaxed, fewer);
    }
}
