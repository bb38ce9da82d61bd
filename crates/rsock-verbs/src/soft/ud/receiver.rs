//! The receiving end of a datagram lane: datagrams of one process arrive in a lane of the segment
//! that this process writes.
//!
//! The queue's owner and its forked children take from the lane under the queue's lock. Every entry
//! is checked on a private copy; an entry that no honest sender writes is skipped and counted.

use super::{MAX_LEN, SLOTS};
use crate::copy;
use crate::datagram::{Arrived, Sender};
use crate::error::Error;
use crate::family::{FamilyBox, FamilySafe};
use crate::soft::Link;
use crate::soft::creation_stamp::CreationStamp;
use crate::soft::layout::{self, DATAGRAMS, Entry, LANE_HEAD, LaneHead, REVOKED, STAGE};
use crate::soft::peer_copy;
use crate::soft::qp::lane::{self, Lane, LaneLocation};
use crate::soft::retired::RetiredLane;
use crate::soft::wait::{OwnedWaitLine, Waiters};
use crate::sync::slot::INLINE;
use crate::types::{Access, QKey, QpNum};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use zerocopy::IntoBytes;

/// One process's lane into a queue.
#[derive(Debug)]
pub(super) struct UdReceiver {
    lane: Lane,
    location: LaneLocation,
    heads: FamilyBox<Heads>,
    number: QpNum,
    created: CreationStamp,
    wait_line: Arc<OwnedWaitLine>,
    link: Arc<Link>,
}

/// How far the lane has been read. Written under the queue's lock.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Heads {
    slots: AtomicU32,
    stage: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl FamilySafe for Heads {}

/// What was found at the head of a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Nothing,
    Datagram,
    /// A datagram that the caller left in place.
    Left,
    Malformed,
}

/// A datagram in its slot, or on the stage.
struct Found<'a> {
    src: QpNum,
    sender: Sender,
    len: usize,
    at: At<'a>,
}

enum At<'a> {
    /// The slot's payload, copied.
    Slot([u64; INLINE / 8]),
    Stage(&'a Lane, u64),
}

impl Arrived for Found<'_> {
    fn src(&self) -> QpNum {
        self.src
    }

    fn sender(&self) -> Option<Sender> {
        Some(self.sender)
    }

    fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    fn copy_out(&self, offset: usize, dst: &mut [u8]) {
        let end = offset.checked_add(dst.len()).filter(|end| *end <= self.len);
        let end = end.unwrap_or_else(|| panic!("{} bytes at {offset} of {}", dst.len(), self.len));
        match &self.at {
            At::Slot(words) => copy_from_words(words, offset..end, dst),
            At::Stage(lane, start) => {
                let (first, run) = lane.stage(start + offset as u64);
                let (head, tail) = dst.split_at_mut(dst.len().min(run));
                // SAFETY: `run` bytes are on the stage from `first` on; the sender may write them
                // meanwhile, which only tears bytes.
                unsafe { copy::plain(first.as_ptr(), head.as_mut_ptr(), head.len()) };
                if !tail.is_empty() {
                    let (rest, _) = lane.stage(0);
                    // SAFETY: the stage continues at its beginning, and is longer than a datagram.
                    unsafe { copy::plain(rest.as_ptr(), tail.as_mut_ptr(), tail.len()) };
                }
            }
        }
    }
}

/// Copies bytes `span` of `words` to `dst`, which is as long. PERF: from the first byte or the
/// second word on, where almost every copy begins, without storing the words on the way: a load of
/// bytes that two stores have written waits for both.
#[inline(always)]
fn copy_from_words(words: &[u64; INLINE / 8], span: Range<usize>, dst: &mut [u8]) {
    let (to, len) = (dst.as_mut_ptr(), dst.len());
    // SAFETY: as many writable bytes, which are no more than the words have.
    let store = |words: &[u64; INLINE / 8]| unsafe { peer_copy::store_small(words, to, len) };
    let [_, b, c, d, e, f] = *words;
    match span.start {
        0 => store(words),
        8 => store(&[b, c, d, e, f, 0]),
        _ => dst.copy_from_slice(&words.as_bytes()[span]),
    }
}

const _: () = assert!(MAX_LEN < STAGE as usize);

