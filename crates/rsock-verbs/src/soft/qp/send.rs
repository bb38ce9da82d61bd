//! The sending half of a queue pair.
//!
//! A request is *submitted*: its payload is copied to the peer, and an entry is published in the
//! peer's lane. A request that cannot be submitted at once (no slot, no receive, or older requests
//! wait) is refused if it is INLINE and queued if not. Submitting needs the send lock; waking the
//! peer happens outside of it.

use super::QpCore;
use super::lane::LaneProducer;
use super::shared::{DONE, PENDING, ROOM_REQUESTED, Tx};
use super::submit::{Submitted, address};
use crate::error::PostError;
use crate::soft::copy;
use crate::soft::layout::{Entry, STAGE};
use crate::soft::queue::Sges;
use crate::soft::regions::Target;
use crate::sync::slot::INLINE;
use crate::types::{Access, QpState, RKey, RemoteAddr};
use crate::wc::{Completion, WcOp, WcStatus};
use crate::wr::{SendFlags, SendOp, SendWr, Sge};
use std::ptr;
use std::sync::atomic::Ordering;

/// Duration of one retry of a request that found no receive at the peer, in nanoseconds.
const RNR_TIMER: u64 = 1_000_000;
/// Longest payload of one request.
const MAX_MSG: u64 = 1 << 30;

