//! Reliable-connected queue pairs.
//!
//! A queue pair receives from a lane in its own process's segment, which its peer writes, and sends
//! into the peer's. `send.rs` (with `submit.rs`) and `recv.rs` are the two data paths; this file
//! creates queue pairs, changes their state and destroys them.
//!
//! Invariants: a queue pair in the error state never touches its peer's lane again. A lane is freed
//! only when the peer's queue pair is in the error state as well, or the peer is dead.

pub(in crate::soft) mod lane;
mod recv;
mod send;
mod shared;
mod submit;

use super::Soft;
use super::barrier;
use super::creation_stamp::CreationStamp;
use super::layout::{LANE_HEAD, MAX_SLOTS, MIN_SLOTS, REVOKED, STAGE};
use super::pd::SoftPd;
use super::queue::{DoneSends, MAX_SGE, RecvQueue};
use super::retired::RetiredLane;
use super::wait::{OwnedWaitLine, Waiters};
use super::{Link, SoftCq};
use crate::device::QueuePair;
use crate::error::{Error, PostError};
use crate::family::FamilyBox;
use crate::sync::primitive::{Native, Platform};
use crate::types::{Access, QpCap, QpNum, QpState, RKey, RemoteAddr, WrId};
use crate::wr::{RecvWr, SendFlags, SendOp, SendWr, Sge};
use lane::{Lane, LaneLocation, LaneProducer};
use send::FastPost;
use shared::{DONE, QpShared, ROOM_REQUESTED, Tx};
use std::io::IoSlice;
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};

/// A reliable-connected queue pair.
#[derive(Debug)]
pub struct SoftQp {
    core: Arc<QpCore>,
    cq: Arc<SoftCq>,
    pd: Arc<SoftPd>,
    created: CreationStamp,
}

/// The part of a queue pair that its completion queue holds.
#[derive(Debug)]
pub(super) struct QpCore {
    shared: FamilyBox<QpShared>,
    /// The lane that this queue pair receives from.
    recv_lane: Lane,
    /// The peer's lane, once connected.
    send_lane: OnceLock<LaneProducer>,
    rq: RecvQueue,
    done_sends: DoneSends,
    number: QpNum,
    location: LaneLocation,
    max_recv_wr: u32,
    max_send_sge: u32,
    write_imm: bool,
    waiters: Arc<Waiters>,
    wait_line: Arc<OwnedWaitLine>,
    link: Arc<Link>,
}

impl SoftQp {
    pub(super) fn new(pd: &Arc<SoftPd>, cq: &Arc<SoftCq>, cap: &QpCap) -> Result<Self, Error> {
        let max_sge = u32::try_from(MAX_SGE).unwrap_or(u32::MAX);
        if cap.max_send_sge > max_sge || cap.max_recv_sge > max_sge {
            return Err(Error::Invalid("scatter/gather entries"));
        }
        if cap.max_send_wr > MAX_SLOTS / 2 || cap.max_recv_wr > MAX_SLOTS / 2 {
            return Err(Error::Invalid("queue depth"));
        }
        let link = pd.link();
        link.check_owner()?;
        let (depth, recv_sge) = (cap.max_recv_wr, cap.max_recv_sge);
        let wait_line = cq.waiters().wait_line(link)?;
        let room = || Error::Exhausted("family memory");
        let n_caps = if recv_sge > 0 { depth.max(1).next_power_of_two() } else { 0 };
        let slots = cap.max_recv_wr.next_power_of_two().clamp(MIN_SLOTS, MAX_SLOTS);
        let rq = RecvQueue::new(depth, recv_sge, cap.has_recv_ids)?;
        let done_sends = DoneSends::new(cap.max_send_wr)?;
        let shared = FamilyBox::new(QpShared::new()).ok_or_else(room)?;
        let number = link.node().numbers().take().ok_or(Error::Exhausted("queue pairs"))?;
        let made = Self::alloc_lane(link, slots, n_caps);
        let (location, recv_lane) = match made {
            Ok(made) => made,
            Err(e) => {
                link.node().numbers().give_back(number);
                return Err(e);
            }
        };
        let core = Arc::new(QpCore {
            shared,
            recv_lane,
            send_lane: OnceLock::new(),
            rq,
            done_sends,
            number,
            location,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            write_imm: pd.has_write_imm(),
            waiters: Arc::clone(cq.waiters()),
            wait_line,
            link: Arc::clone(link),
        });
        link.add_qp(&core);
        cq.attach(&core);
        Ok(Self { core, cq: Arc::clone(cq), pd: Arc::clone(pd), created: CreationStamp::now() })
    }

