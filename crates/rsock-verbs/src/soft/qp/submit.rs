//! Submits a request: copies its payload to the peer, then publishes an entry in the peer's lane.
//!
//! Everything here runs under the send lock. Numbers that the peer wrote (its table of regions, its
//! progress) are read once and checked; a peer that writes false ones corrupts its own lane.

use super::QpCore;
use super::lane::LaneProducer;
use super::shared::{ROOM_REQUESTED, Tx};
use crate::fault;
use crate::soft::layout::Entry;
use crate::soft::peer_copy;
use crate::soft::regions::{RemoteRegion, Target};
use crate::sync::slot::INLINE;
use crate::types::{Access, RKey, RemoteAddr};
use crate::wc::WcStatus;
use crate::wr::{SendOp, Sge};
use std::ptr;
use std::sync::atomic::Ordering;

/// Outcome of an attempt to submit a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Submitted {
    /// Copied without an entry (RDMA WRITE).
    Silent,
    /// An entry was published.
    Announced,
    /// No free slot, or the peer has posted no receive; it was asked to ring.
    NoRoom,
    /// The request cannot be executed; the queue pair fails with this status.
    Failed(WcStatus),
    /// The payload is not mapped; nothing was published.
    Fault,
}

/// Why a payload cannot be written now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It never can: the queue pair fails with this status.
    Status(WcStatus),
    /// The owner of the lane keeps its sender out for a short time.
    Paused,
    /// The payload is not mapped.
    Fault,
}

impl From<WcStatus> for Refusal {
    fn from(status: WcStatus) -> Self {
        Self::Status(status)
    }
}

impl QpCore {
    /// Tries to submit one request, which has been checked.
    ///
    /// # Safety
    /// The pieces name readable memory, or memory that is not mapped, `len` bytes in all.
    pub(super) unsafe fn submit(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        op: &SendOp,
        sges: &[Sge],
        len: u64,
    ) -> Submitted {
        match *op {
            SendOp::Write { remote, rkey } => {
                let write = |tx: &mut Tx| {
                    // SAFETY: the caller's promise is the same.
                    let write =
                        |tx: &mut Tx| unsafe { self.write(tx, send_lane, remote, rkey, sges, len) };
                    self.with_copy_guard(tx, send_lane, Err(Refusal::Paused), write)
                };
                match self.retry_if_paused(tx, send_lane, write) {
                    Ok(()) => Submitted::Silent,
                    Err(short) => short,
                }
            }
            SendOp::WriteImm { remote, rkey, imm } => {
                if self.is_short(tx, send_lane) {
                    return Submitted::NoRoom;
                }
                // The entry is published before the copy guard ends: an owner that sees no copy
                // under way and an empty lane may take the memory for unused.
                let announce = |tx: &mut Tx| {
                    // SAFETY: the caller's promise is the same.
                    let made = unsafe { self.write_imm(tx, send_lane, remote, rkey, sges, len) };
                    let (entry, words) = made?;
                    send_lane.lane.slot(tx.tail).publish(tx.tail, imm, entry.encode(), &words);
                    Ok(())
                };
                let write = |tx: &mut Tx| {
                    self.with_copy_guard(tx, send_lane, Err(Refusal::Paused), announce)
                };
                if let Err(short) = self.retry_if_paused(tx, send_lane, write) {
                    return short;
                }
                tx.tail = tx.tail.wrapping_add(1);
                tx.msgs = tx.msgs.wrapping_add(1);
                Submitted::Announced
            }
            // SAFETY: the caller's promise is the same.
            SendOp::Send => unsafe { self.submit_send(tx, send_lane, sges, len) },
        }
    }

    /// Runs `write`. While the lane's owner keeps its sender out, which is short, runs it again and
    /// again; if that takes long, asks the owner to ring.
    #[inline(always)]
    pub(super) fn retry_if_paused<R>(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        write: impl Fn(&mut Tx) -> Result<R, Refusal>,
    ) -> Result<R, Submitted> {
        /// A pause is two system calls, unless its thread lost the CPU. A hostile owner gains a
        /// delay of so many yields for each request.
        const YIELDS: u32 = 100;
        let mut written = write(tx);
        for _ in 0..YIELDS {
            if !matches!(written, Err(Refusal::Paused)) {
                break;
            }
            rustix::thread::sched_yield();
            written = write(tx);
        }
        if matches!(written, Err(Refusal::Paused)) {
            // SYNC(room-request): if the peer ended the pause before it could see the request, this
            // last attempt sees that.
            self.request_room(send_lane);
            written = write(tx);
        }
        let refusal = match written {
            Ok(written) => return Ok(written),
            Err(refusal) => refusal,
        };
        Err(match refusal {
            Refusal::Status(status) => Submitted::Failed(status),
            Refusal::Fault => Submitted::Fault,
            Refusal::Paused => Submitted::NoRoom,
        })
    }

    /// Whether there is no room for one more entry and message. The peer has then been asked to
    /// ring when there is.
    #[inline(always)]
    fn is_short(&self, tx: &mut Tx, send_lane: &LaneProducer) -> bool {
        (tx.tail == tx.slot_end || tx.msgs == tx.posted) && self.is_short_of_progress(tx, send_lane)
    }

