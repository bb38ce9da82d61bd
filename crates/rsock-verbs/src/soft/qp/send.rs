//! The sending half of a queue pair.
//!
//! A request is *submitted*: its payload is copied to the peer, and an entry is published in the
//! peer's lane. A request that cannot be submitted at once (no slot, or no receive at the peer) is
//! refused. Submitting needs the send lock; waking the peer happens outside of it.

use super::QpCore;
use super::lane::LaneProducer;
use super::shared::{DONE, ROOM_REQUESTED, Tx};
use super::submit::{Submitted, address};
use crate::error::PostError;
use crate::soft::layout::{Entry, MAX_SEND, MAX_WRITE};
use crate::soft::peer_copy;
use crate::soft::regions::Target;
use crate::sync::slot::INLINE;
use crate::types::{QpState, RKey, RemoteAddr};
use crate::wc::{Completion, WcOp, WcStatus};
use crate::wr::{SendFlags, SendOp, SendWr, Sge};
use std::ptr;
use std::sync::atomic::Ordering;

/// Outcome of the fast path.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FastPost {
    Posted,
    /// The request or the state is unusual: the general path handles it.
    Unusual,
    /// The payload is not mapped.
    Fault,
}

fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

impl QpCore {
    /// # Safety
    /// As [`crate::QueuePair::post_send`].
    pub(super) unsafe fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let Some(send_lane) = self.send_lane.get() else { return self.post_unconnected(wr) };
        let mut tx = self.shared.tx.0.lock();
        // SAFETY: the caller's promise is the same.
        let (posted, announced) = unsafe { self.post_any(&mut tx, send_lane, wr) };
        let bits = self.take_waiters(send_lane, announced);
        drop(tx);
        send_lane.wake(bits);
        posted
    }

    /// The fast path of most messages: a WRITE WITH IMMEDIATE of one piece, for which no completion
    /// is asked.
    ///
    /// # Safety
    /// The piece names readable memory, or memory that is not mapped.
    #[inline(always)]
    pub(super) unsafe fn post_fast(
        &self,
        (remote, rkey): (RemoteAddr, RKey),
        imm: u32,
        sge: Sge,
    ) -> FastPost {
        let Some(send_lane) = self.send_lane.get() else { return FastPost::Unusual };
        let mut tx = self.shared.tx.0.lock();
        // SAFETY: the caller's promise is the same.
        let posted = unsafe { self.submit_fast(&mut tx, send_lane, remote, rkey, imm, sge) };
        if posted == FastPost::Posted {
            let bits = send_lane.take_waiters();
            drop(tx);
            send_lane.wake(bits);
        }
        posted
    }

    /// # Safety
    /// As [`Self::post_fast`].
    #[inline(always)]
    unsafe fn submit_fast(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        remote: RemoteAddr,
        rkey: RKey,
        imm: u32,
        sge: Sge,
    ) -> FastPost {
        if self.shared.state() != QpState::Rts
            || !self.write_imm
            || sge.len == 0
            || tx.tail == tx.slot_end
            || tx.msgs == tx.posted
        {
            return FastPost::Unusual;
        }
        // PERF: not by `with_copy_guard`: the compiler keeps its closure apart, at the price of a
        // twentieth of a small send's instructions.
        let guard = &send_lane.lane.head().copier.guard;
        // The entry is published before the copy guard ends: an owner that sees no copy under way
        // and an empty lane takes the memory for unused.
        let may_write = guard.begin(&mut tx.copy_count, || self.light_fence());
        let written = match may_write {
            // SAFETY: the caller's promise is the same.
            true => unsafe { self.write_fast(tx, send_lane, remote, rkey, imm, sge) },
            false => FastPost::Unusual,
        };
        guard.end(&mut tx.copy_count);
        if written != FastPost::Posted {
            return written;
        }
        tx.tail = tx.tail.wrapping_add(1);
        tx.msgs = tx.msgs.wrapping_add(1);
        FastPost::Posted
    }

    /// Copies the piece and publishes its entry, inside the copy guard.
    ///
    /// # Safety
    /// As [`Self::post_fast`].
    #[inline(always)]
    unsafe fn write_fast(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        remote: RemoteAddr,
        rkey: RKey,
        imm: u32,
        sge: Sge,
    ) -> FastPost {
        let peer_segment = self.link.peer_segment();
        let src = ptr::with_exposed_provenance::<u8>(address(sge.addr));
        let len = sge.len as usize;
        let slot = send_lane.lane.slot(tx.tail);
        if !tx.region.is_current(peer_segment, rkey) {
            return FastPost::Unusual;
        }
        let Some(Target::Segment(at)) = tx.region.target(remote.0, sge.len.into()) else {
            return FastPost::Unusual;
        };
        if len <= INLINE {
            // SAFETY: the caller's promise; at most INLINE bytes.
            let Some(words) = (unsafe { peer_copy::try_load_small(src, len) }) else {
                return FastPost::Fault;
            };
            let entry = Entry::WriteImmInline { at, len: sge.len };
            slot.publish(tx.tail, imm, entry.encode(), &words);
            return FastPost::Posted;
        }
        let Some(to) = peer_segment.bytes(at, sge.len.into()) else {
            return FastPost::Unusual;
        };
        // PERF: the peer's CPU has the line. Where the two share no cache, it comes while the
        // payload is copied: netperf with 1 KiB has 31 Gbit/s on a Zen 4, and without this 29.
        peer_copy::prefetch_to_write(slot);
        let from = tx.copy_policy.stream_from(len, self.n_received());
        // SAFETY: readable by the caller's promise; `len` bytes of the peer's region.
        if !unsafe { peer_copy::to_peer(src, to.as_ptr(), len, from) } {
            return FastPost::Fault;
        }
        slot.publish_bare(tx.tail, imm, Entry::WriteImm { len: sge.len }.encode());
        FastPost::Posted
    }

    /// Under the send lock: the bits for [`LaneProducer::wake`] if an entry was published. A
    /// queue pair that has failed meanwhile has already rung and detached from the lane.
    #[inline(always)]
    fn take_waiters(&self, send_lane: &LaneProducer, announced: bool) -> u32 {
        if announced && self.shared.state() != QpState::Err { send_lane.take_waiters() } else { 0 }
    }

    /// A queue pair without a peer accepts requests only in the error state, and flushes them.
    #[cold]
    fn post_unconnected(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut tx = self.shared.tx.0.lock();
        if self.shared.state() != QpState::Err {
            return Err(PostError::State);
        }
        self.check(wr, total(wr.sges))?;
        self.flush_one(&mut tx, wr)
    }

    /// Accepts a request in the error state and flushes it.
    #[cold]
    fn flush_one(&self, tx: &mut Tx, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.is_full(tx) {
            return Err(PostError::QueueFull);
        }
        self.complete(tx, wr, WcStatus::WR_FLUSH);
        Ok(())
    }

    /// Checks that a request could ever be executed.
    fn check(&self, wr: &SendWr<'_>, len: u64) -> Result<(), PostError> {
        let ok = len <= MAX_WRITE.into()
            && wr.sges.len() <= self.max_send_sge as usize
            && match wr.op {
                SendOp::Send => len <= MAX_SEND.into(),
                SendOp::Write { .. } => true,
                SendOp::WriteImm { .. } => self.write_imm,
            };
        if ok { Ok(()) } else { Err(PostError::Invalid) }
    }

    /// Whether there is no room for one more outcome.
    fn is_full(&self, tx: &Tx) -> bool {
        tx.done_tail.wrapping_sub(tx.done_head) >= self.done_sends.capacity()
    }

    /// Posts any request, in any state. Also returns whether an entry was published.
    ///
    /// # Safety
    /// As [`crate::QueuePair::post_send`].
    unsafe fn post_any(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        wr: &SendWr<'_>,
    ) -> (Result<(), PostError>, bool) {
        let len = total(wr.sges);
        if let Err(e) = self.check(wr, len) {
            return (Err(e), false);
        }
        match self.shared.state() {
            QpState::Rts => {}
            QpState::Err => return (self.flush_one(tx, wr), false),
            QpState::Reset | QpState::Init | QpState::Rtr => {
                return (Err(PostError::State), false);
            }
        }
        let signaled = wr.flags.contains(SendFlags::SIGNALED);
        if signaled && self.is_full(tx) {
            return (Err(PostError::QueueFull), false);
        }
        // SAFETY: the caller's promise is the same.
        let submitted = unsafe { self.submit(tx, send_lane, &wr.op, wr.sges, len) };
        match submitted {
            Submitted::Silent | Submitted::Announced => {
                if signaled {
                    self.complete(tx, wr, WcStatus::SUCCESS);
                }
                (Ok(()), submitted == Submitted::Announced)
            }
            Submitted::Failed(status) => (self.fail_now(tx, wr, status), false),
            Submitted::Fault => (Err(PostError::Fault), false),
            Submitted::NoRoom => (Err(PostError::QueueFull), false),
        }
    }

    /// Stores the outcome of a request, for which there is room.
    fn complete(&self, tx: &mut Tx, wr: &SendWr<'_>, status: WcStatus) {
        let op = if wr.op == SendOp::Send { WcOp::Send } else { WcOp::Write };
        self.done_sends.put(tx.done_tail, wr.id, op, status);
        tx.done_tail = tx.done_tail.wrapping_add(1);
        let events = self.shared.events.load(Ordering::Relaxed);
        self.shared.events.store(events | DONE, Ordering::Relaxed);
        self.waiters.notify();
    }

    /// Fails the queue pair because of this request.
    #[cold]
    fn fail_now(&self, tx: &mut Tx, wr: &SendWr<'_>, status: WcStatus) -> Result<(), PostError> {
        if self.is_full(tx) {
            // No room to report it: the request fails when it is posted again.
            return Err(PostError::QueueFull);
        }
        self.complete(tx, wr, status);
        self.enter_error(tx);
        Ok(())
    }

    /// Takes send completions, and notes that requested room was made.
    #[cold]
    pub(in crate::soft) fn poll_sends(&self, out: &mut [Completion]) -> usize {
        let mut tx = self.shared.tx.0.lock();
        let events = self.shared.events.load(Ordering::Relaxed);
        if let Some(send_lane) = self.send_lane.get()
            && self.shared.state() == QpState::Rts
            && events & ROOM_REQUESTED != 0
            && !send_lane.lane.head().producer.room_request.is_open()
        {
            self.shared.events.store(events & !ROOM_REQUESTED, Ordering::Relaxed);
        }
        let mut n = 0;
        while n < out.len() && tx.done_head != tx.done_tail {
            let (id, op, status) = self.done_sends.get(tx.done_head);
            tx.done_head = tx.done_head.wrapping_add(1);
            out[n] = Completion { id, status, op, len: 0, imm: 0, qp_num: self.number };
            n += 1;
        }
        if tx.done_head == tx.done_tail {
            let events = self.shared.events.load(Ordering::Relaxed);
            self.shared.events.store(events & !DONE, Ordering::Relaxed);
        }
        n
    }
}
