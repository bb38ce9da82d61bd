//! Sleeping without missing the last event: the armed word.
//!
//! A waiter sets a bit in the armed word, executes a full fence, looks once more for work, and only then
//! sleeps. A notifier makes work visible, executes a full fence, and looks at the armed word. Of
//! the two looks at least one sees the other's store: either the waiter finds the work, or the notifier
//! finds the bit. Whoever finds the word set takes all bits at once and wakes everyone, so a
//! waiter that still has nothing arms again.
//!
//! Bits alone would not do for several waiters. Between one's last look and its system call the bits may be
//! taken, and set again by another waiter, who waits for something else: the first would find the
//! word as it left it, and sleep through what it was woken for. So the rest of the word counts.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// Threads sleep on the word itself.
pub(crate) const FUTEX: u32 = 1;
/// Bells are to be rung.
pub(crate) const BELL: u32 = 1 << 1;
const BITS: u32 = FUTEX | BELL;
/// One taking, in the part of the word that counts them.
const TAKEN: u32 = BITS + 1;
/// Bells that one line can name: four of threads, and the completion channel's.
pub(crate) const BELLS: usize = 5;

/// # Invariants
/// Only waiters set bits; only notifiers clear them, and they then count, and wake whom the bits name.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct WaitLine<P: Platform = Native> {
    armed: P::U32,
    reserved: P::U32,
    bells: [P::U64; BELLS],
}

impl<P: Platform> WaitLine<P> {
    /// As fresh memory is.
    #[cfg(all(test, loom))]
    pub(crate) fn fresh() -> Self {
        let zero = || P::U32::new(0);
        Self { armed: zero(), reserved: zero(), bells: std::array::from_fn(|_| P::U64::new(0)) }
    }

    /// Arms. The caller looks for work after this and before it sleeps. Returns the word's value,
    /// which a futex wait compares with.
    #[inline]
    pub(crate) fn arm(&self, bit: u32) -> u32 {
        let seen = self.armed.fetch_or(bit, Ordering::Relaxed) | bit;
        // SYNC(arm-ring): orders the bit before the look for work. Pairs with the fence in `ring`:
        // store-load on both sides needs a full fence.
        P::fence();
        seen
    }

    /// Takes the armed bits after work was made visible; 0 is the common answer.
    #[inline(always)]
    pub(crate) fn ring(&self) -> u32 {
        // SYNC(arm-ring): orders the work before the look at the word. Pairs with `arm`.
        P::fence();
        self.take()
    }

    /// [`Self::ring`] for a caller that has executed the fence already.
    #[inline(always)]
    pub(crate) fn take(&self) -> u32 {
        if self.armed.load(Ordering::Relaxed) & BITS == 0 { 0 } else { self.take_armed() }
    }

    /// How often bits were taken, wrapping.
    pub(crate) fn n_taken(&self) -> u32 {
        // SYNC(arm-ring): whoever sees a new number sees the work that was announced.
        self.armed.load(Ordering::Acquire) / TAKEN
    }

    /// Takes the bits, and makes sleeps fail that compare with an older word: for a caller that
    /// then wakes those who sleep on it, whatever the bits say.
    #[cold]
    pub(crate) fn take_armed(&self) -> u32 {
        let bits = self.armed.fetch_and(!BITS, Ordering::AcqRel) & BITS;
        // Before the wake-up: a waiter either fails to fall asleep from here on, or sleeps already
        // and is woken. Two steps, because a loop that does it in one a hostile peer could keep
        // from ending; a waiter that arms in between has seen the work.
        self.armed.fetch_add(TAKEN, Ordering::AcqRel);
        bits
    }

    /// The word, for the system's futex calls.
    pub(crate) fn word(&self) -> &P::U32 {
        &self.armed
    }

    /// Bell in place `i`; 0 is none.
    pub(crate) fn bell(&self, i: usize) -> u64 {
        self.bells[i].load(Ordering::Relaxed)
    }

    /// Names a bell in place `i`, or none with 0. Before [`Self::arm`].
    pub(crate) fn set_bell(&self, i: usize, id: u64) {
        self.bells[i].store(id, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_was_taken_and_armed_again_is_another_one() {
        let line = WaitLine::<Native> {
            armed: 0.into(),
            reserved: 0.into(),
            bells: std::array::from_fn(|_| 0.into()),
        };
        let expected = line.arm(FUTEX);
        assert_eq!(line.ring(), FUTEX);
        // Another thread, for its own reasons, before the first one's system call.
        line.arm(FUTEX);
        assert_ne!(line.word().load(Ordering::Relaxed), expected);
        assert_eq!(line.ring(), FUTEX);
        assert_eq!(line.ring(), 0);
    }
}
