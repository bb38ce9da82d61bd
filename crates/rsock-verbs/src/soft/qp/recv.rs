//! The receiving half of a queue pair.
//!
//! A poller takes entries from the lane in order, each with the oldest posted receive. Every entry
//! is checked on a private copy; an entry that no honest peer writes puts the queue pair into the
//! error state.

use super::QpCore;
use crate::copy;
use crate::error::PostError;
use crate::soft::layout::Entry;
use crate::soft::peer_copy;
use crate::sync::slot::{INLINE, Slot};
use crate::types::{Access, QpState, WrId};
use crate::wc::{Completion, WcOp, WcStatus};
use crate::wr::RecvWr;
use std::ptr;
use std::sync::atomic::Ordering;

/// Why no further entry is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
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
        let posted = self.shared.rx.posted.load(Ordering::Relaxed);
        if self.n_free(posted) == 0 {
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
        self.publish_posted(posted.wrapping_add(1), state);
        Ok(())
    }

    /// Posts `n` receives without memory, each with `id`, as far as there is room. Returns how
    /// many.
    ///
    /// PERF: eight at once take 170 instructions, and one by one 500 (callgrind).
    pub(super) fn post_recvs_empty(&self, id: WrId, n: u32) -> u32 {
        let posted = self.shared.rx.posted.load(Ordering::Relaxed);
        let n = n.min(self.n_free(posted));
        let state = self.shared.state();
        if n == 0 || state == QpState::Reset {
            return 0;
        }
        for i in 0..n {
            let at = posted.wrapping_add(i);
            self.rq.put(at, id, &[]);
            if let Some(cap) = self.recv_lane.cap(at) {
                cap.store(0, Ordering::Relaxed);
            }
        }
        self.publish_posted(posted.wrapping_add(n), state);
        n
    }

    /// The receives for which the queue has room, where `posted` have been posted so far.
    #[inline(always)]
    fn n_free(&self, posted: u32) -> u32 {
        let taken = self.shared.rx.taken.load(Ordering::Relaxed);
        self.max_recv_wr.saturating_sub(posted.wrapping_sub(taken))
    }

    /// Publishes that `posted` receives have been posted so far, in a queue pair in `state`.
    #[inline(always)]
    fn publish_posted(&self, posted: u32, state: QpState) {
        self.shared.rx.posted.store(posted, Ordering::Release);
        // SYNC(posted): the receives are in place. Pairs with the Acquire in `submit::has_room`.
        self.recv_lane.head().consumer.posted.store(posted, Ordering::Release);
        if state == QpState::Err {
            // They are flushed at once, so waiters of the queue are woken.
            self.waiters.notify();
        } else {
            self.announce_room();
        }
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

    /// Runs `f` while the peer writes nothing for this queue pair: neither into the lane nor, by
    /// its requests, into a region. Returns false, without running `f`, if it is writing now. One
    /// caller at a time: the one that polls.
    pub(in crate::soft) fn exclusively(&self, f: &mut dyn FnMut()) -> bool {
        let guard = &self.recv_lane.head().copier.guard;
        guard.pause();
        // SYNC(copy-guard): the pause is ordered before the load of the guard, as in
        // `Link::is_quiet`.
        let is_quiet = !self.link.is_alive() || self.link.fence_copies() && guard.is_quiet();
        if is_quiet {
            f();
        }
        guard.resume();
        // A sender that was kept out waits for a ring.
        self.announce_room();
        is_quiet
    }

    /// Gives the pages of an empty lane back. Called inside [`Self::exclusively`].
    pub(in crate::soft) fn punch_lane(&self) {
        let head = self.shared.rx.head.load(Ordering::Relaxed);
        // A slot that was given back looks as if entry `u32::MAX` were published in it.
        let is_near_wrap = head.checked_add(self.recv_lane.n_slots()).is_none();
        if !is_near_wrap && !self.recv_lane.slot(head).is_published(head) {
            self.link.own_segment().punch(self.location.slots_at, self.location.slots_len());
            self.shared.rx.punched.set(self.recv_lane.head().copier.guard.count());
        }
    }

    /// Whether the lane was given back, and the peer has written nothing since.
    #[inline(always)]
    pub(super) fn is_punched(&self) -> bool {
        self.shared.rx.punched.is_empty(|| self.recv_lane.head().copier.guard.count())
    }

    /// As [`Self::poll_recvs`], of one message. Of an entry that is not a good WRITE WITH IMMEDIATE
    /// nothing is kept: `poll_recvs` reads it again, and decides.
    #[inline(always)]
    pub(in crate::soft) fn poll_recv(&self) -> Option<Completion> {
        let head = self.shared.rx.head.load(Ordering::Relaxed);
        let slot = self.recv_lane.slot(head);
        if self.is_live()
            && !self.is_punched()
            && slot.is_published(head)
            && let (imm, word) = slot.read()
            && let Some(entry @ (Entry::WriteImmInline { .. } | Entry::WriteImm { .. })) =
                Entry::decode(word)
            && let Ok(wc) = self.take_write(slot, entry, imm)
        {
            self.publish_head(head.wrapping_add(1));
            self.announce_room();
            return Some(wc);
        }
        self.poll_unusual()
    }

    #[inline(never)]
    fn poll_unusual(&self) -> Option<Completion> {
        Completion::one(|out| self.poll_recvs(out))
    }

    #[inline(always)]
    fn is_live(&self) -> bool {
        matches!(self.shared.state(), QpState::Rtr | QpState::Rts)
    }

    /// Takes arrived messages. One caller at a time: the caller of `post_recv` has promised that
    /// for receives with memory. For receives without memory, a second caller costs completions but
    /// never safety.
    #[inline]
    pub(in crate::soft) fn poll_recvs(&self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let live = self.is_live();
        let rx = &self.shared.rx;
        let first = rx.head.load(Ordering::Relaxed);
        let mut head = first;
        let mut n = 0;
        if live {
            let mut stop = None;
            let end = if self.is_punched() { 0 } else { out.len() };
            while n < end && self.recv_lane.slot(head).is_published(head) {
                match self.take_entry(head, &mut out[n]) {
                    Ok(()) => n += 1,
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
                // The peer's queue pair has failed: so this one fails, too.
                self.fail();
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
        if n < out.len() && self.left_to_drain(head) != 0 {
            // The peer has taken a message back that was there at the error.
            rx.drain_until.store(head, Ordering::Relaxed);
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

    fn failed(&self, id: WrId, status: WcStatus) -> Completion {
        Completion { id, status, op: WcOp::Recv, len: 0, imm: 0, qp_num: self.number }
    }

    #[inline(always)]
    fn publish_head(&self, head: u32) {
        self.shared.rx.head.store(head, Ordering::Relaxed);
        self.shared.rx.punched.clear();
        // SYNC(slot-free): this process's reads of the slots below come before. Pairs with the
        // Acquire in `submit::has_room`.
        self.recv_lane.head().consumer.head.store(head, Ordering::Release);
    }

    /// The peer broke the device's contract.
    #[cold]
    fn violated(&self, head: u32) {
        self.fail();
        // No entry after it is received any more.
        self.shared.rx.drain_until.store(head, Ordering::Relaxed);
    }

    /// Takes entry `head`, which is published.
    #[inline(always)]
    fn take_entry(&self, head: u32, out: &mut Completion) -> Result<(), Stop> {
        let slot = self.recv_lane.slot(head);
        let (imm, word) = slot.read();
        let entry = Entry::decode(word).ok_or(Stop::Violation)?;
        if let Entry::WriteImmInline { .. } | Entry::WriteImm { .. } = entry {
            *out = self.take_write(slot, entry, imm)?;
            return Ok(());
        }
        self.take_send(head, entry, imm, out)
    }

    /// The next posted receive.
    #[inline(always)]
    fn next_receive(&self) -> Result<u32, Stop> {
        let rx = &self.shared.rx;
        let taken = rx.taken.load(Ordering::Relaxed);
        if taken == rx.posted.load(Ordering::Acquire) { Err(Stop::Violation) } else { Ok(taken) }
    }

    /// Takes a WRITE WITH IMMEDIATE.
    #[inline(always)]
    fn take_write(&self, slot: &Slot, entry: Entry, imm: u32) -> Result<Completion, Stop> {
        let taken = self.next_receive()?;
        let len = self.arrive(slot, entry)?;
        self.shared.rx.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
        let (id, qp_num) = (self.rq.id(taken), self.number);
        Ok(Completion { id, status: WcStatus::SUCCESS, op: WcOp::RecvWriteImm, len, imm, qp_num })
    }

    /// Stores a WRITE's payload at its target if the slot carries it; returns its length.
    #[inline(always)]
    fn arrive(&self, slot: &Slot, entry: Entry) -> Result<u32, Stop> {
        match entry {
            Entry::WriteImmInline { at, len } => {
                // Any target in the segment is allowed: the peer could write there by itself.
                let to = self.link.own_segment().bytes(at, len.into()).ok_or(Stop::Violation)?;
                let words = slot.payload();
                // SAFETY: `len` bytes inside this process's segment, which only raw copies and
                // atomics access.
                unsafe { peer_copy::store_small(&words, to.as_ptr(), len as usize) };
                Ok(len)
            }
            Entry::WriteImm { len } => Ok(len),
            _ => Err(Stop::Violation),
        }
    }

    /// Takes a SEND.
    #[cold]
    fn take_send(
        &self,
        head: u32,
        entry: Entry,
        imm: u32,
        out: &mut Completion,
    ) -> Result<(), Stop> {
        let rx = &self.shared.rx;
        let taken = self.next_receive()?;
        let (len, fits) = match entry {
            Entry::SendInline { len } => {
                let words = self.recv_lane.slot(head).payload();
                let mut bytes = [0u8; INLINE];
                // SAFETY: INLINE bytes, and `len` is at most that.
                unsafe { peer_copy::store_small(&words, bytes.as_mut_ptr(), len as usize) };
                (len, self.scatter(taken, &bytes[..len as usize]))
            }
            Entry::SendTooLong => (0, false),
            // The first two are handled by the caller; staged entries are of datagrams.
            Entry::WriteImmInline { .. } | Entry::WriteImm { .. } | Entry::SendStaged { .. } => {
                return Err(Stop::Violation);
            }
        };
        rx.taken.store(taken.wrapping_add(1), Ordering::Relaxed);
        let (id, qp_num) = (self.rq.id(taken), self.number);
        *out = Completion { id, status: WcStatus::SUCCESS, op: WcOp::Recv, len, imm, qp_num };
        if !fits {
            out.status = WcStatus::LOC_LEN;
            self.fail();
            // No later entry is received any more.
            rx.drain_until.store(head.wrapping_add(1), Ordering::Relaxed);
            return Err(Stop::Overrun);
        }
        Ok(())
    }

    /// Copies `bytes` to a receive; false if they do not fit.
    fn scatter(&self, place: u32, bytes: &[u8]) -> bool {
        let sges = self.rq.sges(place);
        let mut rest = bytes;
        for sge in sges.as_slice() {
            let n = (sge.len as usize).min(rest.len());
            #[expect(clippy::cast_possible_truncation, reason = "an address of this process")]
            let to = ptr::with_exposed_provenance_mut::<u8>(sge.addr as usize);
            // SAFETY: the caller of `post_recv` keeps the memory valid until the completion, which
            // has not been returned yet, and has promised that no other thread polls.
            unsafe { copy::plain(rest.as_ptr(), to, n) };
            rest = &rest[n..];
        }
        rest.is_empty()
    }
}
