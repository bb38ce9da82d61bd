//! Copy guard: lets the owner of a region know whether a sender is copying into it.
//!
//! The sender begins the guard, executes a full fence, and then checks that the region still has
//! its key; the owner withdraws the key, executes a full fence, and then checks that no guard is
//! begun. At least one of the two sees the other's store. Copies are frequent and regions end
//! rarely, so, as in [`super::room_request`], the rare side executes both fences where the system
//! offers that.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// # Invariants
/// Odd exactly while the sender, its only writer, is between [`CopyGuard::begin`] and
/// [`CopyGuard::end`].
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct CopyGuard<P: Platform = Native> {
    word: P::U32,
}

impl<P: Platform> CopyGuard<P> {
    /// A guard as in fresh memory.
    #[cfg(test)]
    pub(super) fn fresh() -> Self {
        Self { word: P::U32::new(0) }
    }

    /// Begins a copy; `count` is the sender's private copy of the word. The caller checks the key
    /// after this.
    #[inline(always)]
    pub(crate) fn begin(&self, count: &mut u32, fence: impl FnOnce()) {
        *count = count.wrapping_add(1);
        self.word.store(*count, Ordering::Relaxed);
        // SYNC(copy-guard): orders the odd number before the load of the key. Pairs with the fence
        // that the owner executes between withdrawing the key and `is_quiet`.
        fence();
    }

    /// Ends a copy.
    #[inline(always)]
    pub(crate) fn end(&self, count: &mut u32) {
        *count = count.wrapping_add(1);
        // SYNC(copy-guard): the sender's stores into the region come before. Pairs with the Acquire
        // in `is_quiet`.
        self.word.store(*count, Ordering::Release);
    }

    /// Whether no copy is under way that began before the owner's fence.
    pub(crate) fn is_quiet(&self) -> bool {
        self.word.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// The count, for [`Self::is_still`]. Odd during a copy.
    pub(crate) fn count(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Whether the copy that [`Self::count`] saw is still under way.
    pub(crate) fn is_still(&self, count: u32) -> bool {
        // SYNC(copy-guard): pairs with the Release in `end`.
        self.word.load(Ordering::Acquire) == count
    }

    /// Resets the guard, for fresh memory.
    pub(crate) fn clear(&self) {
        self.word.store(0, Ordering::Relaxed);
    }
}
