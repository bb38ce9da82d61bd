//! The sending end of a datagram lane: a process's only way into one queue of another process,
//! shared by all its own queues.
//!
//! There is one for each link and destination, because a lane has one writing process. It notices
//! within a few milliseconds of sending that the queue or its process is gone; until then datagrams
//! are lost, as on any network.

use super::SLOTS;
use crate::clock;
use crate::copy;
use crate::datagram::{DatagramError, Posted};
use crate::error::Error;
use crate::family::{FamilyBox, Lock};
use crate::soft::Link;
use crate::soft::copy_policy::CopyPolicy;
use crate::soft::layout::{self, DATAGRAMS, QP_TABLE, QPS, QpEntry};
use crate::soft::line_writer::LineWriter;
use crate::soft::peer_copy;
use crate::soft::qp::lane::LaneProducer;
use crate::sync::slot::INLINE;
use crate::types::{QKey, QpNum};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io::IoSlice;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The writing end of a lane.
#[derive(Debug)]
pub(in crate::soft) struct UdSender {
    send_lane: LaneProducer,
    key: QKey,
    tx: FamilyBox<Lock<UdTx>>,
    link: Arc<Link>,
}

#[derive(Clone, Copy, Debug, Default)]
struct UdTx {
    /// Entries published.
    tail: u32,
    /// `tail` may grow to this.
    slot_end: u32,
    /// Staged bytes written, and staged bytes that the receiver had taken when last read.
    stage_tail: u64,
    stage_head: u64,
    /// When the receiver was last seen alive, in periods of [`CHECK_EVERY_MS`].
    checked: u64,
    /// Decides which copies use streaming stores.
    copy_policy: CopyPolicy,
    /// The lane is not accessed any more.
    is_over: bool,
}

/// How often a sender checks that the receiver is alive, in milliseconds. A check costs a system
/// call.
const CHECK_EVERY_MS: u64 = 8;

/// Address of the link, and number of the queue.
type Key = (usize, u32);

/// The senders of a process. A sender holds its link, so no other link can have the same address.
#[derive(Debug, Default)]
pub(in crate::soft) struct UdSenders(Mutex<HashMap<Key, Arc<UdSender>>>);

impl UdSenders {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Arc<UdSender>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Drops senders to queues or processes that are gone.
    pub(super) fn sweep(&self) {
        let gone: Vec<_> = self.lock().extract_if(|_, sender| !sender.is_alive()).collect();
        // Links may end here, so the lock is not held.
        drop(gone);
    }
}

impl UdSender {
    /// The sender to queue `dest` over `link`, created if there is none yet; it claims the lane as
    /// queue `own`.
    pub(super) fn to(link: &Arc<Link>, own: QpNum, dest: QpNum) -> Result<Arc<Self>, Error> {
        let key = (Arc::as_ptr(link).addr(), dest.0);
        link.check_owner()?;
        let senders = &link.node().ud_senders;
        let known = senders.lock().get(&key).map(Arc::clone);
        match known {
            Some(sender) if sender.is_alive() => return Ok(sender),
            // Its queue is gone; another queue may have its number now.
            Some(_) => senders.sweep(),
            None => {}
        }
        // One thread connects; the others find the sender that it made.
        match senders.lock().entry(key) {
            Entry::Occupied(made) => Ok(Arc::clone(made.get())),
            Entry::Vacant(place) => Ok(Arc::clone(place.insert(Self::connect(link, own, dest)?))),
        }
    }

