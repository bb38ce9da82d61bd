//! Ready set: which of many completion queues have something new, for a thread that waits for all
//! of them.
//!
//! A waiter that has drained a queue arms it once ([`ANNOUNCE`](super::waiter::ANNOUNCE)). The
//! notifier that finds the queue armed sets the queue's bit here, and rings the set's wait line,
//! which costs a load unless a thread sleeps on it. So the cost of a wait is that of the queues
//! with news, not of all that are watched.
//!
//! A bit says that its queue is to be looked at, and no more: a notifier that is not trusted may
//! set any bit at any time.

use super::primitive::{Native, Platform, Word};
use super::waiter::WaitLine;
use std::sync::atomic::Ordering;

/// Words of bits in a set: with the wait line and the summary they fill a page. A model has fewer.
const WORDS: u32 = if cfg!(all(test, loom)) { 2 } else { 480 };
/// Words of the summary.
const SUMMARY: usize = WORDS.div_ceil(64) as usize;
/// Queues that one set can watch.
pub(crate) const QUEUES: u32 = WORDS * 64;

/// # Invariants
/// Only notifiers set bits, and a bit of the summary after the bits of its word; only the waiter
/// clears them, in the opposite order.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct ReadySet<P: Platform = Native> {
    /// Where threads sleep that wait for any queue.
    pub(crate) line: WaitLine<P>,
    /// Bit `i`: word `i` of `words` may have bits.
    summary: [P::U64; SUMMARY],
    /// The words begin at a cache line of their own.
    reserved: [P::U64; 16 - SUMMARY],
    words: [P::U64; WORDS as usize],
}

const _: () = assert!(cfg!(all(test, loom)) || size_of::<ReadySet>() == 4096);

impl<P: Platform> ReadySet<P> {
    /// A set as in fresh memory.
    pub(crate) fn fresh() -> Self {
        Self {
            line: WaitLine::fresh(),
            summary: std::array::from_fn(|_| P::U64::new(0)),
            reserved: std::array::from_fn(|_| P::U64::new(0)),
            words: std::array::from_fn(|_| P::U64::new(0)),
        }
    }

    /// Sets the bit of `queue`, after its work was made visible. The caller then rings `line`. A
    /// number that no set has changes nothing.
    pub(crate) fn insert(&self, queue: u32) {
        let word = queue as usize / 64;
        let Some(bits) = self.words.get(word) else { return };
        bits.fetch_or(1 << (queue % 64), Ordering::Release);
        // SYNC(ready-set): the bit before the summary, which `take` clears in the opposite order:
        // if `take` misses the bit, it has cleared the summary before, and this sets it again.
        self.summary[word / 64].fetch_or(1 << (word % 64), Ordering::Release);
    }

    /// Whether there are bits to take. Costs a load for each word of the summary.
    #[inline]
    pub(crate) fn has_any(&self) -> bool {
        self.summary.iter().any(|word| word.load(Ordering::Relaxed) != 0)
    }

    /// Takes all bits, and calls `found` with the queue of each.
    pub(crate) fn take(&self, mut found: impl FnMut(u32)) {
        for (i, summary) in self.summary.iter().enumerate() {
            if summary.load(Ordering::Relaxed) == 0 {
                continue;
            }
            // SYNC(ready-set): pairs with the Release in `insert`: the summary before the words.
            let in_words = summary.swap(0, Ordering::Acquire);
            for word in ones(in_words).map(|bit| i * 64 + bit) {
                let Some(bits) = self.words.get(word) else { break };
                for bit in ones(bits.swap(0, Ordering::Acquire)) {
                    found(u32::try_from(word * 64 + bit).unwrap_or(u32::MAX));
                }
            }
        }
    }
}

/// The numbers of the bits that are set, from the lowest on.
fn ones(mut bits: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = bits.trailing_zeros() as usize;
        bits = bits.checked_sub(1)? & bits;
        Some(lowest)
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::collection::btree_set;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_was_inserted_is_taken_once_and_in_order(queues in btree_set(0..QUEUES, 0..100)) {
            let set = Box::new(ReadySet::<Native>::fresh());
            for &queue in queues.iter().rev() {
                set.insert(queue);
                set.insert(queue);
            }
            prop_assert_eq!(set.has_any(), !queues.is_empty());
            let mut taken = Vec::new();
            set.take(|queue| taken.push(queue));
            prop_assert_eq!(taken, queues.into_iter().collect::<Vec<_>>());
            prop_assert!(!set.has_any());
        }
    }

    #[test]
    fn a_number_beyond_the_set_changes_nothing() {
        let set = Box::new(ReadySet::<Native>::fresh());
        set.insert(QUEUES);
        set.insert(u32::MAX);
        assert!(!set.has_any());
        set.take(|queue| panic!("{queue} was never inserted"));
    }
}
