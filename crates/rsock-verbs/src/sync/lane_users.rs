//! Detaching from a peer's lane that several threads may be using: the last thread detaches.
//!
//! A thread that uses the lane without the sender's lock enters, checks whether the queue pair has
//! failed, and leaves. The thread that fails the queue pair enters too, marks it as failed,
//! finishes with the lane, calls [`LaneUsers::retire`], and leaves. Exactly one call of
//! [`LaneUsers::leave`] returns true: its caller detaches from the lane, and no thread uses it
//! after that.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// The lane is to be detached from.
const DUE: u32 = 1 << 31;

/// # Invariants
/// The low bits count the threads inside. [`DUE`] is set at most once, after the failure was
/// marked, and taken once.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct LaneUsers<P: Platform = Native> {
    word: P::U32,
}

impl<P: Platform> LaneUsers<P> {
    pub(crate) fn new() -> Self {
        Self { word: P::U32::new(0) }
    }

    /// Called before the check whether the queue pair has failed.
    pub(crate) fn enter(&self) {
        // SYNC(lane-users): a thread that enters after `retire` sees the failure: pairs with the
        // Release there. A thread that enters before is counted when the failing thread leaves.
        self.word.fetch_add(1, Ordering::Acquire);
    }

    /// Called after the failure was marked; [`Self::leave`] follows.
    pub(crate) fn retire(&self) {
        self.word.fetch_or(DUE, Ordering::Release);
    }

    /// Returns whether the caller has to detach from the lane.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // SYNC(lane-users): the uses of all threads come before the detaching: each thread releases
        // here, and the last one acquires.
        let was = self.word.fetch_add(u32::MAX, Ordering::AcqRel);
        // Threads that have entered since see the failure and do not use the lane.
        was == DUE | 1 && self.word.fetch_and(!DUE, Ordering::AcqRel) & DUE != 0
    }
}
