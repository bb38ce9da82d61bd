//! Copy guard: lets the owner of memory know whether a sender is writing into it, and keep it out.
//!
//! The sender begins the guard, executes a full fence, and then checks that it may write: that the
//! owner has not paused it, and that the region still has its key. The owner pauses the sender or
//! withdraws the key, executes a full fence, and then checks that no guard is begun. At least one
//! of the two sees the other's store. Copies are frequent, and pauses and the ends of regions are
//! rare, so, as in [`super::room_request`], the rare side executes both fences where the system
//! offers that.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// # Invariants
/// `word` is odd exactly while the sender, its only writer, is between [`CopyGuard::begin`] and
/// [`CopyGuard::end`]. The owner alone writes `paused`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CopyGuard<P: Platform = Native> {
    word: P::U32,
    /// Not 0 while the sender is to write nothing.
    paused: P::U32,
}

impl<P: Platform> CopyGuard<P> {
    /// A guard as in fresh memory.
    #[cfg(test)]
    pub(crate) fn fresh() -> Self {
        Self { word: P::U32::new(0), paused: P::U32::new(0) }
    }

    /// Begins a copy; `count` is the sender's private copy of the word. The caller checks the key
    /// after this. Returns false while the owner has paused the sender: then the caller writes
    /// nothing, and ends the guard.
    #[inline(always)]
    #[must_use]
    pub(crate) fn begin(&self, count: &mut u32, fence: impl FnOnce()) -> bool {
        *count = count.wrapping_add(1);
        self.word.store(*count, Ordering::Relaxed);
        // SYNC(copy-guard): orders the odd number before the loads of the pause and of the key.
        // Pairs with the fence that the owner executes between its store and `is_quiet`.
        fence();
        // SYNC(resume): what the owner did during the pause comes before. Pairs with the Release in
        // `resume`.
        self.paused.load(Ordering::Acquire) == 0
    }

    /// Ends a copy.
    #[inline(always)]
    pub(crate) fn end(&self, count: &mut u32) {
        *count = count.wrapping_add(1);
        // SYNC(copy-guard): the sender's stores into the region come before. Pairs with the Acquire
        // in `is_quiet`.
        self.word.store(*count, Ordering::Release);
    }

    /// Has the sender write nothing from now on. The owner executes a full fence after this, and
    /// then checks [`Self::is_quiet`].
    pub(crate) fn pause(&self) {
        self.paused.store(1, Ordering::Relaxed);
    }

    /// Ends a pause.
    pub(crate) fn resume(&self) {
        self.paused.store(0, Ordering::Release);
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
}
