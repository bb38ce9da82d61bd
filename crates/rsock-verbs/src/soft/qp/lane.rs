//! Pointers into the mapping of a lane, checked once: [`Lane`] for its owner, [`LaneProducer`] for
//! its sender.

use crate::error::Error;
use crate::soft::Link;
use crate::soft::layout::{
    LaneHead, MAX_SLOTS, MAX_STAGE, MIN_SLOTS, PAGE, QP_TABLE, QPS, QpEntry, REVOKED, STAGE,
};
use crate::soft::ready_set::this_cpu;
use crate::soft::segment::Mapping;
use crate::soft::wait::wake;
use crate::sync::slot::Slot;
use crate::sync::waiter::WaitLine;
use crate::types::{Access, QpNum};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Offsets and sizes of a lane's parts in a segment.
#[derive(Clone, Copy, Debug)]
pub(in crate::soft) struct LaneLocation {
    pub(in crate::soft) head_at: u64,
    pub(in crate::soft) slots_at: u64,
    pub(in crate::soft) slots: u32,
    /// Bytes of the stage, which follows the slots.
    pub(in crate::soft) stage: u32,
    pub(in crate::soft) caps_at: u64,
    /// Number of receive capacities; 0 if the lane has none.
    pub(in crate::soft) n_caps: u32,
}

impl LaneLocation {
    /// Bytes of the slots, whole pages.
    pub(in crate::soft) fn slots_len(&self) -> u64 {
        u64::from(self.slots) * size_of::<Slot>() as u64
    }

    /// Bytes to allocate for the receive capacities: pages of their own.
    pub(in crate::soft) fn caps_len(n_caps: u32) -> u64 {
        (u64::from(n_caps) * 4).max(PAGE)
    }

    /// Bytes of slots and stage.
    pub(in crate::soft) fn len(&self) -> u64 {
        self.slots_len() + u64::from(self.stage)
    }
}

/// # Invariants
/// All pointers lie inside one mapping of the link that the queue pair holds; `slots` has `mask +
/// 1` entries, `caps` has `caps_mask + 1` if it is there, and `stage` has `stage_mask + 1` bytes.
#[derive(Debug)]
pub(in crate::soft) struct Lane {
    head: NonNull<LaneHead>,
    slots: NonNull<Slot>,
    stage: NonNull<u8>,
    caps: Option<NonNull<AtomicU32>>,
    mask: u32,
    caps_mask: u32,
    stage_mask: u32,
}

// SAFETY: the pointers lead to atomics, and to bytes that are only copied raw.
unsafe impl Send for Lane {}
// SAFETY: as for `Send`.
unsafe impl Sync for Lane {}

impl Lane {
    /// The lane at `location`, if that is inside `mapping` and makes sense.
    pub(in crate::soft) fn at(mapping: &Mapping, location: &LaneLocation) -> Option<Self> {
        if !location.slots.is_power_of_two() || !(MIN_SLOTS..=MAX_SLOTS).contains(&location.slots) {
            return None;
        }
        if !location.stage.is_power_of_two() || !(STAGE..=MAX_STAGE).contains(&location.stage) {
            return None;
        }
        let stage_at = location.slots_at.checked_add(u64::from(location.slots) * 64)?;
        let caps = match location.n_caps {
            0 => None,
            n if n.is_power_of_two() => Some(mapping.slice(location.caps_at, n.into())?),
            _ => return None,
        };
        Some(Self {
            head: mapping.slice(location.head_at, 1)?,
            slots: mapping.slice(location.slots_at, location.slots.into())?,
            stage: mapping.bytes(stage_at, location.stage.into())?,
            caps,
            mask: location.slots - 1,
            caps_mask: location.n_caps.saturating_sub(1),
            stage_mask: location.stage - 1,
        })
    }

    #[inline(always)]
    pub(in crate::soft) fn head(&self) -> &LaneHead {
        // SAFETY: by the type's invariant.
        unsafe { self.head.as_ref() }
    }

    #[inline(always)]
    pub(in crate::soft) fn slot(&self, index: u32) -> &Slot {
        // SAFETY: the masked index is below the number of slots.
        let slot = unsafe { self.slots.add((index & self.mask) as usize) };
        // SAFETY: by the type's invariant.
        unsafe { slot.as_ref() }
    }

    pub(in crate::soft) fn n_slots(&self) -> u32 {
        self.mask + 1
    }

    /// Byte capacity of receive `index`; `None` if receives have no memory.
    #[inline(always)]
    pub(in crate::soft) fn cap(&self, index: u32) -> Option<&AtomicU32> {
        let caps = self.caps?;
        // SAFETY: the masked index is below the number of capacities.
        let cap = unsafe { caps.add((index & self.caps_mask) as usize) };
        // SAFETY: by the type's invariant.
        Some(unsafe { cap.as_ref() })
    }

    /// Pointer to byte `at` of the staged stream, and the number of bytes from there to the end of
    /// the stage.
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    pub(in crate::soft) fn stage(&self, at: u64) -> (NonNull<u8>, usize) {
        let i = at as u32 & self.stage_mask;
        // SAFETY: below the stage's size.
        (unsafe { self.stage.add(i as usize) }, (self.stage_mask - i) as usize + 1)
    }

    /// Bytes of the stage.
    pub(in crate::soft) fn stage_len(&self) -> u64 {
        u64::from(self.stage_mask) + 1
    }
}

/// What a queue pair sends into: the peer's lane, and the wait line that the peer's pollers sleep
/// on.
///
/// # Invariants
/// `wait_line` lies inside the link's mapping of the peer's segment.
#[derive(Debug)]
pub(in crate::soft) struct LaneProducer {
    pub(in crate::soft) lane: Lane,
    wait_line: NonNull<WaitLine>,
    link: Arc<Link>,
    pub(in crate::soft) access: Access,
}

