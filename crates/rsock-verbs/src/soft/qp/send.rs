//! The sending half of a queue pair.
//!
//! A request is *placed*: its payload is copied to where the peer finds it, and an entry is
//! published in the peer's lane. What cannot be placed at once (no slot, no receive, or older
//! requests wait) is refused if it is INLINE and queued if not. Placing needs the send lock; waking the
//! peer happens outside of it.

use super::lane::Outlet;
use super::shared::{DONE, PENDING, Tx, WANT};
use super::{Core, Sges};
use crate::error::PostError;
use crate::soft::copy;
use crate::soft::layout::{CHUNK, Entry, STAGE};
use crate::soft::regions::{Refusal, Remote, Target};
use crate::sync::slot::INLINE;
use crate::types::{Access, QpState, RKey, RemoteAddr};
use crate::wc::{Completion, WcOp, WcStatus};
use crate::wr::{SendFlags, SendOp, SendWr, Sge};
use std::ptr;
use std::sync::atomic::Ordering;

/// How long one retry of a request without a receive at the peer lasts. Nanoseconds.
const RNR_TIMER: u64 = 1_000_000;
/// Longest payload of one request.
const MAX_MSG: u64 = 1 << 30;

/// What became of an attempt to place a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Placed {
    /// Copied; nothing to announce (RDMA WRITE).
    Silent,
    /// An entry was published.
    Announced,
    /// A part of a long SEND was announced; the rest needs room.
    Partly,
    /// No slot, or no room on the stage.
    NoRoom,
    /// The peer has posted no receive.
    NoReceive,
    /// It cannot work, and the queue pair with it.
    Failed(WcStatus),
}

fn total(sges: &[Sge]) -> u64 {
    sges.iter().map(|sge| u64::from(sge.len)).sum()
}