impl UdReceiver {
    /// Creates and publishes a lane with `stage` bytes for the process at the other end of `link`.
    pub(super) fn open(
        link: &Arc<Link>,
        waiters: &Waiters,
        number: QpNum,
        key: QKey,
        stage: u32,
    ) -> Result<Self, Error> {
        link.check_owner()?;
        let room = || Error::Exhausted("segment");
        let heads = FamilyBox::new(Heads::default()).ok_or(Error::Exhausted("family memory"))?;
        let wait_line = waiters.wait_line(link)?;
        let head_at = link.alloc(LANE_HEAD)?;
        let location =
            LaneLocation { head_at, slots_at: 0, slots: SLOTS, stage, caps_at: 0, n_caps: 0 };
        let slots_at = link.alloc(location.len()).inspect_err(|_| link.free(head_at, LANE_HEAD))?;
        let location = LaneLocation { slots_at, ..location };
        let head = link.own_segment().at::<LaneHead>(head_at);
        let (Some(lane), Some(head)) = (Lane::at(link.own_segment(), &location), head) else {
            link.free(slots_at, location.len());
            link.free(head_at, LANE_HEAD);
            return Err(room());
        };
        head.consumer.posted.store(1, Ordering::Relaxed);
        let created = CreationStamp::now();
        let link = Arc::clone(link);
        // From here on `Drop` frees everything.
        let receiver = Self { lane, location, heads, number, created, wait_line, link };
        let access = Access::from_bits_retain(DATAGRAMS);
        let at = receiver.wait_line.at();
        let published = LaneLocation { caps_at: key.0.into(), ..location };
        lane::publish(receiver.link.own_segment(), number, &published, access, at)
            .ok_or_else(room)?;
        Ok(receiver)
    }

    /// Bytes of its stage.
    pub(super) fn stage_len(&self) -> u64 {
        self.lane.stage_len()
    }

    pub(super) fn is_from(&self, link: &Arc<Link>) -> bool {
        Arc::ptr_eq(&self.link, link)
    }

    pub(super) fn link(&self) -> &Link {
        &self.link
    }

    #[inline(always)]
    pub(super) fn is_ready(&self) -> bool {
        let head = self.heads.slots.load(Ordering::Relaxed);
        self.lane.slot(head).is_published(head)
    }

    /// Closes the lane. The sender notices at its next check, or at its next datagram.
    pub(super) fn close(&self) {
        // SYNC(closed): a sender that does not see the store yet publishes a datagram, which is
        // still taken. In this order: a sender that sees `closed` and then reads `posted` finds
        // that the queue takes no more.
        self.lane.head().consumer.posted.store(0, Ordering::Release);
        self.lane.head().producer.closed.store(1, Ordering::Release);
    }

    /// Passes the entry at the head to `take`, which returns whether it is taken. Called under the
    /// queue's lock.
    #[inline(always)]
    pub(super) fn take(&self, take: &mut impl FnMut(&dyn Arrived) -> bool) -> Taken {
        let head = self.heads.slots.load(Ordering::Relaxed);
        let slot = self.lane.slot(head);
        if !slot.is_published(head) {
            return Taken::Nothing;
        }
        let stage = self.heads.stage.load(Ordering::Relaxed);
        let (src, word) = slot.read();
        let found = match Entry::decode(word) {
            Some(Entry::SendInline { len }) => Some((len, At::Slot(slot.payload()))),
            Some(Entry::SendStaged { len }) if len as usize <= MAX_LEN => {
                Some((len, At::Stage(&self.lane, stage)))
            }
            _ => None,
        };
        let mut taken = Taken::Malformed;
        if let Some((len, at)) = found {
            let staged = matches!(at, At::Stage(..));
            let sender = self.link.sender();
            if !take(&Found { src: QpNum(src), sender, len: len as usize, at }) {
                return Taken::Left;
            }
            taken = Taken::Datagram;
            if staged {
                let stage = stage.wrapping_add(layout::staged_len(len.into()));
                self.heads.stage.store(stage, Ordering::Relaxed);
                // SYNC(stage): this process's reads come before. Pairs with the Acquire in
                // `UdSender::post`.
                self.lane.head().consumer.stage_head.store(stage, Ordering::Release);
            }
        }
        let head = head.wrapping_add(1);
        self.heads.slots.store(head, Ordering::Relaxed);
        // SYNC(slot-free): this process's reads come before. Pairs with the Acquire in
        // `UdSender::post`.
        self.lane.head().consumer.head.store(head, Ordering::Release);
        taken
    }
}

#[cfg(test)]
impl UdReceiver {
    /// Whether the queue is open, as a sender that has seen the lane closed finds; `None` before
    /// the lane is closed.
    pub(super) fn is_wanted_when_closed(&self) -> Option<bool> {
        let head = self.lane.head();
        let is_closed = head.producer.closed.load(Ordering::Acquire) != 0;
        is_closed.then(|| head.consumer.posted.load(Ordering::Acquire) != 0)
    }
}

impl Drop for UdReceiver {
    fn drop(&mut self) {
        // A child that drops what it inherited does not close its parent's queue.
        if !self.created.is_this_process() {
            return;
        }
        // Senders see it, and resolve the destination again.
        self.close();
        lane::withdraw(self.link.own_segment(), self.number);
        // A child that was forked meanwhile may be reading: then the memory is not reused.
        if !self.created.is_unshared() {
            return;
        }
        // Fails if a sender has claimed the lane: then the sender detaches from it later.
        let claim = &self.lane.head().producer.claim;
        let _ = claim.compare_exchange(0, REVOKED, Ordering::AcqRel, Ordering::Acquire);
        let spans =
            vec![(self.location.head_at, LANE_HEAD), (self.location.slots_at, self.location.len())];
        let _wait_line = Arc::clone(&self.wait_line);
        self.link.retire_lane(RetiredLane { head_at: self.location.head_at, spans, _wait_line });
    }
}
