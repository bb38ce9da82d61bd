//! The mutable state of a queue pair, in family memory: a forked child continues where its parent
//! stopped. Senders and receivers write separate cache lines.

use crate::family::{FamilySafe, Lock};
use crate::soft::copy_policy::CopyPolicy;
use crate::soft::regions::RemoteRegion;
use crate::sync::lane_users::LaneUsers;
use crate::types::QpState;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Send completions are ready to be polled.
pub(super) const DONE: u32 = 1;
/// A send was refused for lack of room; the peer has been asked to ring when there is some.
pub(super) const ROOM_REQUESTED: u32 = 1 << 2;

#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct QpShared {
    /// Read by every operation, written when the state changes.
    state: AtomicU32,
    /// [`DONE`], [`ROOM_REQUESTED`]. Written under `tx`.
    pub(super) events: AtomicU32,
    /// Access that the peer has, as published in this queue pair's entry.
    pub(super) peer_access: AtomicU32,
    /// Threads that use the peer's lane without `tx`.
    pub(super) lane_users: LaneUsers,
    pub(super) rx: Rx,
    pub(super) tx: Line<Lock<Tx>>,
}

/// A value on cache lines of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Line<T>(pub(super) T);

/// The receiving half. Written by the poller, but `posted` by the thread that posts receives.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Rx {
    /// Entries taken from the lane.
    pub(super) head: AtomicU32,
    /// Messages taken, which is also the number of receives used.
    pub(super) taken: AtomicU32,
    /// Receives posted.
    pub(super) posted: AtomicU32,
    /// In the error state: entries below this are still received, later ones are not.
    pub(super) drain_until: AtomicU32,
    /// Bytes that the program has consumed, as published for the peer.
    pub(super) consumed: AtomicU64,
    /// Whether the lane's pages have been given back, and nothing was taken from the lane since.
    pub(super) punched: Punched,
}

/// Whether a lane's pages have been given back. Even a look at one of its slots would allocate its
/// page again, so that a poller of many idle lanes looks at their copy guards.
#[derive(Debug, Default)]
pub(super) struct Punched(AtomicU32);

impl Punched {
    /// The lane was punched while its copy guard had this `count`, which is even.
    pub(super) fn set(&self, count: u32) {
        // Not 0, which stands for a lane that was not punched.
        self.0.store(count | 1, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn clear(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether the lane is empty, because it was punched and `count`, which reads its copy guard,
    /// has not changed: the peer begins the guard before it publishes an entry.
    #[inline(always)]
    pub(super) fn is_empty(&self, count: impl FnOnce() -> u32) -> bool {
        match self.0.load(Ordering::Relaxed) {
            0 => false,
            punched if count() == punched & !1 => true,
            _ => {
                self.clear();
                false
            }
        }
    }
}

/// The sending half.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tx {
    /// Entries published in the peer's lane.
    pub(super) tail: u32,
    /// Messages among them that use a receive.
    pub(super) msgs: u32,
    /// `tail` may grow to this: the peer's head when last read, plus its slots.
    pub(super) slot_end: u32,
    /// `msgs` may grow to this: receives that the peer had posted when last read.
    pub(super) posted: u32,
    /// Outcomes of sends that were polled, and all of them.
    pub(super) done_head: u32,
    pub(super) done_tail: u32,
    /// The region that was written last.
    pub(super) region: RemoteRegion,
    /// Private copy of the lane's copy guard count.
    pub(super) copy_count: u32,
    /// Decides which copies use streaming stores.
    pub(super) copy_policy: CopyPolicy,
    /// In the error state: what the peer had consumed, because its lane is not read any more.
    pub(super) consumed: u64,
}

// SAFETY: atomics, and locks around plain values.
unsafe impl FamilySafe for QpShared {}

impl QpShared {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU32::new(QpState::Reset as u32),
            events: AtomicU32::new(0),
            peer_access: AtomicU32::new(0),
            lane_users: LaneUsers::new(),
            rx: Rx::default(),
            tx: Line(Lock::new(Tx::default())),
        }
    }

    #[inline(always)]
    pub(super) fn state(&self) -> QpState {
        // SYNC(qp-state): pairs with the Release in `set_state`.
        match self.state.load(Ordering::Acquire) {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::Rtr,
            3 => QpState::Rts,
            _ => QpState::Err,
        }
    }

    /// Called under the lock of `tx`.
    pub(super) fn set_state(&self, state: QpState) {
        // SYNC(qp-state): a thread that sees the state sees everything set up for it.
        self.state.store(state as u32, Ordering::Release);
    }
}