// SAFETY: wait lines are made of atomics.
unsafe impl Send for LaneProducer {}
// SAFETY: as for `Send`.
unsafe impl Sync for LaneProducer {}

impl LaneProducer {
    /// Connects `number` to the peer's queue pair `dest`.
    pub(in crate::soft) fn connect(
        link: &Arc<Link>,
        number: QpNum,
        dest: QpNum,
    ) -> Result<Self, Error> {
        let none = Error::Invalid("the peer has no such queue pair");
        let theirs = link.peer_segment();
        let at = QP_TABLE + u64::from(dest.0 % QPS) * size_of::<QpEntry>() as u64;
        let Some(entry) = theirs.at::<QpEntry>(at) else { return Err(none) };
        // SYNC(qp-entry): pairs with the Release in `publish`.
        if dest.0 == 0 || entry.number.load(Ordering::Acquire) != dest.0 {
            // Changes nothing: the death of the peer fails every queue pair of the link, and the
            // caller holds the lock of this one.
            return Err(if link.has_hung_up() { Error::PeerGone } else { none });
        }
        // Read once each; checked on the copies.
        let location = LaneLocation {
            head_at: entry.head_at.load(Ordering::Relaxed),
            slots_at: entry.slots_at.load(Ordering::Relaxed),
            slots: entry.slots.load(Ordering::Relaxed),
            stage: entry.stage.load(Ordering::Relaxed),
            caps_at: entry.caps_at.load(Ordering::Relaxed),
            n_caps: entry.n_caps.load(Ordering::Relaxed),
        };
        let access = Access::from_bits_truncate(entry.access.load(Ordering::Relaxed));
        let wait_line = theirs.slice(entry.wait_at.load(Ordering::Relaxed), 1);
        let outside = Error::PeerViolation("a queue pair outside its segment");
        let (Some(lane), Some(wait_line)) = (Lane::at(theirs, &location), wait_line) else {
            return Err(outside);
        };
        let claim = &lane.head().producer.claim;
        match claim.compare_exchange(0, number.0, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(Self { lane, wait_line, link: Arc::clone(link), access }),
            Err(REVOKED) => Err(Error::PeerGone),
            Err(_) => Err(Error::Invalid("the peer's queue pair is connected to another")),
        }
    }

    /// Bytes that the peer's program has consumed, as the peer claims.
    pub(in crate::soft) fn consumed(&self) -> u64 {
        self.lane.head().consumer.consumed.load(Ordering::Acquire)
    }

    /// Wakes the peer's waiters after an entry was published or room was made. Must not be called
    /// once the lane may have been detached.
    #[inline(always)]
    pub(in crate::soft) fn ring(&self) {
        self.wake(self.take_waiters());
    }

    /// Detaches from the lane: the last access to it.
    pub(in crate::soft) fn detach(&self) {
        // SYNC(detach): pairs with the Acquire in `Link::reclaim`.
        self.lane.head().producer.detached.store(1, Ordering::Release);
    }

    /// Takes the armed bits of the peer's waiters, for [`Self::wake`].
    ///
    /// This writes the wait line, so the caller holds the sender's lock or is counted among the
    /// lane's users: the lane is detached only when there is neither, and afterwards the peer may
    /// reuse the line's memory.
    #[inline(always)]
    pub(in crate::soft) fn take_waiters(&self) -> u32 {
        // SAFETY: by the type's invariant.
        let line = unsafe { self.wait_line.as_ref() };
        let bits = line.ring();
        if bits != 0 {
            line.set_woken_from(this_cpu());
        }
        bits
    }

    /// Wakes the waiters that `bits` name. Called without the lock, since it takes system calls.
    /// Writes nothing but bits of a ready set: if the peer has reused the line's memory by now, it
    /// is woken for nothing.
    #[inline(always)]
    pub(in crate::soft) fn wake(&self, bits: u32) {
        if bits != 0 {
            // SAFETY: by the type's invariant.
            let line = unsafe { self.wait_line.as_ref() };
            wake(line, bits, self.link.peer_segment(), Some(self.link.doorbell_pipes()));
        }
    }
}

/// Publishes a queue pair for the peer to connect to.
pub(in crate::soft) fn publish(
    own: &Mapping,
    number: QpNum,
    location: &LaneLocation,
    access: Access,
    wait_at: u64,
) -> Option<()> {
    let entry = own_entry(own, number)?;
    entry.slots.store(location.slots, Ordering::Relaxed);
    entry.stage.store(location.stage, Ordering::Relaxed);
    entry.access.store(access.bits(), Ordering::Relaxed);
    entry.n_caps.store(location.n_caps, Ordering::Relaxed);
    entry.head_at.store(location.head_at, Ordering::Relaxed);
    entry.slots_at.store(location.slots_at, Ordering::Relaxed);
    entry.caps_at.store(location.caps_at, Ordering::Relaxed);
    entry.wait_at.store(wait_at, Ordering::Relaxed);
    // SYNC(qp-entry): publishes the fields. Pairs with the Acquire in `connect`.
    entry.number.store(number.0, Ordering::Release);
    Some(())
}

/// Withdraws the entry.
pub(in crate::soft) fn withdraw(own: &Mapping, number: QpNum) {
    if let Some(entry) = own_entry(own, number) {
        entry.number.store(0, Ordering::Release);
    }
}

fn own_entry(own: &Mapping, number: QpNum) -> Option<&QpEntry> {
    own.at(QP_TABLE + u64::from(number.0 % QPS) * size_of::<QpEntry>() as u64)
}
