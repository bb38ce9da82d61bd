//! The change between the large and the short buffers of a stream, and more large ones, where its
//! [`WorkingSet`] calls for it.

use crate::engine::QpStream;
use crate::engine::buffers::layout::{Layout, ring_of};
use crate::engine::config::Config;
use crate::engine::shared::RecvState;
use crate::engine::working_set::{Decision, N_SHORT, SHORT_BUF, SHORT_RING, WorkingSet};
use crate::page_reclaim;
use rsock_proto::{RingConfig, Span};
use rsock_verbs::{Backend, MemoryRegion};

impl Layout {
    /// Where a run of received bytes lies in the region.
    pub(in crate::engine) fn offset_of(&self, set: &WorkingSet, span: Span) -> usize {
        // The old ring is always the other one.
        let is_short = set.is_short() != span.is_old;
        span.offset + if is_short { self.short_ring() } else { self.large_ring() }
    }

    /// The short ring in `region`, or the large one, whose sizes `config` has.
    pub(in crate::engine) fn ring_in<B: Backend>(
        &self,
        region: &B::Mr,
        config: &Config,
        is_short: bool,
    ) -> RingConfig {
        let short = Config { buf_len: SHORT_BUF, n_bufs: N_SHORT, ..*config };
        match is_short {
            true => ring_of::<B>(region, self.short_ring(), &short),
            false => ring_of::<B>(region, self.large_ring(), config),
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
        match set.is_short() {
            true if is_old_free => SHORT_RING.max(dirty),
            false if !set.is_extended() => (SHORT_RING + self.usual_len()).max(dirty),
            _ => self.ring_len(),
        }
    }
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
        if recv.half.can_replace_ring() {
            match recv.set.decide(recv.half.readable()) {
                Decision::Stay => {}
                Decision::ChangeOver => self.change_over(recv),
                Decision::Extend => self.extend(recv),
            }
        }
    }

    /// Most bytes of receive memory that the peer has written to.
    #[cfg(test)]
    pub(crate) fn n_dirty(&self) -> usize {
        self.ring.lock_recv().dirty
    }

    /// Whether there are more large buffers than usual.
    #[cfg(test)]
    pub(crate) fn is_extended(&self) -> bool {
        self.ring.lock_recv().set.is_extended()
    }

    #[cold]
    fn change_over(&self, recv: &mut RecvState) {
        let (layout, to_short) = (&self.resources.layout, !recv.set.is_short());
        let ring = layout.ring_in::<B>(&self.resources.region, &self.config, to_short);
        if recv.half.replace_ring(ring) {
            recv.set.change_over();
        }
    }

    /// Adds buffers to the large ring, if it is the only one in use in this process.
    #[cold]
    fn extend(&self, recv: &mut RecvState) {
        let is_alone = page_reclaim::heavy() < 2 * self.resources.layout.usual_len();
        if is_alone && recv.half.extend_ring(self.config.most_bufs) {
            recv.set.extend();
        }
    }
}
