//! Quiet streams: those that a `poll` of many need not look at again.
//!
//! A look that finds nothing on a stream's ring notes by what a change would show: the stream's
//! mark, which every dispatch changes, and its flags. Until one of them changes or something
//! arrives, the next look would find nothing either. A ready set is told when something happens,
//! so that a caller that watches the streams by one reads nothing of those that stay quiet.

use crate::accelerate::path::Path;
use crate::accelerate::state::FLAG_PINNED;
use crate::accelerate::{AcceleratedStream, RingWatch};
use crate::engine::QpStream;
use crate::interrupt::Section;
use rsock_verbs::soft::{Soft, SoftReadySet};
use std::sync::atomic::Ordering;

/// What a look begins with.
#[derive(Clone, Copy)]
pub(super) struct Look {
    mark: u32,
    flags: u32,
}

impl Look {
    fn to_bits(self) -> u64 {
        u64::from(self.mark) << 32 | u64::from(self.flags)
    }

    fn from_bits(bits: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "each half is meant")]
        let (mark, flags) = ((bits >> 32) as u32, bits as u32);
        Self { mark, flags }
    }
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
            shared.quiet.store(look.to_bits(), Ordering::Release);
        }
    }

    /// Has `set` watch the ring, for a caller that stays quiet by [`Self::stay_quiet`]. `None` if
    /// there is no ring of the soft device, if another set watches it, if another process has the
    /// stream too, or if the set or the memory shared with the peer is full.
    /// [`Self::unwatch`] ends it.
    #[must_use]
    pub fn watch_quiet(&self, set: &SoftReadySet) -> Option<RingWatch> {
        let stream = self.path().and_then(Path::soft).filter(|stream| stream.is_unshared())?;
        let _section = Section::enter();
        stream.watch_by(set).ok().map(RingWatch)
    }

    /// Has the ready set that watches the stream told of what happens next. False if a look at the
    /// ring for input may find something: then the set may be told, or not.
    ///
    /// While the stream stays quiet, such a look would leave nothing to the kernel but the end of
    /// the connection and what comes on TCP.
    #[must_use]
    pub fn stay_quiet(&self) -> bool {
        let Some(stream) = self.path().and_then(Path::soft) else { return false };
        let _section = Section::enter();
        let last = Look::from_bits(self.dirs.shared.0.quiet.load(Ordering::Acquire));
        self.is_quiet(stream, last)
            && stream.announce_next(last.mark)
            && self.is_quiet(stream, last)
    }

    /// Whether a look at the ring for input would find nothing, as `last` did.
    fn is_quiet(&self, stream: &QpStream<Soft>, last: Look) -> bool {
        // Flags are never all clear once there is a path: nothing has been noted before.
        last.flags == self.dirs.flags() && !stream.is_over() && !stream.has_changed(last.mark)
    }
}
