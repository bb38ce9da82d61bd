//! Allocation of a segment: a first-fit allocator of pages, and one of small blocks that are carved
//! from pages.
//!
//! Pure bookkeeping on offsets, private to the segment's owner. The caller punches pages before it
//! frees them, so allocated pages read as zero; a block holds what its last user left there.

use super::layout::PAGE;
use std::collections::BTreeMap;

/// Bytes of the block that a short region takes.
pub(super) const LINE: u64 = 64;

/// Sizes of small blocks: short regions, wait lines, lane heads. Blocks of one size serve nothing
/// else, because a peer may still read a wait line that has been freed.
const BLOCKS: [u64; 3] = [LINE, 128, 512];

/// Whether an allocation of `len` bytes is a small block, and not whole pages.
pub(super) fn is_block(len: u64) -> bool {
    size_class(len).is_some()
}

/// Index of the blocks that hold `len` bytes.
fn size_class(len: u64) -> Option<usize> {
    BLOCKS.iter().position(|size| len <= *size)
}

/// # Invariants
/// `free` maps the start of each free run to its length; runs neither touch nor overlap.
/// `blocks` holds offsets of free blocks of each size.
#[derive(Debug)]
pub(super) struct Allocator {
    free: BTreeMap<u64, u64>,
    blocks: [Vec<u64>; BLOCKS.len()],
}

impl Allocator {
    /// An allocator of `start..end`, both page aligned.
    pub(super) fn new(start: u64, end: u64) -> Self {
        debug_assert!(start.is_multiple_of(PAGE) && end.is_multiple_of(PAGE) && start < end);
        Self { free: BTreeMap::from([(start, end - start)]), blocks: Default::default() }
    }

    /// `len` bytes, rounded up to a block or to pages; aligned to the block or the page.
    pub(super) fn alloc(&mut self, len: u64) -> Option<u64> {
        match size_class(len) {
            Some(class) => self.alloc_block(class),
            None => self.alloc_pages(len),
        }
    }

    /// Frees what `alloc(len)` returned.
    pub(super) fn free(&mut self, at: u64, len: u64) {
        match size_class(len) {
            Some(class) => self.blocks[class].push(at),
            None => self.free_pages(at, len),
        }
    }

    fn alloc_pages(&mut self, len: u64) -> Option<u64> {
        let len = len.checked_next_multiple_of(PAGE)?;
        let (at, run) = self.free.iter().find(|(_, run)| **run >= len).map(|(a, r)| (*a, *r))?;
        self.free.remove(&at);
        if run > len {
            self.free.insert(at + len, run - len);
        }
        Some(at)
    }

    fn free_pages(&mut self, mut at: u64, len: u64) {
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

    fn alloc_block(&mut self, class: usize) -> Option<u64> {
        if self.blocks[class].is_empty() {
            let (page, size) = (self.alloc_pages(PAGE)?, BLOCKS[class]);
            self.blocks[class].extend((0..PAGE / size).rev().map(|i| page + i * size));
        }
        self.blocks[class].pop()
    }

    /// Bytes that are not allocated.
    #[cfg(test)]
    pub(super) fn unused(&self) -> u64 {
        let blocks = self.blocks.iter().zip(BLOCKS).map(|(free, size)| free.len() as u64 * size);
        self.free.values().sum::<u64>() + blocks.sum::<u64>()
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
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (1u64..20_000).prop_map(Op::Alloc),
            (1u64..600).prop_map(Op::Alloc),
            any::<usize>().prop_map(Op::Free),
        ]
    }

    /// Bytes that an allocation of `len` takes.
    fn size(len: u64) -> u64 {
        size_class(len).map_or(len.next_multiple_of(PAGE), |class| BLOCKS[class])
    }

    proptest! {
        /// Checks the allocator against a plain list of what is allocated.
        #[test]
        fn nothing_overlaps_and_nothing_is_lost(ops in proptest::collection::vec(op(), 1..300)) {
            const END: u64 = 64 * PAGE;
            let mut a = Allocator::new(PAGE, END);
            let mut out: Vec<(u64, u64)> = Vec::new();
            for op in ops {
                match op {
                    Op::Alloc(len) => if let Some(at) = a.alloc(len) {
                        let end = at + size(len);
                        prop_assert!(at >= PAGE && end <= END);
                        prop_assert!(at.is_multiple_of(size(len).min(PAGE)));
                        prop_assert!(out.iter().all(|(o, l)| end <= *o || o + size(*l) <= at));
                        out.push((at, len));
                    },
                    Op::Free(i) if !out.is_empty() => {
                        let (at, len) = out.swap_remove(i % out.len());
                        a.free(at, len);
                    }
                    Op::Free(_) => {}
                }
            }
            let in_use: u64 = out.iter().map(|(_, len)| size(*len)).sum();
            prop_assert_eq!(a.unused() + in_use, END - PAGE);
            for (at, len) in out.drain(..) {
                a.free(at, len);
            }
            prop_assert_eq!(a.unused(), END - PAGE);
            let runs: Vec<_> = a.free.iter().collect();
            prop_assert!(runs.windows(2).all(|w| w[0].0 + w[0].1 < *w[1].0));
        }
    }
}
