//! The list of free slots. Any thread may push and pop.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The first entry of a linked list as `index + 1`, and above it a tag that changes with every
/// step, so that an outdated compare-and-swap fails.
#[repr(transparent)]
pub(crate) struct FreeList(pub(crate) AtomicU64);

impl FreeList {
    /// Takes a slot off the list. `next` finds the word of a slot that holds its successor.
    pub(crate) fn pop<'a>(&self, next: impl Fn(u32) -> Option<&'a AtomicU32>) -> Option<u32> {
        let mut head = self.0.load(Ordering::Acquire);
        loop {
            let index = first(head).checked_sub(1)?;
            // Another thread may pop the slot at this point; the tag then fails the exchange.
            let new = tagged(head, next(index)?.load(Ordering::Relaxed));
            match self.0.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
    }

    /// Puts a slot on the list; `next` is its word for its successor.
    pub(crate) fn push(&self, index: u32, next: &AtomicU32) {
        let mut head = self.0.load(Ordering::Relaxed);
        loop {
            next.store(first(head), Ordering::Relaxed);
            let new = tagged(head, index + 1);
            // SYNC(slot-list): publishes `next`. Pairs with the Acquire in `take`.
            match self.0.compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}

fn first(head: u64) -> u32 {
    u32::try_from(head & u64::from(u32::MAX)).unwrap_or(0)
}

fn tagged(old: u64, first: u32) -> u64 {
    ((old >> 32).wrapping_add(1) << 32) | u64::from(first)
}
