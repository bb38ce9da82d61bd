//! One entry of a receive lane: a cache line with a valid marker.
//!
//! The sender fills a slot and stores its sequence number last; the receiver, which knows the next
//! number, gets marker and payload in one cache line transfer. There is no shared tail index. A
//! slot is written again only after the receiver has published a head beyond it.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// Bytes of payload that a slot can carry.
pub(crate) const INLINE: usize = 48;

/// # Invariants
/// `seq == index + 1` (modulo 2^32) exactly while entry `index` is published in it. Memory that was
/// never written holds 0, which the first pass over the lane never expects.
#[repr(C, align(64))]
#[derive(Debug)]
pub(crate) struct Slot<P: Platform = Native> {
    seq: P::U32,
    imm: P::U32,
    /// The encoded entry; see `soft::layout::Entry`.
    word: P::U64,
    payload: [P::U64; INLINE / 8],
}

impl<P: Platform> Slot<P> {
    /// A slot as in fresh memory.
    #[cfg(test)]
    pub(crate) fn fresh() -> Self {
        let zero = || P::U64::new(0);
        let payload = std::array::from_fn(|_| zero());
        Self { seq: P::U32::new(0), imm: P::U32::new(0), word: zero(), payload }
    }

    /// Publishes entry `index`: the caller is the lane's only producer, and the receiver has
    /// published a head that says this slot is free.
    #[inline(always)]
    pub(crate) fn publish(&self, index: u32, imm: u32, word: u64, payload: &[u64; INLINE / 8]) {
        self.imm.store(imm, Ordering::Relaxed);
        self.word.store(word, Ordering::Relaxed);
        for (to, from) in self.payload.iter().zip(payload) {
            to.store(*from, Ordering::Relaxed);
        }
        // SYNC(slot-publish): makes the fields above, and the payload that was copied elsewhere
        // before, visible. Pairs with the Acquire in `is_published`.
        self.seq.store(index.wrapping_add(1), Ordering::Release);
    }

    /// As [`Self::publish`], for an entry without payload in the slot.
    #[inline(always)]
    pub(crate) fn publish_bare(&self, index: u32, imm: u32, word: u64) {
        self.imm.store(imm, Ordering::Relaxed);
        self.word.store(word, Ordering::Relaxed);
        // SYNC(slot-publish): as in `publish`.
        self.seq.store(index.wrapping_add(1), Ordering::Release);
    }

    /// Whether the slot holds entry `index`.
    #[inline(always)]
    pub(crate) fn is_published(&self, index: u32) -> bool {
        // SYNC(slot-publish): pairs with the Release in `publish`.
        self.seq.load(Ordering::Acquire) == index.wrapping_add(1)
    }

    /// The immediate word and the encoded entry, to be read after [`Self::is_published`]. A hostile
    /// sender may change them at any time: read them once.
    #[inline(always)]
    pub(crate) fn read(&self) -> (u32, u64) {
        (self.imm.load(Ordering::Relaxed), self.word.load(Ordering::Relaxed))
    }

    /// The slot's payload, as native words.
    #[inline(always)]
    pub(crate) fn payload(&self) -> [u64; INLINE / 8] {
        let mut words = [0; INLINE / 8];
        for (to, from) in words.iter_mut().zip(&self.payload) {
            *to = from.load(Ordering::Relaxed);
        }
        words
    }
}