    /// Allocates memory for a lane.
    fn alloc_lane(link: &Link, slots: u32, n_caps: u32) -> Result<(LaneLocation, Lane), Error> {
        let head_at = link.alloc(LANE_HEAD)?;
        let slots_at = link.alloc(u64::from(slots) * 64 + u64::from(STAGE));
        let caps_at = if n_caps == 0 { Ok(0) } else { link.alloc(LaneLocation::caps_len(n_caps)) };
        let location = LaneLocation {
            head_at,
            slots_at: *slots_at.as_ref().unwrap_or(&0),
            slots,
            stage: STAGE,
            caps_at: *caps_at.as_ref().unwrap_or(&0),
            n_caps,
        };
        let error = match (&slots_at, &caps_at, Lane::at(link.own_segment(), &location)) {
            (Ok(_), Ok(_), Some(lane)) => return Ok((location, lane)),
            _ => Error::Exhausted("segment"),
        };
        link.free(head_at, LANE_HEAD);
        if let Ok(at) = slots_at {
            link.free(at, location.len());
        }
        if let (Ok(at), 1..) = (caps_at, n_caps) {
            link.free(at, LaneLocation::caps_len(n_caps));
        }
        Err(error)
    }

    /// Changes the state from `from` to `to` under the send lock.
    fn step(
        &self,
        from: QpState,
        to: QpState,
        act: impl FnOnce(&QpCore, &mut Tx) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let core = &*self.core;
        let mut tx = core.shared.tx.0.lock();
        if core.shared.state() != from {
            return Err(Error::Invalid("the queue pair's state forbids this"));
        }
        act(core, &mut tx)?;
        core.shared.set_state(to);
        Ok(())
    }
}

#[cfg(test)]
impl SoftQp {
    /// Publishes an entry of any content, `ahead` slots after the right one.
    pub(super) fn forge(&self, ahead: u32, imm: u32, word: u64) {
        let mut tx = self.core.shared.tx.0.lock();
        if let Some(send_lane) = self.core.send_lane.get() {
            let index = tx.tail.wrapping_add(ahead);
            send_lane.lane.slot(index).publish_bare(index, imm, word);
            send_lane.ring();
            tx.tail = index.wrapping_add(1);
        }
    }

    /// Fails, as if only `taken` entries had been taken from the lane and no other were there.
    pub(super) fn fail_as_of(&self, taken: u32) {
        self.fail();
        self.core.shared.rx.drain_until.store(taken, Ordering::Relaxed);
    }

    /// Makes a copy appear to be under way, or to have ended.
    pub(super) fn set_busy(&self, busy: bool) {
        let send_lane = self.core.send_lane.get().expect("connected");
        let word = &send_lane.lane.head().copier.guard;
        let mut tx = self.core.shared.tx.0.lock();
        if busy {
            assert!(word.begin(&mut tx.copy_count, Native::fence), "the owner has paused the lane");
        } else {
            word.end(&mut tx.copy_count);
        }
    }
}

impl QueuePair<Soft> for SoftQp {
    fn qp_num(&self) -> QpNum {
        self.core.number
    }

    fn state(&self) -> QpState {
        self.core.shared.state()
    }

    /// From here on the peer can connect to this queue pair.
    fn init(&self, access: Access) -> Result<(), Error> {
        self.step(QpState::Reset, QpState::Init, |core, _| {
            core.shared.peer_access.store(access.bits(), Ordering::Relaxed);
            lane::publish(
                core.link.own_segment(),
                core.number,
                &core.location,
                access,
                core.wait_line.at(),
            )
            .ok_or(Error::Exhausted("queue pairs"))
        })
    }

