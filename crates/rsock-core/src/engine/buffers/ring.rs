//! The receive memory of a stream and the state that says which part of it is in use.
//!
//! It is held apart from the queue pair, so that other streams of the process can release the pages
//! of an idle ring.

use crate::engine::buffers::layout::Layout;
use crate::engine::buffers::release::release_pages;
use crate::engine::shared::{RecvState, SendState, Shared};
use crate::interrupt::Section;
use crate::page_reclaim::{Reclaimable, RingUsage};
use rsock_verbs::family::{FamilyBox, Guard};
use rsock_verbs::{Backend, CompletionQueue, MemoryRegion};
use std::sync::Arc;

/// Memory and state of a stream.
#[derive(Debug)]
pub(in crate::engine) struct Ring<B: Backend> {
    pub(in crate::engine) shared: FamilyBox<Shared>,
    pub(in crate::engine) region: Arc<B::Mr>,
    pub(in crate::engine) cq: Arc<B::Cq>,
    pub(in crate::engine) layout: Layout,
    pub(in crate::engine) usage: RingUsage,
}

impl<B: Backend> Ring<B> {
    /// The `send` lock. If its last holder died while it held the lock, the stream is broken.
    #[inline]
    pub(in crate::engine) fn lock_send(&self) -> Guard<'_, SendState> {
        let guard = self.shared.send.0.lock();
        if guard.is_recovered() {
            self.shared.mail.fail(libc::ECONNRESET);
        }
        guard
    }

    /// The `recv` lock. If its last holder died while it held the lock, the stream is broken.
    #[inline]
    pub(in crate::engine) fn lock_recv(&self) -> Guard<'_, RecvState> {
        let guard = self.shared.recv.0.lock();
        if guard.is_recovered() {
            self.shared.mail.fail(libc::ECONNRESET);
        }
        guard
    }
}

impl<B: Backend> Reclaimable for Ring<B> {
    fn reclaim(&self) -> usize {
        let _section = Section::enter();
        if self.layout.has_words() {
            // Between a write and its word the peer seems to be quiet, and the ring holds bytes.
            return 0;
        }
        let Some(mut recv) = self.shared.recv.0.try_lock() else { return 0 };
        let mut freed = 0;
        // Every byte in the ring was read by then, in announced buffers too. The peer may write
        // again right after.
        release_pages(
            recv.half.readable() != 0,
            || self.cq.is_ready(),
            |punch| _ = self.cq.exclusively(punch),
            || {
                self.region.punch(self.layout.ring, self.layout.ring_len());
                self.cq.punch();
                recv.dirty = 0;
                freed = self.usage.clear();
            },
        );
        freed
    }

    fn usage(&self) -> &RingUsage {
        &self.usage
    }
}