    #[cold]
    fn is_short_of_progress(&self, tx: &mut Tx, send_lane: &LaneProducer) -> bool {
        if has_room(tx, send_lane) {
            return false;
        }
        self.request_room(send_lane);
        // SYNC(room-request): see `request_room`; room that was made before the peer could see the
        // request is seen here.
        let is_short = !has_room(tx, send_lane);
        if !is_short {
            self.withdraw_room_request(send_lane);
        }
        is_short
    }

    /// Asks the peer to ring when it has taken entries or posted receives.
    #[cold]
    pub(super) fn request_room(&self, send_lane: &LaneProducer) {
        let events = self.shared.events.load(Ordering::Relaxed);
        let want = &send_lane.lane.head().producer.room_request;
        if events & ROOM_REQUESTED != 0 && want.is_open() {
            return;
        }
        self.shared.events.store(events | ROOM_REQUESTED, Ordering::Relaxed);
        want.ask(|| self.heavy_fence());
    }

    #[cold]
    pub(super) fn withdraw_room_request(&self, send_lane: &LaneProducer) {
        send_lane.lane.head().producer.room_request.withdraw();
        let events = self.shared.events.load(Ordering::Relaxed);
        self.shared.events.store(events & !ROOM_REQUESTED, Ordering::Relaxed);
    }

    /// Copies the payload of a WRITE WITH IMMEDIATE, or puts it into the slot if it is small;
    /// returns the entry and the slot's payload.
    ///
    /// # Safety
    /// As [`Self::submit`].
    #[inline]
    pub(super) unsafe fn write_imm(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        remote: RemoteAddr,
        rkey: RKey,
        sges: &[Sge],
        len: u64,
    ) -> Result<(Entry, [u64; INLINE / 8]), Refusal> {
        let none = [0; INLINE / 8];
        #[expect(clippy::cast_possible_truncation, reason = "at most MAX_WRITE")]
        let short = len as u32;
        if len == 0 {
            return Ok((Entry::WriteImm { len: 0 }, none));
        }
        if len <= INLINE as u64
            && let Target::Segment(at) = self.target(tx, send_lane, remote, rkey, len)?
        {
            // SAFETY: the caller's promise; at most INLINE bytes.
            let words = unsafe { gather_small(sges) }.ok_or(Refusal::Fault)?;
            return Ok((Entry::WriteImmInline { at, len: short }, words));
        }
        // SAFETY: the caller's promise is the same.
        unsafe { self.write(tx, send_lane, remote, rkey, sges, len) }?;
        Ok((Entry::WriteImm { len: short }, none))
    }

    /// Copies a payload to its target in the peer's memory; the last byte is stored last. The
    /// caller holds the copy guard.
    ///
    /// # Safety
    /// As [`Self::submit`].
    pub(super) unsafe fn write(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        remote: RemoteAddr,
        rkey: RKey,
        sges: &[Sge],
        len: u64,
    ) -> Result<(), Refusal> {
        if len == 0 {
            return Ok(());
        }
        match self.target(tx, send_lane, remote, rkey, len)? {
            Target::Segment(at) => {
                let to = self.link.peer_segment().bytes(at, len).ok_or(WcStatus::REM_ACCESS)?;
                let total = usize::try_from(len).unwrap_or(usize::MAX);
                let from = tx.copy_policy.stream_from(total, self.n_received());
                // SAFETY: the pieces are readable by the caller's promise, and `len` bytes are
                // writable at `to`.
                let is_there = unsafe { gather(sges, to.as_ptr(), from) };
                if is_there { Ok(()) } else { Err(Refusal::Fault) }
            }
            Target::Foreign(at) => {
                // SAFETY: the caller's promise is the same.
                let written = unsafe { self.link.foreign().write(at, sges, len) };
                if written { Ok(()) } else { Err(WcStatus::REM_ACCESS.into()) }
            }
        }
    }

    /// Looks the target of a WRITE up in the peer's table.
    #[inline(always)]
    pub(super) fn target(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        remote: RemoteAddr,
        rkey: RKey,
        len: u64,
    ) -> Result<Target, Refusal> {
        let peer_segment = self.link.peer_segment();
        if !tx.region.is_current(peer_segment, rkey) {
            // A region is cached only if the peer's queue pair is open to writes.
            if !send_lane.access.contains(Access::REMOTE_WRITE) {
                return Err(WcStatus::REM_ACCESS.into());
            }
            tx.region = RemoteRegion::look_up(peer_segment, rkey)?;
        }
        tx.region.target(remote.0, len).ok_or(Refusal::Status(WcStatus::REM_ACCESS))
    }

    /// Messages that the peer has sent and this end has taken, wrapping.
    #[inline(always)]
    pub(super) fn n_received(&self) -> u64 {
        self.shared.rx.taken.load(Ordering::Relaxed).into()
    }

