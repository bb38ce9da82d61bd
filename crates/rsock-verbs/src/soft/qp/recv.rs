//! The receiving half of a queue pair.
//!
//! A poller takes entries from the lane in order, each with the oldest posted receive. Every entry
//! is checked on a private copy; an entry that no honest peer writes puts the queue pair into the
//! error state.

use super::QpCore;
use super::shared::Rx;
use crate::error::PostError;
use crate::soft::copy;
use crate::soft::layout::Entry;
use crate::sync::slot::INLINE;
use crate::types::{Access, QpState};
use crate::wc::{Completion, WcOp, WcStatus};
use crate::wr::RecvWr;
use std::ptr;
use std::sync::atomic::Ordering;

/// Why no further entry is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// The entry was taken and completes no receive yet.
    Incomplete,
    /// The entry was taken, and its completion reports that it did not fit: no entry after it is
    /// taken.
    Overrun,
    /// The peer broke the contract.
    Violation,
}

impl QpCore {
    /// Posts a receive.
    #[inline]
    pub(super) fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        if wr.sges.len() > self.rq.max_sge() as usize {
            return Err(PostError::Invalid);
        }
        let rx = &self.shared.rx;
        let posted = rx.posted.load(Ordering::Relaxed);
        if posted.wrapping_sub(rx.taken.load(Ordering::Relaxed)) >= self.max_recv_wr {
            return Err(PostError::QueueFull);
        }
        let state = self.shared.state();
        if state == QpState::Reset {
            return Err(PostError::State);
        }
        if self.rq.max_sge() != 0 {
            self.check_recv(wr)?;
            if let Some(cap) = self.recv_lane.cap(posted) {
                let bytes = wr.sges.iter().fold(0u32, |sum, sge| sum.saturating_add(sge.len));
                cap.store(bytes, Ordering::Relaxed);
            }
        }
        self.rq.put(posted, wr.id, wr.sges);
        let posted = posted.wrapping_add(1);
        rx.posted.store(posted, Ordering::Release);
        // SYNC(posted): the receive is in place. Pairs with the Acquire in `submit::read_progress`.
        self.recv_lane.head().consumer.posted.store(posted, Ordering::Release);
        if state == QpState::Err {
            // It is flushed at once, so waiters of the queue are woken.
            self.waiters.notify();
        } else {
            self.announce_room();
        }
        Ok(())
    }

    fn check_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let regions = self.link.regions();
        let ok = wr.sges.iter().all(|sge| {
            sge.len == 0 || regions.covers(sge.lkey, sge.addr, sge.len.into(), Access::LOCAL_WRITE)
        });
        if ok { Ok(()) } else { Err(PostError::Invalid) }
    }

    /// Rings a sender that has requested room, now that there is some.
    #[inline(always)]
    pub(in crate::soft) fn announce_room(&self) {
        if self.recv_lane.head().producer.room_request.grant(|| self.light_fence()) {
            self.ring_for_room();
        }
    }

    /// Takes no send lock, because a long copy may hold it.
    #[cold]
    fn ring_for_room(&self) {
        let Some(send_lane) = self.send_lane.get() else { return };
        self.shared.lane_users.enter();
        if self.shared.state() != QpState::Err {
            send_lane.ring();
        }
        if self.shared.lane_users.leave() {
            send_lane.detach();
        }
    }

    /// Takes arrived messages. One caller at a time: the caller of `post_recv` has promised that
    /// for receives with memory. For receives without memory, a second caller costs completions but
    /// never safety.
    #[inline]
    pub(in crate::soft) fn poll_recvs(&self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let live = matches!(self.shared.state(), QpState::Rtr | QpState::Rts);
        let rx = &self.shared.rx;
        let first = rx.head.load(Ordering::Relaxed);
        let mut head = first;
        let mut n = 0;
        if live {
            let mut stop = None;
            while n < out.len() && self.recv_lane.slot(head).is_published(head) {
                match self.take_entry(head, &mut out[n]) {
                    Ok(()) => n += 1,
                    Err(Stop::Incomplete) => {}
                    Err(why) => {
                        stop = Some(why);
                        if why == Stop::Overrun {
                            n += 1;
                            head = head.wrapping_add(1);
                        }
                        break;
                    }
                }
                head = head.wrapping_add(1);
            }
            if head != first {
                self.publish_head(head);
                self.announce_room();
            }
            if stop == Some(Stop::Violation) {
                self.violated(head);
            } else if stop == Some(Stop::Overrun) {
                // Later entries are flushed.
            } else if n != 0 || self.recv_lane.head().producer.closed.load(Ordering::Acquire) == 0 {
                return n;
            } else if head == first && !self.recv_lane.slot(head).is_published(head) {
                self.peer_closed();
            }
        }
        n + self.poll_after_error(&mut out[n..])
    }

    /// Takes messages that arrived before the error, then flushes receives.
    #[cold]
    fn poll_after_error(&self, out: &mut [Completion]) -> usize {
        if self.shared.state() != QpState::Err {
            return 0;
        }
        let rx = &self.shared.rx;
        let first = rx.head.load(Ordering::Relaxed);
        let mut head = first;
        let mut n = 0;
        while n < out.len()
            && self.left_to_drain(head) != 0
            && self.recv_lane.slot(head).is_published(head)
        {
            match self.take_entry(head, &mut out[n]) {
                Ok(()) | Err(Stop::Overrun) => n += 1,
                Err(Stop::Incomplete) => {}
                Err(Stop::Violation) => {
                    rx.drain_until.store(head, Ordering::Relaxed);
                    break;
                }
            }
            head = head.wrapping_add(1);
        }
        if head != first {
            self.publish_head(head);
        }
        if self.left_to_drain(head) != 0 {
            return n;
        }
        let posted = rx.posted.load(Ordering::Acquire);
        let mut taken = rx.taken.load(Ordering::Relaxed);
        while n < out.len() && taken != posted {
            out[n] = self.failed(self.rq.id(taken), WcStatus::WR_FLUSH);
            taken = taken.wrapping_add(1);
            n += 1;
        }
        rx.taken.store(taken, Ordering::Relaxed);
        n
    }

    /// How many entries from `head` on are still received after the error. 0 if another thread
    /// found the error while a poll took entries that lie after it.
    pub(super) fn left_to_drain(&self, head: u32) -> u32 {
        let left = self.shared.rx.drain_until.load(Ordering::Relaxed).wrapping_sub(head);
        if left > self.recv_lane.n_slots() { 0 } else { left }
    }

    fn failed(&self, id: crate::WrId, status: WcStatus) -> Completion {
        Completion { id, status, op: WcOp::Recv, len: 0, imm: 0, qp_num: self.number }
    }

    #[inline(always)]
    fn publish_head(&self, head: u32) {
        self.shared.rx.head.store(head, Ordering::Relaxed);
        // SYNC(slot-free): this process's reads of the slots below come before. Pairs with the
        // Acquire in `submit::read_progress`.
        self.recv_lane.head().consumer.head.store(head, Ordering::Release);
    }

    /// The peer broke the device's contract.
    #[cold]
    fn violated(&self, head: u32) {
        self.fail(WcStatus::GENERAL, WcStatus::GENERAL);
        // No entry after it is received any more.
        self.shared.rx.drain_until.store(head, Ordering::Relaxed);
    }

    /// Takes entry `head`, which is published.
    #[inline(always)]
    fn take_entry(&self, head: u32, out: &mut Completion) -> Result<(), Stop> {
        let slot = self.recv_lane.slot(head);
        let (imm, word) = slot.read();
        let entry = Entry::decode(word).ok_or(Stop::Violation)?;
        let rx = &self.shared.rx;
        let taken = rx.taken.load(Ordering::Relaxed);
        if taken == rx.posted.load(Ordering::Acquire) {
            return Err(Stop::Violation);
        }
        if let Entry::WriteImmInline { .. } | Entry::WriteImm { .. } = entry {
            let len = self.arrive(slot, entry)?;
            rx.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
            let (id, qp_num) = (self.rq.id(taken), self.number);
            let (status, op) = (WcStatus::SUCCESS, WcOp::RecvWriteImm);
            *out = Completion { id, status, op, len, imm, qp_num };
            return Ok(());
        }
        self.take_send(head, entry, imm, out)
    }

    /// Stores a WRITE's payload at its target if the slot carries it; returns its length.
    #[inline(always)]
    fn arrive(&self, slot: &crate::sync::slot::Slot, entry: Entry) -> Result<u32, Stop> {
        match entry {
            Entry::WriteImmInline { at, len } => {
                // Any target in the segment is allowed: the peer could write there by itself.
                let to = self.link.own_segment().bytes(at, len.into()).ok_or(Stop::Violation)?;
                let words = slot.payload();
                // SAFETY: `len` bytes inside this process's segment, which only raw copies and
                // atomics access.
                unsafe { copy::store_small(&words, to.as_ptr(), len as usize) };
                Ok(len)
            }
            Entry::WriteImm { len } => Ok(len),
            _ => Err(Stop::Violation),
        }
    }

    /// Takes a SEND, for which a receive is posted.
    #[cold]
    fn take_send(
        &self,
        head: u32,
        entry: Entry,
        imm: u32,
        out: &mut Completion,
    ) -> Result<(), Stop> {
        let rx = &self.shared.rx;
        let slot = self.recv_lane.slot(head);
        let taken = rx.taken.load(Ordering::Relaxed);
        let before = rx.scattered.load(Ordering::Relaxed);
        let (len, overrun, done) = match entry {
            Entry::WriteImmInline { .. } | Entry::WriteImm { .. } => return Err(Stop::Violation),
            Entry::SendInline { len } => {
                let words = slot.payload();
                let mut bytes = [0u8; INLINE];
                // SAFETY: INLINE bytes, and `len` is at most that.
                unsafe { copy::store_small(&words, bytes.as_mut_ptr(), len as usize) };
                let fits = self.scatter(taken, 0, &bytes[..len as usize]);
                (len, !fits || before != 0, true)
            }
            Entry::SendStaged { len, last } => {
                let fits = self.scatter_staged(rx, taken, before, len);
                let sum = before.saturating_add(len);
                rx.scattered.store(sum, Ordering::Relaxed);
                (sum, !fits, last)
            }
            Entry::SendTooLong => (0, true, true),
        };
        if !overrun && !done {
            return Err(Stop::Incomplete);
        }
        rx.scattered.store(0, Ordering::Relaxed);
        rx.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
        let (id, qp_num) = (self.rq.id(taken), self.number);
        *out = Completion { id, status: WcStatus::SUCCESS, op: WcOp::Recv, len, imm, qp_num };
        if overrun {
            out.status = WcStatus::LOC_LEN;
            self.fail(WcStatus::WR_FLUSH, WcStatus::REM_INV_REQ);
            // No later entry is received any more.
            rx.drain_until.store(head.wrapping_add(1), Ordering::Relaxed);
            return Err(Stop::Overrun);
        }
        Ok(())
    }

    /// Copies `bytes` to a receive, from its byte `from` on; false if they do not fit.
    fn scatter(&self, place: u32, from: u32, bytes: &[u8]) -> bool {
        let sges = self.rq.sges(place);
        let (mut skip, mut rest) = (from as usize, bytes);
        for sge in sges.as_slice() {
            let size = sge.len as usize;
            if skip >= size {
                skip -= size;
                continue;
            }
            let n = (size - skip).min(rest.len());
            #[expect(clippy::cast_possible_truncation, reason = "an address of this process")]
            let to = ptr::with_exposed_provenance_mut::<u8>(sge.addr as usize + skip);
            // SAFETY: the caller of `post_recv` keeps the memory valid until the completion, which
            // has not been returned yet, and has promised that no other thread polls.
            unsafe { copy::plain(rest.as_ptr(), to, n) };
            rest = &rest[n..];
            skip = 0;
            if rest.is_empty() {
                return true;
            }
        }
        rest.is_empty()
    }

    /// Copies the next `len` staged bytes to a receive, from its byte `from` on; false if they do
    /// not fit.
    fn scatter_staged(&self, rx: &Rx, place: u32, from: u32, len: u32) -> bool {
        let mut at = rx.stage_head.load(Ordering::Relaxed);
        let (mut from, mut left) = (from, len as usize);
        let mut fits = true;
        let mut bounce = [0u8; 1024];
        while left > 0 {
            let (src, run) = self.recv_lane.stage(at);
            let n = left.min(run).min(bounce.len());
            // The peer may write the stage meanwhile, so the bytes are first copied to private
            // memory.
            // SAFETY: `n` bytes on the stage, and in the array.
            unsafe { copy::plain(src.as_ptr(), bounce.as_mut_ptr(), n) };
            fits = fits && self.scatter(place, from, &bounce[..n]);
            at = at.wrapping_add(n as u64);
            from = from.saturating_add(u32::try_from(n).unwrap_or(u32::MAX));
            left -= n;
        }
        rx.stage_head.store(at, Ordering::Relaxed);
        // SYNC(stage): this process's reads come before. Pairs with the Acquire in
        // `stage_shortage`.
        self.recv_lane.head().consumer.stage_head.store(at, Ordering::Release);
        fits
    }
}
