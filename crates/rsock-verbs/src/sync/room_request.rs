//! A sender's wish for room, and its end: one word that the sender sets and the receiver clears.
//!
//! The sender wishes, executes a full fence, and looks once more; the receiver makes room,
//! executes a full fence, and looks for a wish. One of the two sees the other. Receivers make room
//! with every message and senders wish rarely, so where the system offers a barrier for both sides
//! the sender pays for it and the receiver's fence is only the compiler's.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// # Invariants
/// Set by the sender only; cleared by the receiver when there is room, or by the sender when it
/// needs none.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct RoomRequest<P: Platform = Native> {
    word: P::U32,
}

impl<P: Platform> RoomRequest<P> {
    /// As fresh memory is.
    #[cfg(all(test, loom))]
    pub(super) fn fresh() -> Self {
        Self { word: P::U32::new(0) }
    }

    /// Asks. The caller looks for room after this.
    pub(crate) fn ask(&self, fence: impl FnOnce()) {
        self.word.store(1, Ordering::Relaxed);
        // SYNC(want-room): orders the wish before the second look for room. Pairs with `grant`.
        fence();
    }

    /// Whether nobody has answered yet.
    pub(crate) fn is_open(&self) -> bool {
        // SYNC(room-made): pairs with the Release in `grant`.
        self.word.load(Ordering::Acquire) != 0
    }

    /// Takes it back, or clears fresh memory.
    pub(crate) fn withdraw(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// After room was made: whether somebody has to be told.
    #[inline(always)]
    pub(crate) fn grant(&self, fence: impl FnOnce()) -> bool {
        // SYNC(want-room): orders the room before the look at the wish. Pairs with `ask`.
        fence();
        if self.word.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // SYNC(room-made): whoever sees the wish gone sees the room.
        self.word.store(0, Ordering::Release);
        true
    }
}