    fn connect(link: &Arc<Link>, own: QpNum, dest: QpNum) -> Result<Arc<Self>, Error> {
        let at = QP_TABLE + u64::from(dest.0 % QPS) * size_of::<QpEntry>() as u64;
        let none = Error::Invalid("the peer has no such queue, or has not admitted this process");
        let Some(entry) = link.peer_segment().at::<QpEntry>(at) else { return Err(none) };
        // SYNC(qp-entry): pairs with the Release in `publish`.
        if entry.number.load(Ordering::Acquire) != dest.0
            || entry.access.load(Ordering::Relaxed) & DATAGRAMS == 0
        {
            return Err(if link.probe() { none } else { Error::PeerGone });
        }
        #[expect(clippy::cast_possible_truncation, reason = "a key is 32 bits")]
        let key = QKey(entry.caps_at.load(Ordering::Relaxed) as u32);
        let tx = UdTx { slot_end: SLOTS, ..UdTx::default() };
        let tx = FamilyBox::new(Lock::new(tx)).ok_or(Error::Exhausted("family memory"))?;
        let send_lane = LaneProducer::connect(link, own, dest)?;
        if send_lane.lane.n_slots() != SLOTS {
            return Err(Error::PeerViolation("a lane of another size"));
        }
        Ok(Arc::new(Self { send_lane, key, tx, link: Arc::clone(link) }))
    }

    /// The receiver's Q_Key.
    pub(super) fn key(&self) -> QKey {
        self.key
    }

