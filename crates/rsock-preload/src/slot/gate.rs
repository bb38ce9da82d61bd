//! Gates of a slot: a call enters one of them, and the socket ends when both are closed and empty.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Generation in the high half; `CLOSED`, `PAUSED` and the number of calls inside in the low half.
#[repr(C, align(128))]
pub(crate) struct Gate(pub(crate) AtomicU64);

const CLOSED: u64 = 1 << 31;
/// No call enters for now.
const PAUSED: u64 = 1 << 30;
const USERS: u64 = PAUSED - 1;

impl Gate {
    /// Enters, unless the gate is closed or paused, or belongs to another generation.
    #[inline]
    pub(crate) fn enter(&self, generation: u32) -> bool {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            let is_shut = word & (CLOSED | PAUSED) != 0;
            if word >> 32 != u64::from(generation) || is_shut || word & USERS == USERS {
                return false;
            }
            // SYNC(gate): pairs with the Release in `open`: the socket is complete. SeqCst, because
            // a call counts itself, then loads the table's word again, while a closing thread
            // changes the word, then loads the count: one of them sees the other.
            match self.0.compare_exchange_weak(word, word + 1, Ordering::SeqCst, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
    }

    /// Leaves; returns whether this was the last user of a closed gate.
    #[inline]
    pub(crate) fn leave(&self) -> bool {
        // SYNC(gate): Release orders this call's use of the socket before its end; pairs with the
        // Acquire here of the thread that ends it.
        let word = self.0.fetch_sub(1, Ordering::AcqRel);
        word & (CLOSED | USERS) == CLOSED | 1
    }

    /// The number of calls inside.
    pub(crate) fn users(&self) -> u64 {
        // SYNC(gate): see `enter`.
        self.0.load(Ordering::SeqCst) & USERS
    }

    pub(crate) fn open(&self, generation: u32) {
        // SYNC(gate): publishes the socket. Pairs with the Acquire in `enter`.
        self.0.store(u64::from(generation) << 32, Ordering::Release);
    }

    /// Lets no call enter until [`Self::resume`]; returns the number of calls inside.
    pub(crate) fn pause(&self) -> u64 {
        self.0.fetch_or(PAUSED, Ordering::AcqRel) & USERS
    }

    pub(crate) fn resume(&self) {
        self.0.fetch_and(!PAUSED, Ordering::Release);
    }

    /// Lets no call enter from now on; returns whether none is inside.
    pub(crate) fn close(&self) -> bool {
        self.0.fetch_or(CLOSED, Ordering::AcqRel) & USERS == 0
    }

    /// In a forked child: the calls inside belong to threads that the child does not have. Those of
    /// a closed gate stay counted, so that the child does not end a socket that the parent's
    /// threads still use.
    pub(crate) fn forget_calls(&self) {
        let emptied = |word: u64| (word & CLOSED == 0).then_some(word & !(USERS | PAUSED));
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, emptied);
    }

    /// The generation for which the gate is, or was, open; 0 before the first.
    pub(crate) fn generation(&self) -> u32 {
        u32::try_from(self.0.load(Ordering::Relaxed) >> 32).unwrap_or(0)
    }
}

/// The number of gates of a slot that are not yet closed and empty.
#[repr(transparent)]
pub(crate) struct OpenGates(pub(crate) AtomicU32);

impl OpenGates {
    /// Sets the number before the gates are opened.
    pub(crate) fn set(&self, gates: u32) {
        self.0.store(gates, Ordering::Relaxed);
    }

    /// Counts one more gate as closed and empty; returns whether it was the last.
    pub(crate) fn close_one(&self) -> bool {
        // SYNC(gate): Release passes on what the calls through this gate did, Acquire takes that of
        // the other gate, for the thread that ends the socket.
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}