/// Outcome of the fast path.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FastPost {
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
    #[inline]
    pub(super) unsafe fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let Some(send_lane) = self.send_lane.get() else { return self.post_unconnected(wr) };
        let mut tx = self.shared.tx.0.lock();
        // The common case: no request is queued, and no completion was asked for.
        if !self.signal_all
            && wr.flags.contains(SendFlags::INLINE)
            && !wr.flags.contains(SendFlags::SIGNALED)
            && let SendOp::WriteImm { remote, rkey, imm } = wr.op
            && let [sge] = wr.sges
        {
            // SAFETY: the caller's promise is the same.
            match unsafe { self.post_fast(&mut tx, send_lane, remote, rkey, imm, sge) } {
                FastPost::Posted => {
                    let bits = send_lane.take_waiters();
                    drop(tx);
                    send_lane.wake(bits);
                    return Ok(());
                }
                FastPost::Unusual => {}
                FastPost::Fault => return Err(PostError::Fault),
            }
        }
        // SAFETY: the caller's promise is the same.
        let (posted, announced) = unsafe { self.post_any(&mut tx, send_lane, wr) };
        let bits = self.take_waiters(send_lane, announced);
        drop(tx);
        send_lane.wake(bits);
        posted
    }

    /// The fast path: a WRITE WITH IMMEDIATE of one piece.
    ///
    /// # Safety
    /// The piece names readable memory, or memory that is not mapped.
    #[inline(always)]
    unsafe fn post_fast(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        remote: RemoteAddr,
        rkey: RKey,
        imm: u32,
        sge: &Sge,
    ) -> FastPost {
        if self.shared.state() != QpState::Rts
            || !self.write_imm
            || sge.len == 0
            || tx.sq_mid != tx.sq_tail
            || tx.tail == tx.slot_end
            || tx.msgs == tx.posted
        {
            return FastPost::Unusual;
        }
        let peer_segment = self.link.peer_segment();
        let src = ptr::with_exposed_provenance::<u8>(address(sge.addr));
        let len = sge.len as usize;
        let slot = send_lane.lane.slot(tx.tail);
        if len <= INLINE {
            if !tx.region.is_current(peer_segment, rkey) {
                return FastPost::Unusual;
            }
            let Some(Target::Segment(at)) = tx.region.target(remote.0, sge.len.into()) else {
                return FastPost::Unusual;
            };
            // SAFETY: the caller's promise; at most INLINE bytes.
            let Some(words) = (unsafe { copy::try_load_small(src, len) }) else {
                return FastPost::Fault;
            };
            let entry = Entry::WriteImmInline { at, len: sge.len };
            slot.publish(tx.tail, imm, entry.encode(), &words);
        } else {
            let written = self.with_copy_guard(tx, send_lane, |tx| {
                if !tx.region.is_current(peer_segment, rkey) {
                    return FastPost::Unusual;
                }
                let target = tx.region.target(remote.0, sge.len.into());
                let Some(Target::Segment(at)) = target else { return FastPost::Unusual };
                let Some(to) = peer_segment.bytes(at, sge.len.into()) else {
                    return FastPost::Unusual;
                };
                let answered = self.is_answered(tx);
                let from = tx.copy_policy.stream_from(len, answered);
                // SAFETY: readable by the caller's promise; `len` bytes of the peer's region.
                if !unsafe { copy::to_peer(src, to.as_ptr(), len, from) } {
                    return FastPost::Fault;
                }
                // The entry is published before the copy guard ends: an owner that sees no copy
                // under way and an empty lane may take the memory for unused.
                slot.publish_bare(tx.tail, imm, Entry::WriteImm { len: sge.len }.encode());
                FastPost::Posted
            });
            if written != FastPost::Posted {
                return written;
            }
        }
        tx.tail = tx.tail.wrapping_add(1);
        tx.msgs = tx.msgs.wrapping_add(1);
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
        if self.sq_is_full(tx) {
            return Err(PostError::QueueFull);
        }
        self.push(tx, wr, true, &[]);
        self.finish_first(tx, WcStatus::WR_FLUSH);
        Ok(())
    }

    /// Checks that a request could ever be executed.
    fn check(&self, wr: &SendWr<'_>, len: u64) -> Result<(), PostError> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        let ok = len <= MAX_MSG
            && wr.sges.len() <= self.sq.max_sge() as usize
            && (inline || self.are_local(wr.sges))
            && match wr.op {
                SendOp::Send => !inline || len <= STAGE.into(),
                SendOp::Write { .. } => true,
                SendOp::WriteImm { .. } => self.write_imm,
            };
        if ok { Ok(()) } else { Err(PostError::Invalid) }
    }

    /// Whether all pieces lie in regions of the domain.
    fn are_local(&self, sges: &[Sge]) -> bool {
        let regions = self.link.regions();
        sges.iter().all(|sge| {
            sge.len == 0 || regions.covers(sge.lkey, sge.addr, sge.len.into(), Access::empty())
        })
    }

    fn sq_is_full(&self, tx: &Tx) -> bool {
        tx.sq_tail.wrapping_sub(tx.sq_head) >= self.sq.capacity()
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
        let inline = wr.flags.contains(SendFlags::INLINE);
        let signaled = self.signal_all || wr.flags.contains(SendFlags::SIGNALED);
        if (signaled || !inline) && self.sq_is_full(tx) {
            return (Err(PostError::QueueFull), false);
        }
        let mut announced = false;
        if tx.sq_mid != tx.sq_tail {
            announced = self.advance(tx, send_lane);
        }
        let mut sent = 0;
        let submitted = if tx.sq_mid == tx.sq_tail {
            // SAFETY: the caller's promise is the same.
            unsafe { self.submit(tx, send_lane, &wr.op, wr.sges, len, inline, &mut sent) }
        } else {
            Submitted::NoRoom
        };
        announced |= matches!(submitted, Submitted::Announced | Submitted::Partly);
        match submitted {
            Submitted::Silent | Submitted::Announced => {
                if signaled {
                    self.push(tx, wr, true, &[]);
                    self.finish_first(tx, WcStatus::SUCCESS);
                }
                (Ok(()), announced)
            }
            Submitted::NoReceive if self.rnr_retry() == 0 => {
                (self.fail_now(tx, wr, WcStatus::RNR_RETRY_EXC), announced)
            }
            Submitted::Failed(status) => (self.fail_now(tx, wr, status), announced),
            Submitted::Fault => (Err(PostError::Fault), announced),
            Submitted::NoRoom | Submitted::NoReceive if inline => {
                (Err(PostError::QueueFull), announced)
            }
            Submitted::NoRoom | Submitted::NoReceive | Submitted::Partly => {
                if tx.sq_mid == tx.sq_tail {
                    tx.sent = sent;
                    tx.rnr_deadline = 0;
                }
                self.push(tx, wr, signaled, wr.sges);
                let events = self.shared.events.load(Ordering::Relaxed);
                self.shared.events.store(events | PENDING, Ordering::Relaxed);
                (Ok(()), announced)
            }
        }
    }

    /// Appends a request to the send queue.
    #[inline]
    fn push(&self, tx: &mut Tx, wr: &SendWr<'_>, signaled: bool, sges: &[Sge]) {
        self.sq.put(tx.sq_tail, wr.id, wr.op, signaled, sges);
        tx.sq_tail = tx.sq_tail.wrapping_add(1);
    }

    /// Stores the outcome of the oldest request that has none.
    fn finish_first(&self, tx: &mut Tx, status: WcStatus) {
        self.sq.finish(tx.sq_mid, status);
        tx.sq_mid = tx.sq_mid.wrapping_add(1);
        let events = self.shared.events.load(Ordering::Relaxed);
        self.shared.events.store(events | DONE, Ordering::Relaxed);
        self.waiters.notify();
    }

    /// Fails the queue pair because of this request.
    #[cold]
    fn fail_now(&self, tx: &mut Tx, wr: &SendWr<'_>, status: WcStatus) -> Result<(), PostError> {
        if self.sq_is_full(tx) {
            // No room to report it: the request fails when it is posted again.
            return Err(PostError::QueueFull);
        }
        self.push(tx, wr, true, &[]);
        self.enter_error(tx, status, WcStatus::WR_FLUSH);
        Ok(())
    }

    fn rnr_retry(&self) -> u32 {
        self.shared.rnr_retry.load(Ordering::Relaxed)
    }

    /// Submits queued requests, in order, as far as possible. Returns whether an entry was
    /// published.
    #[cold]
    fn advance(&self, tx: &mut Tx, send_lane: &LaneProducer) -> bool {
        let mut announced = false;
        while tx.sq_mid != tx.sq_tail {
            let queued = self.sq.get(tx.sq_mid);
            let sges: Sges = self.sq.sges(tx.sq_mid, &queued);
            let sges = sges.as_slice();
            let mut sent = tx.sent;
            // SAFETY: the caller that posted it without INLINE keeps the memory valid until the
            // completion is polled, which has not been returned yet.
            let submitted = unsafe {
                self.submit(tx, send_lane, &queued.op, sges, total(sges), false, &mut sent)
            };
            announced |= matches!(submitted, Submitted::Announced | Submitted::Partly);
            match submitted {
                Submitted::Silent | Submitted::Announced => {
                    (tx.sent, tx.rnr_deadline) = (0, 0);
                    self.finish_first(tx, WcStatus::SUCCESS);
                }
                Submitted::Partly | Submitted::NoRoom => {
                    (tx.sent, tx.rnr_deadline) = (sent, 0);
                    return announced;
                }
                Submitted::NoReceive => {
                    if self.is_rnr_over(tx) {
                        self.enter_error(tx, WcStatus::RNR_RETRY_EXC, WcStatus::WR_FLUSH);
                    }
                    return announced;
                }
                Submitted::Failed(status) => {
                    self.enter_error(tx, status, WcStatus::WR_FLUSH);
                    return announced;
                }
                Submitted::Fault => {
                    self.enter_error(tx, WcStatus::LOC_PROT, WcStatus::WR_FLUSH);
                    return announced;
                }
            }
        }
        let events = self.shared.events.load(Ordering::Relaxed);
        self.shared.events.store(events & !PENDING, Ordering::Relaxed);
        announced
    }

    /// Whether the first queued request has waited for a receive as long as its retries allow.
    fn is_rnr_over(&self, tx: &mut Tx) -> bool {
        let retries = u64::from(self.rnr_retry());
        if retries >= 7 {
            return false;
        }
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let now = now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned();
        if tx.rnr_deadline == 0 {
            tx.rnr_deadline = now + retries * RNR_TIMER;
        }
        now >= tx.rnr_deadline
    }

    /// Takes send completions, and submits queued requests.
    #[cold]
    pub(in crate::soft) fn poll_sends(&self, out: &mut [Completion]) -> usize {
        let mut tx = self.shared.tx.0.lock();
        let mut announced = false;
        if let Some(send_lane) = self.send_lane.get()
            && self.shared.state() == QpState::Rts
        {
            let events = self.shared.events.load(Ordering::Relaxed);
            if events & ROOM_REQUESTED != 0
                && !send_lane.lane.head().producer.room_request.is_open()
            {
                self.shared.events.store(events & !ROOM_REQUESTED, Ordering::Relaxed);
            }
            if tx.sq_mid != tx.sq_tail {
                announced = self.advance(&mut tx, send_lane);
            }
        }
        let mut n = 0;
        while n < out.len() && tx.sq_head != tx.sq_mid {
            let queued = self.sq.get(tx.sq_head);
            tx.sq_head = tx.sq_head.wrapping_add(1);
            if queued.signaled {
                let op = if queued.op == SendOp::Send { WcOp::Send } else { WcOp::Write };
                let (id, status, qp_num) = (queued.id, queued.status, self.number);
                out[n] = Completion { id, status, op, len: 0, imm: 0, qp_num };
                n += 1;
            }
        }
        if tx.sq_head == tx.sq_mid {
            let events = self.shared.events.load(Ordering::Relaxed);
            self.shared.events.store(events & !DONE, Ordering::Relaxed);
        }
        let Some(send_lane) = self.send_lane.get() else { return n };
        let bits = self.take_waiters(send_lane, announced);
        drop(tx);
        send_lane.wake(bits);
        n
    }
}
