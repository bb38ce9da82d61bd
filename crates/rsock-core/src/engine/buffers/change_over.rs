//! The change between the large and the short buffers of a stream, where its
//! [`WorkingSet`] calls for it.

use crate::engine::QpStream;
use crate::engine::buffers::layout::Layout;
use crate::engine::config::Config;
use crate::engine::shared::RecvState;
use crate::engine::working_set::{N_SHORT, SHORT_BUF, SHORT_RING, WorkingSet};
use rsock_proto::{RingConfig, Span};
use rsock_verbs::{Backend, MemoryRegion};

impl Layout {
    /// Where a run of received bytes lies in the region.
    pub(in crate::engine) fn offset_of(&self, set: &WorkingSet, span: Span) -> usize {
        // The old ring is always the other one.
        let is_short = set.is_short() != span.is_old;
        span.offset + if is_short { self.short_ring() } else { self.large_ring() }
    }

    /// The short ring, or the large one, whose sizes `config` has.
    pub(in crate::engine) fn ring_of(&self, config: &Config, is_short: bool) -> RingSizes {
        match is_short {
            true => RingSizes { at: self.short_ring(), buf_len: SHORT_BUF, n_bufs: N_SHORT },
            false => {
                RingSizes { at: self.large_ring(), buf_len: config.buf_len, n_bufs: config.n_bufs }
            }
        }
    }

    /// Bytes that may be written to in all, where `dirty` have been. Room in the old ring is filled
    /// first, unless it `is_old_free`.
    pub(in crate::engine) fn most_dirty(
        &self,
        set: &WorkingSet,
        is_old_free: bool,
        dirty: usize,
    ) -> usize {
        if set.is_short() && is_old_free { SHORT_RING.max(dirty) } else { self.ring_len() }
    }
}

/// One of the two rings of a region.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine) struct RingSizes {
    /// Where it begins in the region.
    pub(in crate::engine) at: usize,
    /// Bytes of a buffer.
    pub(in crate::engine) buf_len: u32,
    /// Buffers.
    pub(in crate::engine) n_bufs: u8,
}

impl<B: Backend> QpStream<B> {
    /// Changes over to the buffers that recent use calls for, if one has been filled, and gives the
    /// pages of buffers back that are no longer used.
    #[inline]
    pub(in crate::engine) fn choose_buffers(&self, recv: &mut RecvState) {
        let layout = &self.resources.layout;
        if B::PINS || !layout.has_short_ring() {
            return;
        }
        if recv.set.is_short() && recv.dirty > SHORT_RING && recv.half.is_old_ring_free() {
            self.resources.region.punch(layout.large_ring(), layout.large_len());
            recv.dirty = SHORT_RING;
            self.ring.usage.clear();
        }
        if recv.half.can_replace_ring() && recv.set.decide(recv.half.readable()) {
            self.change_over(recv);
        }
    }

    /// Most bytes of receive memory that the peer has written to.
    #[cfg(test)]
    pub(crate) fn n_dirty(&self) -> usize {
        self.ring.lock_recv().dirty
    }

    #[cold]
    fn change_over(&self, recv: &mut RecvState) {
        let to_short = !recv.set.is_short();
        let RingSizes { at, buf_len, n_bufs } =
            self.resources.layout.ring_of(&self.config, to_short);
        let region = &self.resources.region;
        let (region, rkey) = (region.addr().wrapping_add(at as u64), region.rkey());
        if recv.half.replace_ring(RingConfig { region, rkey, buf_len, n_bufs }) {
            recv.set.change_over();
        }
    }
}
