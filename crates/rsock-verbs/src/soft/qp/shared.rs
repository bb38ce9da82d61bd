//! The mutable state of a queue pair, in family memory: a forked child goes on where its parent
//! stopped. What each line is written by keeps senders and receivers off each other's lines.

use crate::family::{FamilySafe, Lock};
use crate::soft::copy_policy::CopyPolicy;
use crate::soft::regions::RemoteRegion;
use crate::sync::lane_users::LaneUsers;
use crate::types::QpState;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Send completions wait to be polled.
pub(super) const DONE: u32 = 1;
/// Sends wait to be placed.
pub(super) const PENDING: u32 = 1 << 1;
/// A send was refused for lack of room; the peer has been asked to say when there is some.
pub(super) const ROOM_REQUESTED: u32 = 1 << 2;

#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct QpShared {
    /// Read by everyone, written on transitions.
    state: AtomicU32,
    /// [`DONE`], [`PENDING`], [`ROOM_REQUESTED`]. Written under `tx`.
    pub(super) events: AtomicU32,
    /// What the peer may do, for the peer's look at our entry; kept here for ours.
    pub(super) peer_access: AtomicU32,
    /// Retries without a receive at the peer; 7 is without end.
    pub(super) rnr_retry: AtomicU32,
    /// Threads that use the peer's lane without `tx`.
    pub(super) lane_users: LaneUsers,
    pub(super) rx: Rx,
    pub(super) tx: Line<Lock<Tx>>,
}

/// A value on lines of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Line<T>(pub(super) T);

/// The receiving half. Written by the poller, but `posted` by whoever posts receives.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Rx {
    /// Entries taken from the lane.
    pub(super) head: AtomicU32,
    /// Messages taken, and so receives used.
    pub(super) taken: AtomicU32,
    /// Receives posted.
    pub(super) posted: AtomicU32,
    /// With a shared receive queue: a receive was taken from it for the message under way.
    pub(super) holding: AtomicU32,
    /// Bytes of the SEND under way that have been scattered.
    pub(super) scattered: AtomicU32,
    /// In the error state: entries below this still arrive, those above do not.
    pub(super) drain_until: AtomicU32,
    /// Staged bytes taken.
    pub(super) stage_head: AtomicU64,
    /// Bytes that the program has consumed, for the peer to look at.
    pub(super) consumed: AtomicU64,
}

/// The sending half.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tx {
    /// Entries published in the peer's lane.
    pub(super) tail: u32,
    /// Messages among them that use a receive.
    pub(super) msgs: u32,
    /// `tail` may grow to this: the peer's head when last looked, and its slots.
    pub(super) slot_end: u32,
    /// `msgs` may grow to this: receives that the peer had posted when last looked.
    pub(super) posted: u32,
    /// Staged bytes written, and taken by the peer when last looked.
    pub(super) stage_tail: u64,
    pub(super) stage_head: u64,
    /// The send queue: polled < placed < posted.
    pub(super) sq_head: u32,
    pub(super) sq_mid: u32,
    pub(super) sq_tail: u32,
    /// Bytes of the first pending SEND that are out.
    pub(super) sent: u32,
    /// The region that was written last.
    pub(super) region: RemoteRegion,
    /// Copy of what the lane's busy word holds.
    pub(super) copy_count: u32,
    /// Which copies stream.
    pub(super) copy_policy: CopyPolicy,
    /// [`Rx::taken`] when we last copied: whether the peer has answered since.
    pub(super) taken_then: u32,
    /// When a pending request without a receive at the peer fails; monotonic nanoseconds, or 0.
    pub(super) rnr_deadline: u64,
    /// In the error state: what the peer had consumed, for its lane is not looked at any more.
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
            rnr_retry: AtomicU32::new(7),
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

    /// Under `tx`.
    pub(super) fn set_state(&self, state: QpState) {
        // SYNC(qp-state): whoever sees the state sees what was set up for it.
        self.state.store(state as u32, Ordering::Release);
    }
}