impl Core {
    /// # Safety
    /// As [`crate::QueuePair::post_send`].
    #[inline]
    pub(super) unsafe fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let Some(outlet) = self.outlet.get() else { return self.post_unconnected(wr) };
        let mut tx = self.shared.tx.0.lock();
        // The common case: nothing waits, and nobody asked for a completion.
        if !self.signal_all
            && wr.flags.contains(SendFlags::INLINE)
            && !wr.flags.contains(SendFlags::SIGNALED)
            && let SendOp::WriteImm { remote, rkey, imm } = wr.op
            && let [sge] = wr.sges
            // SAFETY: the caller's promise is the same.
            && unsafe { self.post_plainly(&mut tx, outlet, remote, rkey, imm, sge) }
        {
            drop(tx);
            outlet.ring_recv();
            return Ok(());
        }
        // SAFETY: the caller's promise is the same.
        let (posted, announced) = unsafe { self.post_any(&mut tx, outlet, wr) };
        drop(tx);
        if announced {
            outlet.ring_recv();
        }
        posted
    }

    /// The shortest way for a WRITE WITH IMMEDIATE of one piece; false if anything is unusual.
    ///
    /// # Safety
    /// The piece names readable memory.
    #[inline(always)]
    unsafe fn post_plainly(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
        remote: RemoteAddr,
        rkey: RKey,
        imm: u32,
        sge: &Sge,
    ) -> bool {
        if self.shared.state() != QpState::Rts
            || !self.write_imm
            || sge.len == 0
            || tx.sq_mid != tx.sq_tail
            || tx.tail == tx.slot_end
            || tx.msgs == tx.posted
        {
            return false;
        }
        let theirs = self.link.theirs();
        let src = ptr::with_exposed_provenance::<u8>(address(sge.addr));
        let len = sge.len as usize;
        let slot = outlet.lane.slot(tx.tail);
        if len <= INLINE {
            if !tx.region.is_current(theirs, rkey) {
                return false;
            }
            let Some(Target::Segment(at)) = tx.region.target(remote.0, sge.len.into()) else {
                return false;
            };
            // SAFETY: the caller's promise; at most INLINE bytes.
            let words = unsafe { copy::load_small(src, len) };
            let entry = Entry::WriteImmInline { at, len: sge.len };
            slot.publish(tx.tail, imm, entry.encode(), &words);
        } else {
            let written = self.while_busy(tx, outlet, |tx| {
                if !tx.region.is_current(theirs, rkey) {
                    return false;
                }
                let target = tx.region.target(remote.0, sge.len.into());
                let Some(Target::Segment(at)) = target else { return false };
                let Some(to) = theirs.bytes(at, sge.len.into()) else { return false };
                let from = self.stream_from(tx);
                // SAFETY: readable by the caller's promise; `len` bytes of the peer's region.
                unsafe { copy::to_peer(src, to.as_ptr(), len, from) };
                // Announced before we are idle again: an owner that finds us idle and its queue
                // empty may take the memory for unused.
                slot.publish_bare(tx.tail, imm, Entry::WriteImm { len: sge.len }.encode());
                true
            });
            if !written {
                return false;
            }
        }
        tx.tail = tx.tail.wrapping_add(1);
        tx.msgs = tx.msgs.wrapping_add(1);
        true
    }

    /// From which size on copies stream: a peer that answers wants its bytes in the cache.
    #[inline(always)]
    fn stream_from(&self, tx: &mut Tx) -> usize {
        let taken = self.shared.rx.taken.load(Ordering::Relaxed);
        let answered = taken != tx.taken_then;
        tx.taken_then = taken;
        if answered { copy::STREAM_ANSWERS_FROM } else { copy::STREAM_FROM }
    }

    /// Runs `f` while the lane says that we copy into a region: the region's owner reuses its memory
    /// only after that.
    #[inline(always)]
    fn while_busy<R>(&self, tx: &mut Tx, outlet: &Outlet, f: impl FnOnce(&mut Tx) -> R) -> R {
        let busy = &outlet.lane.head().producer.busy;
        busy.begin(&mut tx.busy, || self.light_fence());
        let done = f(tx);
        busy.end(&mut tx.busy);
        done
    }

    /// A queue pair without a peer takes requests in the error state only, and flushes them.
    #[cold]
    fn post_unconnected(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        let mut tx = self.shared.tx.0.lock();
        if self.shared.state() != QpState::Err {
            return Err(PostError::State);
        }
        self.check(wr, total(wr.sges))?;
        self.flush_one(&mut tx, wr)
    }

    /// Takes a request in the error state.
    #[cold]
    fn flush_one(&self, tx: &mut Tx, wr: &SendWr<'_>) -> Result<(), PostError> {
        if self.sq_is_full(tx) {
            return Err(PostError::QueueFull);
        }
        self.push(tx, wr, true, &[]);
        self.finish_first(tx, WcStatus::WR_FLUSH);
        Ok(())
    }

    /// Whether a request could ever work.
    fn check(&self, wr: &SendWr<'_>, len: u64) -> Result<(), PostError> {
        let inline = wr.flags.contains(SendFlags::INLINE);
        let ok = len <= MAX_MSG
            && wr.sges.len() <= self.sq.max_sge() as usize
            && (inline || self.are_local(wr.sges))
            && match wr.op {
                SendOp::Send => !inline || len <= STAGE,
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

    /// Any request, in any state. Also says whether something was announced.
    ///
    /// # Safety
    /// As [`crate::QueuePair::post_send`].
    unsafe fn post_any(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
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
            announced = self.advance(tx, outlet);
        }
        let mut sent = 0;
        let placed = if tx.sq_mid == tx.sq_tail {
            // SAFETY: the caller's promise is the same.
            unsafe { self.place(tx, outlet, &wr.op, wr.sges, len, inline, &mut sent) }
        } else {
            Placed::NoRoom
        };
        announced |= matches!(placed, Placed::Announced | Placed::Partly);
        match placed {
            Placed::Silent | Placed::Announced => {
                if signaled {
                    self.push(tx, wr, true, &[]);
                    self.finish_first(tx, WcStatus::SUCCESS);
                }
                (Ok(()), announced)
            }
            Placed::NoReceive if self.rnr_retry() == 0 => {
                (self.fail_now(tx, wr, WcStatus::RNR_RETRY_EXC), announced)
            }
            Placed::Failed(status) => (self.fail_now(tx, wr, status), announced),
            Placed::NoRoom | Placed::NoReceive if inline => (Err(PostError::QueueFull), announced),
            Placed::NoRoom | Placed::NoReceive | Placed::Partly => {
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

    /// Queues a request at the tail.
    #[inline]
    fn push(&self, tx: &mut Tx, wr: &SendWr<'_>, signaled: bool, sges: &[Sge]) {
        self.sq.put(tx.sq_tail, wr.id, wr.op, signaled, sges);
        tx.sq_tail = tx.sq_tail.wrapping_add(1);
    }

    /// Gives the oldest request without an outcome its outcome.
    fn finish_first(&self, tx: &mut Tx, status: WcStatus) {
        self.sq.finish(tx.sq_mid, status);
        tx.sq_mid = tx.sq_mid.wrapping_add(1);
        let events = self.shared.events.load(Ordering::Relaxed);
        self.shared.events.store(events | DONE, Ordering::Relaxed);
        self.send_waiters.notify();
    }

    /// A request that breaks the queue pair.
    #[cold]
    fn fail_now(&self, tx: &mut Tx, wr: &SendWr<'_>, status: WcStatus) -> Result<(), PostError> {
        if self.sq_is_full(tx) {
            // Nowhere to report it: it fails when it is posted again.
            return Err(PostError::QueueFull);
        }
        self.push(tx, wr, true, &[]);
        self.enter_error(tx, status, WcStatus::WR_FLUSH);
        Ok(())
    }

    fn rnr_retry(&self) -> u32 {
        self.shared.rnr_retry.load(Ordering::Relaxed)
    }

    /// Places what waits, in order, as far as it goes. Whether something was announced.
    #[cold]
    fn advance(&self, tx: &mut Tx, outlet: &Outlet) -> bool {
        let mut announced = false;
        while tx.sq_mid != tx.sq_tail {
            let queued = self.sq.get(tx.sq_mid);
            let sges: Sges = self.sq.sges(tx.sq_mid, &queued);
            let sges = sges.as_slice();
            let mut sent = tx.sent;
            // SAFETY: whoever posted it without INLINE keeps the memory valid until the
            // completion is polled, which is still to be made.
            let placed =
                unsafe { self.place(tx, outlet, &queued.op, sges, total(sges), false, &mut sent) };
            announced |= matches!(placed, Placed::Announced | Placed::Partly);
            match placed {
                Placed::Silent | Placed::Announced => {
                    (tx.sent, tx.rnr_deadline) = (0, 0);
                    self.finish_first(tx, WcStatus::SUCCESS);
                }
                Placed::Partly | Placed::NoRoom => {
                    (tx.sent, tx.rnr_deadline) = (sent, 0);
                    return announced;
                }
                Placed::NoReceive => {
                    if self.is_rnr_over(tx) {
                        self.enter_error(tx, WcStatus::RNR_RETRY_EXC, WcStatus::WR_FLUSH);
                    }
                    return announced;
                }
                Placed::Failed(status) => {
                    self.enter_error(tx, status, WcStatus::WR_FLUSH);
                    return announced;
                }
            }
        }
        let events = self.shared.events.load(Ordering::Relaxed);
        self.shared.events.store(events & !PENDING, Ordering::Relaxed);
        announced
    }

    /// Whether the first pending request has waited for a receive as long as it may.
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

    /// Tries to place one request. `sent` is how much of a SEND is out already; `whole` forbids
    /// placing a part.
    ///
    /// # Safety
    /// The pieces name readable memory, `len` bytes in all.
    #[expect(clippy::too_many_arguments, reason = "a request's parts, and the lane's")]
    unsafe fn place(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
        op: &SendOp,
        sges: &[Sge],
        len: u64,
        whole: bool,
        sent: &mut u32,
    ) -> Placed {
        match *op {
            SendOp::Write { remote, rkey } => {
                let write = |tx: &mut Tx| {
                    // SAFETY: the caller's promise is the same.
                    let write =
                        |tx: &mut Tx| unsafe { self.write(tx, outlet, remote, rkey, sges, len) };
                    self.while_busy(tx, outlet, write)
                };
                match self.patiently(tx, outlet, write) {
                    Ok(()) => Placed::Silent,
                    Err(short) => short,
                }
            }
            SendOp::WriteImm { remote, rkey, imm } => {
                if let Some(short) = self.shortage(tx, outlet, 1) {
                    return short;
                }
                // Announced before we are idle again: an owner that finds us idle and its queue
                // empty may take the memory for unused.
                let announce = |tx: &mut Tx| {
                    // SAFETY: the caller's promise is the same.
                    let made = unsafe { self.write_imm(tx, outlet, remote, rkey, sges, len) };
                    let (entry, words) = made?;
                    outlet.lane.slot(tx.tail).publish(tx.tail, imm, entry.encode(), &words);
                    Ok(())
                };
                let write = |tx: &mut Tx| self.while_busy(tx, outlet, announce);
                if let Err(short) = self.patiently(tx, outlet, write) {
                    return short;
                }
                tx.tail = tx.tail.wrapping_add(1);
                tx.msgs = tx.msgs.wrapping_add(1);
                Placed::Announced
            }
            // SAFETY: the caller's promise is the same.
            SendOp::Send => unsafe { self.place_send(tx, outlet, sges, len, whole, sent) },
        }
    }

    /// Runs `write`, and once more if the region's owner keeps writers out, after asking it to ring.
    #[inline(always)]
    fn patiently<R>(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
        write: impl Fn(&mut Tx) -> Result<R, Refusal>,
    ) -> Result<R, Placed> {
        let refusal = match write(tx) {
            Ok(written) => return Ok(written),
            Err(refusal) => refusal,
        };
        let refusal = if refusal == Refusal::Paused {
            // SYNC(want-room): a region that is opened before the peer sees the wish is open here.
            self.want_room(outlet);
            match write(tx) {
                Ok(written) => return Ok(written),
                Err(refusal) => refusal,
            }
        } else {
            refusal
        };
        Err(match refusal {
            Refusal::Status(status) => Placed::Failed(status),
            Refusal::Paused => Placed::NoRoom,
        })
    }

    /// Whether `slots` more entries and one more message cannot be taken. If so the peer has been
    /// asked to say when they can.
    #[inline(always)]
    fn shortage(&self, tx: &mut Tx, outlet: &Outlet, slots: u32) -> Option<Placed> {
        if tx.slot_end.wrapping_sub(tx.tail) >= slots && tx.msgs != tx.posted {
            return None;
        }
        self.shortage_slow(tx, outlet, slots)
    }

    #[cold]
    fn shortage_slow(&self, tx: &mut Tx, outlet: &Outlet, slots: u32) -> Option<Placed> {
        if let fits @ None = look(tx, outlet, slots) {
            return fits;
        }
        self.want_room(outlet);
        // SYNC(want-room): see `want_room`; room made before the peer could see the wish is seen here.
        let short = look(tx, outlet, slots);
        if short.is_none() {
            self.unwant_room(outlet);
        }
        short
    }

    /// Asks the peer to ring when it has taken entries or posted receives.
    #[cold]
    fn want_room(&self, outlet: &Outlet) {
        let events = self.shared.events.load(Ordering::Relaxed);
        let want = &outlet.lane.head().producer.want_room;
        if events & WANT != 0 && want.is_open() {
            return;
        }
        self.shared.events.store(events | WANT, Ordering::Relaxed);
        want.ask(|| self.heavy_fence());
    }

    #[cold]
    fn unwant_room(&self, outlet: &Outlet) {
        outlet.lane.head().producer.want_room.withdraw();
        let events = self.shared.events.load(Ordering::Relaxed);
        self.shared.events.store(events & !WANT, Ordering::Relaxed);
    }

    /// The payload of a WRITE WITH IMMEDIATE, in the slot if it is small.
    ///
    /// # Safety
    /// As [`Self::place`].
    #[inline]
    unsafe fn write_imm(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
        remote: RemoteAddr,
        rkey: RKey,
        sges: &[Sge],
        len: u64,
    ) -> Result<(Entry, [u64; INLINE / 8]), Refusal> {
        let none = [0; INLINE / 8];
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_MSG")]
        let short = len as u32;
        if len == 0 {
            return Ok((Entry::WriteImm { len: 0 }, none));
        }
        if len <= INLINE as u64
            && let Target::Segment(at) = self.target(tx, outlet, remote, rkey, len)?
        {
            // SAFETY: the caller's promise; at most INLINE bytes.
            let words = unsafe { gather_small(sges) };
            return Ok((Entry::WriteImmInline { at, len: short }, words));
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.write(tx, outlet, remote, rkey, sges, len) }?;
        Ok((Entry::WriteImm { len: short }, none))
    }

    /// Copies a payload to its place in the peer's memory. The last byte is stored last. The caller
    /// has marked us busy.
    ///
    /// # Safety
    /// As [`Self::place`].
    unsafe fn write(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
        remote: RemoteAddr,
        rkey: RKey,
        sges: &[Sge],
        len: u64,
    ) -> Result<(), Refusal> {
        if len == 0 {
            return Ok(());
        }
        match self.target(tx, outlet, remote, rkey, len)? {
            Target::Segment(at) => {
                let to = self.link.theirs().bytes(at, len).ok_or(WcStatus::REM_ACCESS)?;
                let from = self.stream_from(tx);
                // SAFETY: the pieces are readable by the caller's promise, and `len` bytes are
                // writable at `to`.
                unsafe { gather(sges, to.as_ptr(), from) };
                Ok(())
            }
            Target::Foreign(at) => {
                // SAFETY: the caller's promise is the same.
                let written = unsafe { self.link.foreign().write(at, sges, len) };
                if written { Ok(()) } else { Err(WcStatus::REM_ACCESS.into()) }
            }
        }
    }

    /// Where a WRITE goes, by the peer's own table.
    #[inline(always)]
    fn target(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
        remote: RemoteAddr,
        rkey: RKey,
        len: u64,
    ) -> Result<Target, Refusal> {
        let theirs = self.link.theirs();
        if !tx.region.is_current(theirs, rkey) {
            // A region is remembered only if the peer's queue pair is open to writes.
            if !outlet.access.contains(Access::REMOTE_WRITE) {
                return Err(WcStatus::REM_ACCESS.into());
            }
            tx.region = Remote::look_up(theirs, rkey)?;
        }
        tx.region.target(remote.0, len).ok_or(Refusal::Status(WcStatus::REM_ACCESS))
    }

    /// # Safety
    /// As [`Self::place`].
    unsafe fn place_send(
        &self,
        tx: &mut Tx,
        outlet: &Outlet,
        sges: &[Sge],
        len: u64,
        whole: bool,
        sent: &mut u32,
    ) -> Placed {
        let none = [0; INLINE / 8];
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_MSG")]
        let len = len as u32;
        let slots = if whole { len.div_ceil(CHUNK).max(1) } else { 1 };
        if let Some(short) = self.shortage(tx, outlet, slots) {
            return short;
        }
        // A receive that is too short is known before anything is sent, except of a shared queue.
        if *sent == 0 && outlet.lane.cap(tx.msgs).is_some_and(|c| c.load(Ordering::Relaxed) < len) {
            let entry = Entry::SendTooLong.encode();
            outlet.lane.slot(tx.tail).publish(tx.tail, 0, entry, &none);
            tx.tail = tx.tail.wrapping_add(1);
            return Placed::Failed(WcStatus::REM_INV_REQ);
        }
        if *sent == 0 && len as usize <= INLINE {
            // SAFETY: the caller's promise; at most INLINE bytes.
            let words = unsafe { gather_small(sges) };
            let entry = Entry::SendInline { len }.encode();
            outlet.lane.slot(tx.tail).publish(tx.tail, 0, entry, &words);
            tx.tail = tx.tail.wrapping_add(1);
            tx.msgs = tx.msgs.wrapping_add(1);
            return Placed::Announced;
        }
        let mut any = false;
        loop {
            let chunk = (len - *sent).min(CHUNK);
            let needed = if whole { len - *sent } else { chunk };
            let short = self
                .shortage(tx, outlet, 1)
                .or_else(|| self.stage_shortage(tx, outlet, needed.into()));
            if let Some(short) = short {
                return if any { Placed::Partly } else { short };
            }
            // SAFETY: the caller's promise; `sent + chunk <= len`; the stage has room.
            unsafe { stage(tx, outlet, sges, *sent, chunk) };
            *sent += chunk;
            any = true;
            let last = *sent == len;
            let entry = Entry::SendStaged { len: chunk, last }.encode();
            outlet.lane.slot(tx.tail).publish(tx.tail, 0, entry, &none);
            tx.tail = tx.tail.wrapping_add(1);
            if last {
                tx.msgs = tx.msgs.wrapping_add(1);
                return Placed::Announced;
            }
        }
    }

    /// As [`Self::shortage`], for bytes on the stage.
    fn stage_shortage(&self, tx: &mut Tx, outlet: &Outlet, bytes: u64) -> Option<Placed> {
        let fits = |tx: &mut Tx| {
            // SYNC(stage): the peer has copied what lies below. Pairs with the Release in
            // `Core::scatter`. A peer that lies spoils its own stage.
            tx.stage_head = outlet.lane.head().consumer.stage_head.load(Ordering::Acquire);
            tx.stage_tail.wrapping_sub(tx.stage_head).saturating_add(bytes) <= STAGE
        };
        if tx.stage_tail.wrapping_sub(tx.stage_head).saturating_add(bytes) <= STAGE || fits(tx) {
            return None;
        }
        self.want_room(outlet);
        // SYNC(want-room): as in `shortage_slow`.
        if fits(tx) {
            self.unwant_room(outlet);
            return None;
        }
        Some(Placed::NoRoom)
    }

    /// Send completions, and progress of what waits.
    #[cold]
    pub(in crate::soft) fn poll_sends(&self, out: &mut [Completion]) -> usize {
        let mut tx = self.shared.tx.0.lock();
        let mut announced = false;
        if let Some(outlet) = self.outlet.get()
            && self.shared.state() == QpState::Rts
        {
            let events = self.shared.events.load(Ordering::Relaxed);
            if events & WANT != 0 && !outlet.lane.head().producer.want_room.is_open() {
                self.shared.events.store(events & !WANT, Ordering::Relaxed);
            }
            if tx.sq_mid != tx.sq_tail {
                announced = self.advance(&mut tx, outlet);
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
        drop(tx);
        if announced && let Some(outlet) = self.outlet.get() {
            outlet.ring_recv();
        }
        n
    }
}

/// Looks at the peer's progress; what is short, if anything.
fn look(tx: &mut Tx, outlet: &Outlet, slots: u32) -> Option<Placed> {
    let consumer = &outlet.lane.head().consumer;
    // SYNC(slot-free): the peer has read what lies below. Pairs with the Release in
    // `Core::publish_head`. A peer that lies overwrites its own lane.
    tx.slot_end = consumer.head.load(Ordering::Acquire).wrapping_add(outlet.lane.n_slots());
    // SYNC(posted): the peer is ready for these. Pairs with the Release in `Core::post_recv`.
    tx.posted = consumer.posted.load(Ordering::Acquire);
    if tx.msgs == tx.posted {
        Some(Placed::NoReceive)
    } else if tx.slot_end.wrapping_sub(tx.tail) < slots {
        Some(Placed::NoRoom)
    } else {
        None
    }
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "addresses are as wide as usize here")]
fn address(addr: u64) -> usize {
    const { assert!(size_of::<usize>() == 8) };
    addr as usize
}

/// Copies the pieces, in order, to `to`; the last byte is stored last, for readers that spin on it.
///
/// # Safety
/// The pieces name readable memory; as many bytes as they have together are writable at `to`.
#[inline]
unsafe fn gather(sges: &[Sge], mut to: *mut u8, stream_from: usize) {
    let Some(last) = sges.iter().rposition(|sge| sge.len != 0) else { return };
    for sge in &sges[..last] {
        let src = ptr::with_exposed_provenance(address(sge.addr));
        let len = sge.len as usize;
        // SAFETY: the caller's promise.
        unsafe { copy::to_peer(src, to, len, stream_from) };
        // SAFETY: the pieces' sum is writable.
        to = unsafe { to.add(len) };
    }
    let src = ptr::with_exposed_provenance(address(sges[last].addr));
    let len = sges[last].len as usize;
    // SAFETY: the caller's promise.
    unsafe { copy::to_peer_last(src, to, len, stream_from) };
}

/// The pieces as words.
///
/// # Safety
/// The pieces name readable memory, at most INLINE bytes together.
#[inline]
unsafe fn gather_small(sges: &[Sge]) -> [u64; INLINE / 8] {
    if let [sge] = sges {
        let src = ptr::with_exposed_provenance(address(sge.addr));
        // SAFETY: the caller's promise.
        return unsafe { copy::load_small(src, sge.len as usize) };
    }
    let mut bytes = [0u8; INLINE];
    let mut at = 0;
    for sge in sges {
        let part = &mut bytes[at..at + sge.len as usize];
        let src = ptr::with_exposed_provenance(address(sge.addr));
        // SAFETY: readable by the caller's promise; `part` is ours and as long.
        unsafe { copy::plain(src, part.as_mut_ptr(), part.len()) };
        at += part.len();
    }
    // SAFETY: the array has INLINE bytes.
    unsafe { copy::load_small(bytes.as_ptr(), INLINE) }
}

/// Copies bytes `from..from + len` of the pieces' sequence to the stage.
///
/// # Safety
/// The pieces name readable memory, at least `from + len` bytes together.
unsafe fn stage(tx: &mut Tx, outlet: &Outlet, sges: &[Sge], from: u32, len: u32) {
    let (mut skip, mut left) = (from as usize, len as usize);
    for sge in sges {
        let size = sge.len as usize;
        if skip >= size {
            skip -= size;
            continue;
        }
        let mut src = ptr::with_exposed_provenance::<u8>(address(sge.addr) + skip);
        let mut part = (size - skip).min(left);
        skip = 0;
        while part > 0 {
            let (to, run) = outlet.lane.stage(tx.stage_tail);
            let n = part.min(run);
            // SAFETY: `n` readable bytes of this piece, and as many writable ones on the stage.
            unsafe { copy::to_peer(src, to.as_ptr(), n, copy::STREAM_FROM) };
            // SAFETY: still inside the piece, or at its end.
            src = unsafe { src.add(n) };
            tx.stage_tail = tx.stage_tail.wrapping_add(n as u64);
            part -= n;
            left -= n;
        }
        if left == 0 {
            return;
        }
    }
}
