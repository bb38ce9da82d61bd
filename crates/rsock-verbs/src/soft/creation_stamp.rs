//! Whether an object is still ours alone, or a fork has given it a second owner.

use crate::family::{self, ProcessId};

/// When and where something was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CreationStamp {
    process: ProcessId,
    forks: u32,
}

impl CreationStamp {
    pub(super) fn now() -> Self {
        Self { process: family::process(), forks: family::forks() }
    }

    /// Whether the calling process made it, whatever it has forked since.
    pub(super) fn is_this_process(self) -> bool {
        self.process == family::process()
    }

    /// Whether this process made it and has not forked since: then nobody else uses it, and what
    /// it holds in a segment can be given back.
    pub(super) fn is_unshared(self) -> bool {
        self == Self::now()
    }
}
