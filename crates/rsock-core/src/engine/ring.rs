//! The receive memory of a stream and the state that says what of it is in use, held apart from the
//! queue pair so that other streams of the process can have an idle ring give its pages back.

use crate::engine::layout::Layout;
use crate::engine::page_reclaim::{Trim, Usage};
use crate::engine::shared::{RecvSide, SendSide, Shared};
use crate::engine::trim::trim;
use crate::interrupt::Section;
use rsock_verbs::family::{FamilyBox, Guard};
use rsock_verbs::{Backend, CompletionQueue, MemoryRegion};
use std::sync::Arc;

/// Memory and state of a stream.
#[derive(Debug)]
pub(super) struct Ring<B: Backend> {
    pub(super) shared: FamilyBox<Shared>,
    pub(super) region: Arc<B::Mr>,
    pub(super) cq: Arc<B::Cq>,
    pub(super) layout: Layout,
    pub(super) usage: Usage,
}

impl<B: Backend> Ring<B> {
    /// The `send` lock. If its last holder died inside, the stream is broken.
    #[inline]
    pub(super) fn lock_send(&self) -> Guard<'_, SendSide> {
        let guard = self.shared.send.0.lock();
        if guard.is_recovered() {
            self.shared.mail.fail(libc::ECONNRESET);
        }
        guard
    }

    /// The `recv` lock. If its last holder died inside, the stream is broken.
    #[inline]
    pub(super) fn lock_recv(&self) -> Guard<'_, RecvSide> {
        let guard = self.shared.recv.0.lock();
        if guard.is_recovered() {
            self.shared.mail.fail(libc::ECONNRESET);
        }
        guard
    }
}

impl<B: Backend> Trim for Ring<B> {
    fn trim(&self) -> usize {
        let _section = Section::enter();
        let Some(mut recv) = self.shared.recv.0.try_lock() else { return 0 };
        let mut freed = 0;
        // What the ring holds is old then, announced buffers included. The peer may write again right after.
        trim(
            recv.half.readable() != 0,
            || self.cq.is_ready(),
            |punch| _ = self.region.exclusively(punch),
            || {
                self.region.punch(self.layout.ring, self.layout.ring_len());
                recv.dirty = 0;
                freed = self.usage.clear();
            },
        );
        freed
    }

    fn usage(&self) -> &Usage {
        &self.usage
    }
}