    /// Runs `f` inside the lane's copy guard: the owner of a region or of the lane reuses the
    /// memory only after the guard has ended. Returns `paused`, without running `f`, while the
    /// owner keeps the sender out.
    #[inline(always)]
    pub(super) fn with_copy_guard<R>(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        paused: R,
        f: impl FnOnce(&mut Tx) -> R,
    ) -> R {
        let guard = &send_lane.lane.head().copier.guard;
        let may_write = guard.begin(&mut tx.copy_count, || self.light_fence());
        let done = if may_write { f(tx) } else { paused };
        guard.end(&mut tx.copy_count);
        done
    }

    /// # Safety
    /// As [`Self::submit`]; at most INLINE bytes.
    unsafe fn submit_send(
        &self,
        tx: &mut Tx,
        send_lane: &LaneProducer,
        sges: &[Sge],
        len: u64,
    ) -> Submitted {
        if self.is_short(tx, send_lane) {
            return Submitted::NoRoom;
        }
        #[expect(clippy::cast_possible_truncation, reason = "at most INLINE")]
        let len = len as u32;
        let publish = |tx: &mut Tx| {
            let slot = send_lane.lane.slot(tx.tail);
            // A receive that is too short is detected before anything is sent.
            if send_lane.lane.cap(tx.msgs).is_some_and(|c| c.load(Ordering::Relaxed) < len) {
                slot.publish_bare(tx.tail, 0, Entry::SendTooLong.encode());
                tx.tail = tx.tail.wrapping_add(1);
                return Err(Refusal::Status(WcStatus::REM_INV_REQ));
            }
            // SAFETY: the caller's promise; at most INLINE bytes.
            let words = unsafe { gather_small(sges) }.ok_or(Refusal::Fault)?;
            slot.publish(tx.tail, 0, Entry::SendInline { len }.encode(), &words);
            Ok(())
        };
        let write =
            |tx: &mut Tx| self.with_copy_guard(tx, send_lane, Err(Refusal::Paused), publish);
        if let Err(short) = self.retry_if_paused(tx, send_lane, write) {
            return short;
        }
        tx.tail = tx.tail.wrapping_add(1);
        tx.msgs = tx.msgs.wrapping_add(1);
        Submitted::Announced
    }
}

/// Reads the peer's progress again; returns whether there is room for one more message.
fn has_room(tx: &mut Tx, send_lane: &LaneProducer) -> bool {
    let consumer = &send_lane.lane.head().consumer;
    // SYNC(slot-free): the peer has read the slots below. Pairs with the Release in
    // `QpCore::publish_head`. A peer that stores a false value has its own lane overwritten.
    tx.slot_end = consumer.head.load(Ordering::Acquire).wrapping_add(send_lane.lane.n_slots());
    // SYNC(posted): the peer is ready for these. Pairs with the Release in `QpCore::post_recv`.
    tx.posted = consumer.posted.load(Ordering::Acquire);
    tx.msgs != tx.posted && tx.slot_end != tx.tail
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "addresses are as wide as usize here")]
pub(super) fn address(addr: u64) -> usize {
    const { assert!(size_of::<usize>() == 8) };
    addr as usize
}

/// Copies the pieces, in order, to `to`; the last byte is stored last, for readers that spin on it.
/// False if a piece is not mapped.
///
/// # Safety
/// The pieces name readable memory, or memory that is not mapped; as many bytes as they have
/// together are writable at `to`.
#[inline]
unsafe fn gather(sges: &[Sge], mut to: *mut u8, stream_from: usize) -> bool {
    let Some(last) = sges.iter().rposition(|sge| sge.len != 0) else { return true };
    for sge in &sges[..last] {
        let src = ptr::with_exposed_provenance(address(sge.addr));
        let len = sge.len as usize;
        // SAFETY: the caller's promise.
        if !unsafe { peer_copy::to_peer(src, to, len, stream_from) } {
            return false;
        }
        // SAFETY: the pieces' sum is writable.
        to = unsafe { to.add(len) };
    }
    let src = ptr::with_exposed_provenance(address(sges[last].addr));
    let len = sges[last].len as usize;
    // SAFETY: the caller's promise.
    unsafe { peer_copy::to_peer_last(src, to, len, stream_from) }
}

/// The pieces' bytes as words; `None` if a piece is not mapped.
///
/// # Safety
/// The pieces name readable memory, or memory that is not mapped, at most INLINE bytes together.
#[inline]
unsafe fn gather_small(sges: &[Sge]) -> Option<[u64; INLINE / 8]> {
    if let [sge] = sges {
        let src = ptr::with_exposed_provenance(address(sge.addr));
        // SAFETY: the caller's promise.
        return unsafe { peer_copy::try_load_small(src, sge.len as usize) };
    }
    let mut bytes = [0u8; INLINE];
    let mut at = 0;
    for sge in sges {
        let part = &mut bytes[at..at + sge.len as usize];
        let src = ptr::with_exposed_provenance(address(sge.addr));
        // SAFETY: readable by the caller's promise; `part` is a local array of that length.
        if !unsafe { fault::copy(src, part.as_mut_ptr(), part.len()) } {
            return None;
        }
        at += part.len();
    }
    // SAFETY: the array has INLINE bytes.
    Some(unsafe { peer_copy::load_small(bytes.as_ptr(), INLINE) })
}
