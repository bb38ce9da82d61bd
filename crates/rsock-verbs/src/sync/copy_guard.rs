//! A sender inside a copy, and an owner who wants the memory back.
//!
//! The sender marks itself busy, executes a full fence, and then looks whether the region still
//! has its key; the owner takes the key away, executes a full fence, and then looks whether anyone
//! is busy. One of the two sees the other. Copies are frequent and regions end rarely, so as in
//! [`super::room_request`] the rare side pays where it can.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// # Invariants
/// Odd exactly while the sender, its only writer, is between [`CopyGuard::begin`] and [`CopyGuard::end`].
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct CopyGuard<P: Platform = Native> {
    word: P::U32,
}

impl<P: Platform> CopyGuard<P> {
    /// As fresh memory is.
    #[cfg(test)]
    pub(super) fn fresh() -> Self {
        Self { word: P::U32::new(0) }
    }

    /// Begins a copy; `count` is the sender's private copy of the word. The caller looks at the key
    /// after this.
    #[inline(always)]
    pub(crate) fn begin(&self, count: &mut u32, fence: impl FnOnce()) {
        *count = count.wrapping_add(1);
        self.word.store(*count, Ordering::Relaxed);
        // SYNC(copy-guard): orders the odd number before the look at the key. Pairs with the fence
        // that the owner executes between taking the key and `is_quiet`.
        fence();
    }

    /// Ends it.
    #[inline(always)]
    pub(crate) fn end(&self, count: &mut u32) {
        *count = count.wrapping_add(1);
        // SYNC(copy-guard): our stores into the region come before. Pairs with the Acquire in
        // `is_quiet`.
        self.word.store(*count, Ordering::Release);
    }

    /// Whether no copy is under way that began before the owner's fence.
    pub(crate) fn is_quiet(&self) -> bool {
        self.word.load(Ordering::Acquire).is_multiple_of(2)
    }

    /// The word, to be given to [`Self::is_still`]. Odd inside a copy.
    pub(crate) fn count(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    /// Whether the copy that [`Self::count`] has seen is still under way.
    pub(crate) fn is_still(&self, count: u32) -> bool {
        // SYNC(copy-guard): pairs with the Release in `end`.
        self.word.load(Ordering::Acquire) == count
    }

    /// For fresh memory.
    pub(crate) fn clear(&self) {
        self.word.store(0, Ordering::Relaxed);
    }
}
