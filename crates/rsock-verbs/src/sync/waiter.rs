//! Wait line: a word by which threads sleep without missing the last event.
//!
//! A waiter sets a bit in the armed word, executes a full fence, checks once more for work, and
//! only then sleeps. A notifier makes work visible, executes a full fence, and reads the armed
//! word. At least one of the two sees the other's store: either the waiter finds the work, or the
//! notifier finds the bit. A notifier that finds bits set takes all of them at once and wakes all
//! waiters, so a waiter that still has no work arms again.
//!
//! Bits alone would not suffice for several waiters. Between a waiter's last check and its system
//! call the bits may be taken, and set again by another waiter that waits for something else: the
//! first waiter would find the word unchanged and miss its wake-up. So the other bits of the word
//! count how often bits were taken.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// Set while threads sleep on the word itself.
pub(crate) const FUTEX: u32 = 1;
/// Set while bells are to be rung.
pub(crate) const BELL: u32 = 1 << 1;
/// Set while the line's queue is to be announced to the ready set that the line names.
pub(crate) const ANNOUNCE: u32 = 1 << 2;
const BITS: u32 = FUTEX | BELL | ANNOUNCE;
/// Increment of the counter in the upper bits.
const TAKEN: u32 = BITS + 1;
/// Bells of threads that one line can name. A model has fewer.
pub(crate) const BELLS: usize = if cfg!(all(test, loom)) { 1 } else { 5 };

/// # Invariants
/// Only waiters set bits; only notifiers clear them, and they then count that and wake the waiters
/// that the bits name.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct WaitLine<P: Platform = Native> {
    armed: P::U32,
    /// The queue's number in the ready set.
    ready_queue: P::U32,
    bells: [P::U64; BELLS],
    /// Where the ready set lies in the segment of the line's owner; 0 means none.
    ready_set: P::U64,
    /// The CPU on which the last notifier ran that woke sleepers, plus 1; 0 if it did not say.
    woken_from: P::U32,
    /// For each bell the pipe beside it. Processes of an older library leave 0 here and rings to
    /// the bells, so the layout's version is the same.
    pipes: [P::U64; BELLS],
}

/// How a notifier rings a thread's bell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BellName {
    /// The bell; 0 means none.
    pub(crate) id: u64,
    /// The doorbell pipe that may be rung instead; 0 means none.
    pub(crate) pipe: u64,
}

/// The wait lines of one queue.
pub(crate) trait Lines<P: Platform> {
    /// Runs `f` on every one.
    fn for_each(&self, f: impl FnMut(&WaitLine<P>));
}

impl<P: Platform> WaitLine<P> {
    /// A line as in fresh memory.
    pub(crate) fn fresh() -> Self {
        Self {
            armed: P::U32::new(0),
            ready_queue: P::U32::new(0),
            bells: std::array::from_fn(|_| P::U64::new(0)),
            ready_set: P::U64::new(0),
            woken_from: P::U32::new(0),
            pipes: std::array::from_fn(|_| P::U64::new(0)),
        }
    }

    /// Sets a bit. The caller checks for work after this and before it sleeps. Returns the word's
    /// value, with which a futex wait compares.
    #[inline]
    pub(crate) fn arm(&self, bit: u32) -> u32 {
        // Release: a notifier that takes the bit sees the bell or the ready set that was named
        // before.
        let seen = self.armed.fetch_or(bit, Ordering::Release) | bit;
        // SYNC(arm-ring): orders the bit before the check for work. Pairs with the fence in `ring`:
        // store-load on both sides needs a full fence.
        P::fence();
        seen
    }

    /// Takes the armed bits after work was made visible; 0 is the common answer.
    #[inline(always)]
    pub(crate) fn ring(&self) -> u32 {
        // SYNC(arm-ring): orders the work before the load of the word. Pairs with `arm`.
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
        // SYNC(arm-ring): a thread that sees a new number sees the work that was announced.
        self.armed.load(Ordering::Acquire) / TAKEN
    }

    /// Takes the bits, so that futex waits that compare with an older word return. The caller then
    /// wakes the word's sleepers, whatever the bits say.
    #[cold]
    pub(crate) fn take_armed(&self) -> u32 {
        let bits = self.armed.fetch_and(!BITS, Ordering::AcqRel) & BITS;
        // Before the wake-up: a waiter either fails to fall asleep from here on, or sleeps already
        // and is woken. Two steps, because a hostile peer could keep a compare-and-swap loop from
        // ending; a waiter that arms in between has seen the work.
        self.armed.fetch_add(TAKEN, Ordering::AcqRel);
        bits
    }

    /// The word, for the system's futex calls.
    pub(crate) fn word(&self) -> &P::U32 {
        &self.armed
    }

    /// On which CPU the last notifier ran that woke sleepers, if it said so. A peer may say
    /// anything.
    pub(crate) fn woken_from(&self) -> Option<u32> {
        self.woken_from.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Says on which CPU the notifier runs. Called before it wakes sleepers.
    pub(crate) fn set_woken_from(&self, cpu: u32) {
        self.woken_from.store(cpu.wrapping_add(1), Ordering::Relaxed);
    }

    /// The bell at index `i`. Of a bell that is replaced meanwhile and its successor this may be a
    /// mixture: the first has been disarmed, and the other one's thread has looked for work after
    /// it was armed.
    pub(crate) fn bell(&self, i: usize) -> BellName {
        let load = |word: &P::U64| word.load(Ordering::Relaxed);
        BellName { id: load(&self.bells[i]), pipe: load(&self.pipes[i]) }
    }

    /// Stores a bell at index `i`. Called before [`Self::arm`].
    pub(crate) fn set_bell(&self, i: usize, bell: BellName) {
        self.pipes[i].store(bell.pipe, Ordering::Relaxed);
        self.bells[i].store(bell.id, Ordering::Relaxed);
    }

    /// Where the ready set lies to which the queue is announced, and the queue's number there.
    pub(crate) fn ready_set(&self) -> Option<(u64, u32)> {
        let at = self.ready_set.load(Ordering::Relaxed);
        (at != 0).then(|| (at, self.ready_queue.load(Ordering::Relaxed)))
    }

    /// Names a ready set, or none with 0. Called before [`Self::arm`].
    pub(crate) fn set_ready_set(&self, at: u64, queue: u32) {
        self.ready_queue.store(queue, Ordering::Relaxed);
        self.ready_set.store(at, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_word_that_was_taken_and_armed_again_has_changed() {
        let line = WaitLine::<Native>::fresh();
        let expected = line.arm(FUTEX);
        assert_eq!(line.ring(), FUTEX);
        // Another thread arms for another event, before the first one's system call.
        line.arm(FUTEX);
        assert_ne!(line.word().load(Ordering::Relaxed), expected);
        assert_eq!(line.ring(), FUTEX);
        assert_eq!(line.ring(), 0);
    }

    #[test]
    fn a_line_names_the_cpu_that_it_was_woken_from_if_a_notifier_said_so() {
        let line = WaitLine::<Native>::fresh();
        assert_eq!(line.woken_from(), None);
        line.set_woken_from(0);
        assert_eq!(line.woken_from(), Some(0));
        line.set_woken_from(u32::MAX);
        assert_eq!(line.woken_from(), None, "no CPU");
    }
}