    /// Publishes a datagram of `len` bytes, the pieces' sum, if there is room. `src` is the sending
    /// queue, and the number of datagrams that it has received.
    #[inline]
    pub(super) fn post(
        &self,
        src: (QpNum, u64),
        payload: &[IoSlice<'_>],
        len: usize,
    ) -> Result<Posted, DatagramError> {
        self.publish(&mut self.tx.lock(), src, payload, len)
    }

    /// As [`Self::post`], and wakes the receiver's waiters.
    #[inline(always)]
    pub(super) fn send(
        &self,
        src: (QpNum, u64),
        payload: &[IoSlice<'_>],
        len: usize,
    ) -> Result<Posted, DatagramError> {
        let mut tx = self.tx.lock();
        let posted = self.publish(&mut tx, src, payload, len)?;
        let waiters = self.send_lane.take_waiters();
        drop(tx);
        self.send_lane.wake(waiters);
        Ok(posted)
    }

    /// Publishes a datagram. Unless it fails, this end has not detached from the lane.
    #[inline(always)]
    fn publish(
        &self,
        tx: &mut UdTx,
        (src, received): (QpNum, u64),
        payload: &[IoSlice<'_>],
        len: usize,
    ) -> Result<Posted, DatagramError> {
        // SYNC(closed): pairs with the Release in `UdReceiver::close`. This process writes that
        // cache line, so it is cached.
        if self.send_lane.lane.head().producer.closed.load(Ordering::Acquire) != 0 {
            return self.check_receiver_now(tx, 0).map(|()| Posted::Lost);
        }
        self.check_receiver(tx)?;
        let consumer = &self.send_lane.lane.head().consumer;
        if tx.slot_end == tx.tail {
            // SYNC(slot-free): the receiver has read the slots below. Pairs with the Release in
            // `UdReceiver::take`. A receiver that stores a false value has its own lane
            // overwritten.
            tx.slot_end = consumer.head.load(Ordering::Acquire).wrapping_add(SLOTS);
            if tx.slot_end == tx.tail {
                return Ok(Posted::Lost);
            }
        }
        let slot = self.send_lane.lane.slot(tx.tail);
        #[expect(clippy::cast_possible_truncation, reason = "checked by the queue")]
        let short = len as u32;
        if len <= INLINE {
            let words = gather_small(payload);
            slot.publish(tx.tail, src.0, layout::Entry::SendInline { len: short }.encode(), &words);
        } else {
            let (stage, whole) = (self.send_lane.lane.stage_len(), layout::staged_len(len as u64));
            if tx.stage_tail.wrapping_sub(tx.stage_head).saturating_add(whole) > stage {
                // SYNC(stage): as for slots.
                tx.stage_head = consumer.stage_head.load(Ordering::Acquire);
                if tx.stage_tail.wrapping_sub(tx.stage_head).saturating_add(whole) > stage {
                    return Ok(Posted::Lost);
                }
            }
            let streams = len >= tx.copy_policy.stream_from(len, received);
            self.stage(tx.stage_tail, payload, streams);
            tx.stage_tail = tx.stage_tail.wrapping_add(whole);
            let entry = layout::Entry::SendStaged { len: short };
            slot.publish_bare(tx.tail, src.0, entry.encode());
        }
        tx.tail = tx.tail.wrapping_add(1);
        Ok(Posted::Out)
    }

    /// Wakes the receiver's waiters, unless this end has detached from the lane: the memory of its
    /// wait line may have been reused.
    #[inline]
    pub(super) fn ring(&self) {
        let tx = self.tx.lock();
        let waiters = if tx.is_over { 0 } else { self.send_lane.take_waiters() };
        drop(tx);
        self.send_lane.wake(waiters);
    }

    /// Copies the pieces to the stage from byte `start` on, where there is room for them.
    fn stage(&self, start: u64, payload: &[IoSlice<'_>], streams: bool) {
        let lane = &self.send_lane.lane;
        if streams {
            // SAFETY: the stage is whole lines and aligned, and datagrams begin with a line.
            let mut lines = unsafe { LineWriter::new(|at| lane.stage(start.wrapping_add(at))) };
            payload.iter().for_each(|piece| lines.write(piece));
            return lines.finish();
        }
        let mut to = start;
        for piece in payload {
            let mut rest: &[u8] = piece;
            while !rest.is_empty() {
                let (place, run) = lane.stage(to);
                let (now, later) = rest.split_at(rest.len().min(run));
                // SAFETY: `now` is readable, and `run` bytes of the stage are writable at `place`.
                unsafe { copy::plain(now.as_ptr(), place.as_ptr(), now.len()) };
                to = to.wrapping_add(now.len() as u64);
                rest = later;
            }
        }
    }

    /// Checks from time to time that the receiver is alive.
    #[inline]
    fn check_receiver(&self, tx: &mut UdTx) -> Result<(), DatagramError> {
        let now = clock::coarse();
        let ms = now.as_secs() * 1000 + u64::from(now.subsec_millis());
        let now = ms / CHECK_EVERY_MS + 1;
        if tx.checked == now && !tx.is_over { Ok(()) } else { self.check_receiver_now(tx, now) }
    }

    #[cold]
    fn check_receiver_now(&self, tx: &mut UdTx, now: u64) -> Result<(), DatagramError> {
        let head = self.send_lane.lane.head();
        if tx.is_over {
            return Err(DatagramError::Gone);
        }
        // SYNC(closed): pairs with the Release in `UdReceiver::drop`.
        if head.consumer.posted.load(Ordering::Acquire) == 0 || !self.link.probe() {
            tx.is_over = true;
            // SYNC(detach): this process's last access. Pairs with the Acquire in `Link::reclaim`.
            head.producer.detached.store(1, Ordering::Release);
            return Err(DatagramError::Gone);
        }
        tx.checked = now;
        Ok(())
    }

    /// Whether the queue and its process are alive; costs a system call.
    fn is_alive(&self) -> bool {
        let mut tx = self.tx.lock();
        self.check_receiver_now(&mut tx, 0).is_ok()
    }
}

#[cfg(test)]
impl UdSender {
    /// Holds the lock under which a thread writes the lane.
    pub(super) fn write_for_long(&self) -> impl Sized {
        self.tx.lock()
    }

    /// Publishes an entry of any content, as a hostile sender would.
    pub(super) fn forge(&self, src: u32, word: u64) {
        let mut tx = self.tx.lock();
        self.send_lane.lane.slot(tx.tail).publish_bare(tx.tail, src, word);
        tx.tail = tx.tail.wrapping_add(1);
        self.send_lane.ring();
    }
}

/// The pieces, at most [`INLINE`] bytes together, as words.
#[inline(always)]
fn gather_small(payload: &[IoSlice<'_>]) -> [u64; INLINE / 8] {
    if let [front, rest] = payload
        && let Ok(front) = <[u8; 8]>::try_from(&**front)
    {
        // PERF: the usual header, without storing the bytes on the way.
        // SAFETY: readable, and no more than `INLINE` bytes by the caller's check.
        let [a, b, c, d, e, _] = unsafe { peer_copy::load_small(rest.as_ptr(), rest.len()) };
        return [u64::from_ne_bytes(front), a, b, c, d, e];
    }
    let mut bytes = [0u8; INLINE];
    let mut at = 0;
    for piece in payload {
        bytes[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    let mut words = [0; INLINE / 8];
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
    }
    words
}
