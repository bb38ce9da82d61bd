//! The verbs objects of a stream, and the posting of messages to them.

use crate::engine::buffers::layout::Layout;
use crate::engine::config::Wire;
use rsock_verbs::{
    Backend, MemoryRegion, PostError, QueuePair, RKey, RecvWr, RemoteAddr, SendFlags, SendOp, Sge,
    WrId,
};
use std::io::IoSlice;
use std::sync::Arc;

/// Work request id of a control message whose completion is counted.
pub(super) const CONTROL: WrId = WrId(1);
/// Work request id of everything else.
pub(super) const PLAIN: WrId = WrId(0);

/// The verbs objects of a stream. They are declared in the order in which they must be dropped.
#[derive(Debug)]
pub(super) struct Resources<B: Backend> {
    /// First: nothing may arrive once the region is freed.
    pub(super) qp: B::Qp,
    pub(super) cq: Arc<B::Cq>,
    /// The receive rings, and on devices that pin memory the table, too.
    pub(super) region: Arc<B::Mr>,
    /// The target table and the message words.
    pub(super) table: Arc<B::Mr>,
    pub(super) layout: Layout,
    pub(super) wire: Wire,
    /// Keeps the protection domain, and with it the peer's mapping.
    pub(super) pd: Arc<B::Pd>,
    pub(super) path: B::Path,
}

impl<B: Backend> Resources<B> {
    /// Posts the first `depth` receives of a queue; false if it does not take all.
    pub(super) fn post_first_receives(&self, depth: u32) -> bool {
        match self.wire {
            Wire::WriteImm => self.post_empty_receives(depth) == depth,
            Wire::MsgSend => (0..depth).all(|i| self.post_word_receive(i).is_ok()),
        }
    }

    /// Posts `n` receives, which are all alike where the word of a message is its immediate.
    /// Returns how many the queue has taken.
    #[inline]
    pub(super) fn post_empty_receives(&self, n: u32) -> u32 {
        self.qp.post_recvs_empty(WrId(0), n)
    }

    /// Posts receive `i`, with room for the word of a message that has no immediate.
    pub(super) fn post_word_receive(&self, i: u32) -> Result<(), PostError> {
        let at = (self.layout.words + 4 * i as usize) as u64;
        let addr = self.table.addr().wrapping_add(at).0;
        let word = Sge { addr, len: 4, lkey: self.table.lkey() };
        let wr = RecvWr { id: WrId(i.into()), sges: &[word] };
        // SAFETY: the word lies in `self.table`, which is declared after `self.qp` and so dropped
        // later: it stays registered as long as the receive can complete.
        unsafe { self.qp.post_recv(&wr) }
    }

    /// Posts one message: `payload` to `remote`, then `word` as its notification.
    #[inline]
    pub(super) fn post_message(
        &self,
        remote: Option<(RemoteAddr, RKey)>,
        payload: &[IoSlice<'_>],
        word: rsock_proto::Imm,
    ) -> Result<(), PostError> {
        self.post_flagged(PLAIN, remote, payload, word, SendFlags::empty())
    }

    /// As [`Self::post_message`], with `flags`; the work request has id `id`.
    #[inline]
    pub(super) fn post_flagged(
        &self,
        id: WrId,
        remote: Option<(RemoteAddr, RKey)>,
        payload: &[IoSlice<'_>],
        word: rsock_proto::Imm,
        flags: SendFlags,
    ) -> Result<(), PostError> {
        let (addr, rkey) = remote.unwrap_or_default();
        match self.wire {
            Wire::WriteImm => {
                let op = SendOp::WriteImm { remote: addr, rkey, imm: word.0 };
                self.qp.post_copy(id, op, payload, flags)
            }
            Wire::MsgSend => {
                // WIRE: the word travels in host order where there is no immediate. If the queue
                // is full in between, the whole message is posted again: the same bytes to the
                // same place.
                if !payload.is_empty() {
                    let op = SendOp::Write { remote: addr, rkey };
                    self.qp.post_copy(PLAIN, op, payload, SendFlags::empty())?;
                }
                let word = word.0.to_ne_bytes();
                self.qp.post_copy(id, SendOp::Send, &[IoSlice::new(&word)], flags)
            }
        }
    }
}