    fn ready_to_receive(&self, path: &Arc<Link>, dest: QpNum) -> Result<(), Error> {
        if !Arc::ptr_eq(path, self.pd.link()) {
            return Err(Error::Invalid("the path's process is not that of the domain"));
        }
        if !path.is_alive() {
            return Err(Error::PeerGone);
        }
        self.step(QpState::Init, QpState::Rtr, |core, tx| {
            let send_lane = LaneProducer::connect(path, core.number, dest)?;
            tx.slot_end = send_lane.lane.n_slots();
            core.send_lane.set(send_lane).map_err(|_| Error::Invalid("connected already"))
        })
    }

    fn ready_to_send(&self) -> Result<(), Error> {
        self.step(QpState::Rtr, QpState::Rts, |_, _| Ok(()))
    }

    fn fail(&self) {
        self.core.fail();
    }

    #[inline]
    fn note_consumed(&self, n: u64) {
        self.core.note_consumed(n);
    }

    fn consumed_by_peer(&self) -> Option<u64> {
        Some(self.core.consumed_by_peer())
    }

    fn is_peer_dead(&self) -> bool {
        self.pd.link().has_hung_up()
    }

    unsafe fn post_send(&self, wr: &SendWr<'_>) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.core.post_send(wr) }
    }

    #[inline(always)]
    fn post_write_imm(
        &self,
        id: WrId,
        at: (RemoteAddr, RKey),
        imm: u32,
        piece: &[u8],
    ) -> Result<(), PostError> {
        // SAFETY: the piece is borrowed, so readable, for the whole call.
        match unsafe { self.core.post_fast(at, imm, Sge::of_borrowed(piece)?) } {
            FastPost::Posted => Ok(()),
            FastPost::Fault => Err(PostError::Fault),
            FastPost::Unusual => {
                let op = SendOp::WriteImm { remote: at.0, rkey: at.1, imm };
                self.post_pieces(id, op, &[IoSlice::new(piece)], SendFlags::empty())
            }
        }
    }

    #[inline]
    unsafe fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.core.post_recv(wr)
    }

    fn post_recvs_empty(&self, id: WrId, n: u32) -> u32 {
        self.core.post_recvs_empty(id, n)
    }
}

impl Drop for SoftQp {
    fn drop(&mut self) {
        let core = &self.core;
        self.cq.detach();
        // A queue pair that existed during a fork belongs to the process family: another process
        // may use it.
        if !self.created.is_unshared() {
            return;
        }
        core.fail();
        let link = self.pd.link();
        lane::withdraw(link.own_segment(), core.number);
        // Fails if the peer has claimed the lane: then the peer detaches from it later.
        let _ = core.recv_lane.head().producer.claim.compare_exchange(
            0,
            REVOKED,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        let location = &core.location;
        let mut spans = vec![(location.head_at, LANE_HEAD), (location.slots_at, location.len())];
        if location.n_caps > 0 {
            spans.push((location.caps_at, LaneLocation::caps_len(location.n_caps)));
        }
        let rest = RetiredLane {
            head_at: location.head_at,
            spans,
            _wait_line: Arc::clone(&core.wait_line),
        };
        link.remove_qp(core, rest);
        link.node().numbers().give_back(core.number);
    }
}

impl QpCore {
    pub(super) fn number(&self) -> QpNum {
        self.number
    }

    pub(super) fn head_at(&self) -> u64 {
        self.location.head_at
    }

