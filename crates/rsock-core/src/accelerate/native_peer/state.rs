//! The state of a native stream that it shares with forked children.

use crate::accelerate::holders::Holders;
use crate::accelerate::state::{FlagBits, Line};
use rsock_verbs::family::{FamilySafe, Lock};

/// The state of a native stream that lies in family memory.
#[repr(C)]
#[derive(Debug)]
pub(super) struct State {
    /// Held while a call sends, so that the descriptor which the call looked up stays valid.
    pub(super) tx: Line<Lock<()>>,
    /// Held while a call receives. Counts reads that found nothing since the last check of the
    /// device.
    pub(super) idle_reads: Line<Lock<u32>>,
    pub(super) flags: Line<FlagBits>,
    pub(super) holders: Line<Holders>,
}

// SAFETY: locks around plain values and atomics; no pointer, reference or descriptor.
unsafe impl FamilySafe for State {}

impl State {
    pub(super) fn new() -> Self {
        Self {
            tx: Line(Lock::new(())),
            idle_reads: Line(Lock::new(0)),
            flags: Line(FlagBits::new()),
            holders: Line(Holders::new()),
        }
    }
}
