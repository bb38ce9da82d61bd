//! Giving up memory of the peer that several threads may be using: the last one says so.
//!
//! A thread that uses the memory without the sender's lock enters, looks whether the queue pair has
//! failed, and leaves. The one that fails the queue pair enters too, marks it as failed, is done with
//! the memory, and then calls [`LaneUsers::retire`]. Exactly one thread is told to give the memory up, and
//! none uses it after that.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// The memory is to be given up.
const DUE: u32 = 1 << 31;

/// # Invariants
/// The low bits count the threads inside. [`DUE`] is set at most once, after the failure was marked, and
/// taken once.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct LaneUsers<P: Platform = Native> {
    word: P::U32,
}

impl<P: Platform> LaneUsers<P> {
    pub(crate) fn new() -> Self {
        Self { word: P::U32::new(0) }
    }

    /// Before the look at whether the queue pair has failed.
    pub(crate) fn enter(&self) {
        // SYNC(lane-users): one that comes after `retire` sees the failure: pairs with the Release there. One
        // that comes before is counted when the thread that failed leaves.
        self.word.fetch_add(1, Ordering::Acquire);
    }

    /// After the failure was marked; [`Self::leave`] follows.
    pub(crate) fn retire(&self) {
        self.word.fetch_or(DUE, Ordering::Release);
    }

    /// Whether the caller is the one to give the memory up.
    #[must_use]
    pub(crate) fn leave(&self) -> bool {
        // SYNC(lane-users): the uses of all threads come before the memory is given up: each releases
        // here, and the last one acquires.
        let was = self.word.fetch_add(u32::MAX, Ordering::AcqRel);
        // Threads that have entered since do not use the memory: they see the failure.
        was == DUE | 1 && self.word.fetch_and(!DUE, Ordering::AcqRel) & DUE != 0
    }
}
