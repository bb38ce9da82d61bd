//! Room request: one word that a sender sets when it needs room, and that the receiver clears when
//! there is some.
//!
//! The sender sets the word, executes a full fence, and checks for room once more; the receiver
//! makes room, executes a full fence, and checks the word. At least one of the two sees the other's
//! store. Receivers make room with every message and senders ask rarely, so where the system offers
//! a barrier for both sides the sender issues it and the receiver executes only a compiler fence.

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
    /// A request as in fresh memory.
    #[cfg(all(test, loom))]
    pub(crate) fn fresh() -> Self {
        Self { word: P::U32::new(0) }
    }

    /// Asks for room. The caller checks for room after this.
    pub(crate) fn ask(&self, fence: impl FnOnce()) {
        self.word.store(1, Ordering::Relaxed);
        // SYNC(room-request): orders the request before the second check for room. Pairs with
        // `grant`.
        fence();
    }

    /// Whether the receiver has not granted the request yet.
    pub(crate) fn is_open(&self) -> bool {
        // SYNC(room-made): pairs with the Release in `grant`.
        self.word.load(Ordering::Acquire) != 0
    }

    /// Withdraws the request, or resets it in fresh memory.
    pub(crate) fn withdraw(&self) {
        self.word.store(0, Ordering::Relaxed);
    }

    /// Called after room was made: grants an open request. Returns whether the sender has to be
    /// rung.
    #[inline(always)]
    pub(crate) fn grant(&self, fence: impl FnOnce()) -> bool {
        // SYNC(room-request): orders the room before the load of the request. Pairs with `ask`.
        fence();
        if self.word.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // SYNC(room-made): a sender that sees the request cleared sees the room.
        self.word.store(0, Ordering::Release);
        true
    }
}
