//! The layout of a stream's registered region: the target table, the message words of a wire
//! without immediates, the receive ring.

use crate::engine::config::{Config, Wire};
use rsock_proto::{IOMAP_ENTRY, iomap_table_offset, slot_offset};

/// Entries of the local target table: the peer writes them in turn as it announces its buffers.
pub(in crate::engine) const N_SLOTS: u8 = 2;

/// Byte offsets within the region.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct Layout {
    /// One 4-byte word per receive, for [`Wire::MsgSend`]; `words == ring` otherwise.
    pub(in crate::engine) words: usize,
    /// The receive ring, on a cache line of its own.
    pub(in crate::engine) ring: usize,
    /// End of the region.
    pub(in crate::engine) len: usize,
}

impl Layout {
    pub(in crate::engine) fn new(config: &Config, wire: Wire) -> Self {
        let table =
            iomap_table_offset(N_SLOTS.into()) + usize::from(config.iomap_slots) * IOMAP_ENTRY;
        let words = table.next_multiple_of(64);
        let n_words = match wire {
            Wire::WriteImm => 0,
            Wire::MsgSend => config.recv_depth() as usize,
        };
        let ring = (words + 4 * n_words).next_multiple_of(128);
        Self { words, ring, len: ring + config.buf_len as usize * usize::from(config.n_bufs) }
    }

    /// Bytes of the ring.
    pub(in crate::engine) fn ring_len(&self) -> usize {
        self.len - self.ring
    }

    /// Offset of slot `i` of the target table.
    pub(in crate::engine) fn slot(i: usize) -> usize {
        slot_offset(i)
    }
}
