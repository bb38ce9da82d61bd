//! Which process made an object, and whether a fork has shared it with a child since.

use crate::family::{self, ProcessId};

/// The process that made an object, and how many forks it had gone through then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CreationStamp {
    process: ProcessId,
    forks: u32,
}

impl CreationStamp {
    pub(super) fn now() -> Self {
        Self { process: family::process(), forks: family::forks() }
    }

    /// Whether the calling process made the object, even if it has forked since.
    pub(super) fn is_this_process(self) -> bool {
        self.process == family::process()
    }

    /// Whether this process made the object and has not forked since: then no other process uses
    /// it, and what it holds in a segment can be freed.
    pub(super) fn is_unshared(self) -> bool {
        self == Self::now()
    }
}
