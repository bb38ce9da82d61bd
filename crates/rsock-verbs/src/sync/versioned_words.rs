//! Words that one writer replaces together, and that others copy without a lock: a copy that a
//! replacement interrupts is not taken.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// What a reader finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied<const N: usize> {
    /// The words were never written.
    Nothing,
    /// They are being replaced. A hostile writer may never end that.
    Changing,
    Words([u64; N]),
}

/// # Invariants
/// `version` is odd while its only writer replaces the words, and 0 in memory that was never
/// written.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct VersionedWords<const N: usize, P: Platform = Native> {
    version: P::U64,
    words: [P::U64; N],
}

impl<const N: usize, P: Platform> VersionedWords<N, P> {
    /// Words as in fresh memory.
    #[cfg(all(test, loom))]
    pub(crate) fn fresh() -> Self {
        Self { version: P::U64::new(0), words: std::array::from_fn(|_| P::U64::new(0)) }
    }

    /// Replaces the words. One thread does so at a time.
    pub(crate) fn replace(&self, words: &[u64; N]) {
        let version = self.version.load(Ordering::Relaxed) | 1;
        self.version.store(version, Ordering::Relaxed);
        for (to, from) in self.words.iter().zip(words) {
            // SYNC(versioned-words): the odd version comes before. Pairs with the Acquire in
            // `copy`: a reader that sees this word sees that version, or a later one.
            to.store(*from, Ordering::Release);
        }
        // SYNC(versioned-words): the words come before. Pairs with the first load in `copy`.
        self.version.store(version.wrapping_add(1), Ordering::Release);
    }

    /// A copy of the words. A hostile writer may have written any.
    pub(crate) fn copy(&self) -> Copied<N> {
        let version = self.version.load(Ordering::Acquire);
        if version == 0 {
            return Copied::Nothing;
        }
        let mut words = [0; N];
        for (to, from) in words.iter_mut().zip(&self.words) {
            *to = from.load(Ordering::Acquire);
        }
        match self.version.load(Ordering::Relaxed) {
            again if again == version && version.is_multiple_of(2) => Copied::Words(words),
            _ => Copied::Changing,
        }
    }
}
