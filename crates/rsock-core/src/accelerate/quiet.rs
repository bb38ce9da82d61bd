//! Quiet streams: those that a `poll` of many need not look at again.
//!
//! A look that finds nothing on a stream's ring notes by what a change would show: the stream's
//! mark, which every dispatch changes, and its flags. Until one of them changes or something
//! arrives, the next look would find nothing either, so it reads a few words without a lock.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::path::Path;
use crate::accelerate::state::FLAG_PINNED;
use std::sync::atomic::Ordering;

/// What a look begins with.
#[derive(Clone, Copy)]
pub(super) struct Look {
    mark: u32,
    flags: u32,
}

impl AcceleratedStream {
    /// A look at the ring that begins now, of which `mark` has been taken.
    pub(super) fn begin_look(&self, mark: u32) -> Look {
        Look { mark, flags: self.dirs.flags() }
    }

    /// Notes that `look` found no input on the ring, where the next byte comes from, unless the
    /// peer waits for an answer.
    pub(super) fn note_quiet(&self, look: Look, path: &Path) {
        let shared = &self.dirs.shared.0;
        let answered = shared.leaves_answered.load(Ordering::Acquire);
        let owes_answer = path.messages().counts.leaves() != answered;
        if !owes_answer && look.flags & FLAG_PINNED == 0 && path.soft().is_some() {
            let seen = u64::from(look.mark) << 32 | u64::from(look.flags);
            shared.quiet.store(seen, Ordering::Release);
        }
    }

    /// Whether a look at the ring for input would find nothing, as the last one did, and would
    /// leave nothing to the kernel but the end of the connection. For a call that does not sleep:
    /// what another thread dispatches meanwhile may show a moment later.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let Some(stream) = self.path().and_then(Path::soft) else { return false };
        let seen = self.dirs.shared.0.quiet.load(Ordering::Acquire);
        let (mark, flags) = (seen >> 32, seen & u64::from(u32::MAX));
        let mark = u32::try_from(mark).unwrap_or(0);
        // Flags are never all clear once there is a path: nothing has been noted before.
        flags == u64::from(self.dirs.flags()) && !stream.is_over() && !stream.has_changed(mark)
    }
}