    /// Whether [`Self::poll_sends`] has anything to do.
    #[inline(always)]
    pub(super) fn has_events(&self) -> bool {
        self.shared.events.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    pub(super) fn has_granted_room(&self) -> bool {
        let events = self.shared.events.load(Ordering::Relaxed);
        events != 0 && self.has_room(events)
    }

    #[inline(always)]
    fn note_consumed(&self, n: u64) {
        let rx = &self.shared.rx;
        let sum = rx.consumed.load(Ordering::Relaxed).saturating_add(n);
        rx.consumed.store(sum, Ordering::Relaxed);
        // SYNC(consumed): the bytes have left the ring. Pairs with the Acquire in
        // `LaneProducer::consumed`.
        self.recv_lane.head().consumer.consumed.store(sum, Ordering::Release);
    }

    fn consumed_by_peer(&self) -> u64 {
        let tx = self.shared.tx.0.lock();
        match (self.shared.state(), self.send_lane.get()) {
            (QpState::Rts | QpState::Rtr, Some(send_lane)) => send_lane.consumed(),
            _ => tx.consumed,
        }
    }

    /// The fence of the frequent side of a store-load pair: only a compiler fence where the rare
    /// side uses [`barrier`].
    #[inline(always)]
    fn light_fence(&self) {
        if self.link.has_light_fence() {
            compiler_fence(Ordering::SeqCst);
        } else {
            Native::fence();
        }
    }

    /// The fence of the rare side of a store-load pair.
    fn heavy_fence(&self) {
        if self.link.has_light_fence() {
            barrier::full_or_long();
        } else {
            Native::fence();
        }
    }

    /// Enters the error state: all requests complete with a flush.
    #[cold]
    pub(super) fn fail(&self) {
        let mut tx = self.shared.tx.0.lock();
        self.enter_error(&mut tx);
    }

    /// [`Self::fail`] under the send lock.
    #[cold]
    fn enter_error(&self, tx: &mut Tx) {
        if self.shared.state() == QpState::Err {
            return;
        }
        // Messages that have arrived by now are still received: they were complete before the
        // error.
        let head = self.shared.rx.head.load(Ordering::Relaxed);
        let mut end = head;
        while end.wrapping_sub(head) < self.recv_lane.n_slots()
            && self.recv_lane.slot(end).is_published(end)
        {
            end = end.wrapping_add(1);
        }
        self.shared.rx.drain_until.store(end, Ordering::Relaxed);
        self.shared.lane_users.enter();
        self.shared.set_state(QpState::Err);

        let done = if tx.done_head == tx.done_tail { 0 } else { DONE };
        self.shared.events.store(done, Ordering::Relaxed);

        if let Some(send_lane) = self.send_lane.get() {
            tx.consumed = send_lane.consumed();
            let producer = &send_lane.lane.head().producer;
            // SYNC(close): a thread that sees this sees the entries published before. Pairs with
            // the Acquire in `poll_recvs`.
            producer.closed.store(1, Ordering::Release);
            send_lane.ring();
            self.shared.lane_users.retire();
            if self.shared.lane_users.leave() {
                send_lane.detach();
            }
        }
        self.waiters.notify();
    }

    /// Whether polling would likely find something.
    #[inline(always)]
    pub(super) fn is_ready(&self) -> bool {
        self.has_recv() || self.has_send()
    }

    #[inline(always)]
    fn has_recv(&self) -> bool {
        let rx = &self.shared.rx;
        let head = rx.head.load(Ordering::Relaxed);
        if !self.is_punched() && self.recv_lane.slot(head).is_published(head) {
            return self.can_receive();
        }
        let closed = self.recv_lane.head().producer.closed.load(Ordering::Relaxed) != 0;
        (closed || self.shared.state() == QpState::Err) && self.has_recv_at_end()
    }

    /// Whether a published entry can be taken.
    #[inline(always)]
    fn can_receive(&self) -> bool {
        match self.shared.state() {
            QpState::Rtr | QpState::Rts => true,
            _ => self.has_recv_at_end(),
        }
    }

    #[cold]
    fn has_recv_at_end(&self) -> bool {
        let rx = &self.shared.rx;
        match self.shared.state() {
            QpState::Reset | QpState::Init => false,
            // The peer has closed: polling puts this queue pair into the error state.
            QpState::Rtr | QpState::Rts => true,
            QpState::Err => rx.taken.load(Ordering::Relaxed) != rx.posted.load(Ordering::Relaxed),
        }
    }

    #[inline(always)]
    fn has_send(&self) -> bool {
        let events = self.shared.events.load(Ordering::Relaxed);
        events != 0 && (events & DONE != 0 || self.has_room(events))
    }

    /// Whether the peer has granted the request for room.
    #[cold]
    fn has_room(&self, events: u32) -> bool {
        events & ROOM_REQUESTED != 0
            && self
                .send_lane
                .get()
                .is_some_and(|send_lane| !send_lane.lane.head().producer.room_request.is_open())
    }
}
