//! The layout of a stream's registered memory: the target table, the message words of a wire
//! without immediates, the receive ring.
//!
//! On a device that pins memory all of it is one region, since each costs a registration. On one
//! that does not, the ring is a region of its own: a stream at rest gives its pages back, while the
//! table keeps what the peer has announced.

use crate::engine::config::{Config, Wire};
use crate::engine::working_set::SHORT_RING;
use rsock_proto::{IOMAP_ENTRY, RingConfig, iomap_table_offset, slot_offset};
use rsock_verbs::{Backend, MemoryRegion};

/// Entries of the local target table: the peer writes them in turn as it announces its buffers.
pub(in crate::engine) const N_SLOTS: u8 = 2;

/// Byte offsets. The table begins at 0 of its region.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Layout {
    /// One 4-byte word per receive, for [`Wire::MsgSend`], behind the table.
    pub(in crate::engine) words: usize,
    /// End of the table and the words.
    pub(in crate::engine) table_end: usize,
    /// The receive rings, in their region, on cache lines of their own: the large one, with room
    /// to be extended, and behind it the short one, if there is one.
    pub(in crate::engine) ring: usize,
    /// Bytes of the large ring before it is extended.
    usual: usize,
    /// Bytes of the short ring.
    short: usize,
    /// Whether a stream uses the short ring first.
    begins_short: bool,
    /// End of the rings' region.
    pub(in crate::engine) len: usize,
}

impl Layout {
    /// With rings in a region of their own if `is_sparse`, which says that memory takes no pages
    /// before it is used; then also with a short ring, if the large one is much larger.
    pub(in crate::engine) fn new(config: &Config, wire: Wire, is_sparse: bool) -> Self {
        let table =
            iomap_table_offset(N_SLOTS.into()) + usize::from(config.iomap_slots) * IOMAP_ENTRY;
        let words = table.next_multiple_of(4);
        let n_words = match wire {
            Wire::WriteImm => 0,
            Wire::MsgSend => config.recv_depth() as usize,
        };
        let table_end = words + 4 * n_words;
        let ring = if is_sparse { 0 } else { table_end.next_multiple_of(128) };
        let usual = config.buf_len as usize * usize::from(config.n_bufs);
        let short = if is_sparse && usual >= 4 * SHORT_RING { SHORT_RING } else { 0 };
        let begins_short = short != 0 && config.begins_short;
        let large = match short {
            0 => usual,
            _ => usual.max(config.buf_len as usize * usize::from(config.most_bufs)),
        };
        let len = ring + short + large;
        Self { words, table_end, ring, usual, short, begins_short, len }
    }

    /// Whether the rings are a region of their own.
    pub(in crate::engine) fn has_own_ring(&self) -> bool {
        self.ring == 0
    }

    /// Whether a message is a write and a word behind it, which are two requests.
    pub(in crate::engine) fn has_words(&self) -> bool {
        self.table_end != self.words
    }

    /// Bytes of both rings.
    pub(in crate::engine) fn ring_len(&self) -> usize {
        self.len - self.ring
    }

    /// Whether there is a short ring.
    pub(in crate::engine) fn has_short_ring(&self) -> bool {
        self.short != 0
    }

    /// Whether a stream uses the short ring first.
    pub(in crate::engine) fn begins_short(&self) -> bool {
        self.begins_short
    }

    /// Where the large ring begins.
    pub(in crate::engine) fn large_ring(&self) -> usize {
        self.ring
    }

    /// Bytes of the large ring before it is extended.
    pub(in crate::engine) fn usual_len(&self) -> usize {
        self.usual
    }

    /// Bytes of the large ring when it has been extended.
    pub(in crate::engine) fn large_len(&self) -> usize {
        self.ring_len() - self.short
    }

    /// Where the short ring begins.
    pub(in crate::engine) fn short_ring(&self) -> usize {
        self.ring + self.large_len()
    }

    /// Offset of slot `i` of the target table.
    pub(in crate::engine) fn slot(i: usize) -> usize {
        slot_offset(i)
    }
}

/// The ring at `offset` of `region`, with the buffers that `config` has.
pub(in crate::engine) fn ring_of<B: Backend>(
    region: &B::Mr,
    offset: usize,
    config: &Config,
) -> RingConfig {
    RingConfig {
        region: region.addr().wrapping_add(offset as u64),
        rkey: region.rkey(),
        buf_len: config.buf_len,
        n_bufs: config.n_bufs,
    }
}
