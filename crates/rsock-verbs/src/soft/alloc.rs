//! Allocation of a segment: a first-fit allocator of pages, and one of small blocks that are carved
//! from pages.
//!
//! Pure bookkeeping on offsets, private to the segment's owner. The caller punches pages before it
//! frees them, so allocated pages read as zero.

use super::layout::PAGE;
use std::collections::BTreeMap;

/// Granule of small allocations: lane heads and wait lines.
pub(super) const BLOCK: u64 = 512;

/// # Invariants
/// `free` maps the start of each free run to its length; runs neither touch nor overlap.
/// `blocks` holds offsets of free blocks.
#[derive(Debug)]
pub(super) struct Allocator {
    free: BTreeMap<u64, u64>,
    blocks: Vec<u64>,
}

impl Allocator {
    /// An allocator of `start..end`, both page aligned.
    pub(super) fn new(start: u64, end: u64) -> Self {
        debug_assert!(start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE) && start < end);
        Self { free: BTreeMap::from([(start, end - start)]), blocks: Vec::new() }
    }

    /// `len` bytes, rounded up to pages.
    pub(super) fn alloc(&mut self, len: u64) -> Option<u64> {
        let len = len.checked_next_multiple_of(PAGE).filter(|len| *len > 0)?;
        let (at, run) = self.free.iter().find(|(_, run)| **run >= len).map(|(a, r)| (*a, *r))?;
        self.free.remove(&at);
        if run > len {
            self.free.insert(at + len, run - len);
        }
        Some(at)
    }

    /// Frees what `alloc(len)` returned.
    pub(super) fn free(&mut self, mut at: u64, len: u64) {
        let mut len = len.next_multiple_of(PAGE);
        if let Some((before, run)) = self.free.range(..at).next_back().map(|(a, r)| (*a, *r)) {
            debug_assert!(before + run <= at, "double free");
            if before + run == at {
                self.free.remove(&before);
                (at, len) = (before, run + len);
            }
        }
        if let Some(run) = self.free.remove(&(at + len)) {
            len += run;
        }
        self.free.insert(at, len);
    }

    /// Allocates one small block. It holds what its last user left there.
    pub(super) fn alloc_block(&mut self) -> Option<u64> {
        if self.blocks.is_empty() {
            let page = self.alloc(PAGE)?;
            self.blocks.extend((0..PAGE / BLOCK).rev().map(|i| page + i * BLOCK));
        }
        self.blocks.pop()
    }

    /// Bytes that are allocated.
    #[cfg(test)]
    pub(super) fn in_use(&self, of: u64) -> u64 {
        of - self.free.values().sum::<u64>() - self.blocks.len() as u64 * BLOCK
    }

    /// Frees a small block.
    pub(super) fn free_block(&mut self, at: u64) {
        self.blocks.push(at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Op {
        Alloc(u64),
        Free(usize),
        Block,
        FreeBlock(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (1u64..20_000).prop_map(Op::Alloc),
            any::<usize>().prop_map(Op::Free),
            Just(Op::Block),
            any::<usize>().prop_map(Op::FreeBlock),
        ]
    }

    proptest! {
        /// Checks the allocator against a plain list of what is allocated.
        #[test]
        fn nothing_overlaps_and_nothing_is_lost(ops in proptest::collection::vec(op(), 1..300)) {
            const END: u64 = 64 * PAGE;
            let mut a = Allocator::new(PAGE, END);
            let mut out: Vec<(u64, u64)> = Vec::new();
            let mut blocks: Vec<u64> = Vec::new();
            for op in ops {
                match op {
                    Op::Alloc(len) => if let Some(at) = a.alloc(len) {
                        let len = len.next_multiple_of(PAGE);
                        prop_assert!(at >= PAGE && at + len <= END && at.is_multiple_of(PAGE));
                        prop_assert!(out.iter().all(|(o, l)| at + len <= *o || o + l <= at));
                        prop_assert!(blocks.iter().all(|b| b + BLOCK <= at || at + len <= *b));
                        out.push((at, len));
                    },
                    Op::Free(i) if !out.is_empty() => {
                        let (at, len) = out.swap_remove(i % out.len());
                        a.free(at, len);
                    }
                    Op::Block => if let Some(at) = a.alloc_block() {
                        prop_assert!(at.is_multiple_of(BLOCK));
                        prop_assert!(!blocks.contains(&at));
                        prop_assert!(out.iter().all(|(o, l)| at + BLOCK <= *o || o + l <= at));
                        blocks.push(at);
                    },
                    Op::FreeBlock(i) if !blocks.is_empty() => {
                        let at = blocks.swap_remove(i % blocks.len());
                        a.free_block(at);
                    }
                    Op::Free(_) | Op::FreeBlock(_) => {}
                }
            }
            for (at, len) in out.drain(..) {
                a.free(at, len);
            }
            for at in blocks.drain(..) {
                a.free_block(at);
            }
            let left: u64 = a.free.values().sum::<u64>() + a.blocks.len() as u64 * BLOCK;
            prop_assert_eq!(left, END - PAGE);
            let runs: Vec<_> = a.free.iter().collect();
            prop_assert!(runs.windows(2).all(|w| w[0].0 + w[0].1 < *w[1].0));
        }
    }
}
