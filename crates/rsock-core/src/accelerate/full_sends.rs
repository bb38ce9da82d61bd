//! Whether a program expects to be told that the ring is full.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// A stream in bulk finds its ring full again within this time.
const AGAIN: Duration = Duration::from_millis(50);

/// What a sending direction remembers of calls that must not wait and found no room.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accelerate) struct FullSends {
    /// When one last found no room for its first byte.
    last: Option<Instant>,
    /// When one last said so, by a part or by `EAGAIN`.
    told: Option<Instant>,
}

impl FullSends {
    /// A call tells the program at `now` that there is no room, or none for the rest if it
    /// `has_sent` something.
    pub(in crate::accelerate) fn note_told(&mut self, now: Instant, has_sent: bool) {
        self.told = Some(now);
        if !has_sent {
            self.last = Some(now);
        }
    }

    /// A call that has sent nothing has found the ring full at `now`. Returns whether the program
    /// expects to be told, of which it is known whether it `asks_for_room` when it waits.
    pub(in crate::accelerate) fn is_expected(&mut self, now: Instant, asks_for_room: bool) -> bool {
        let is_recent = |at: Instant| now.saturating_duration_since(at) < AGAIN;
        let is_usual = self.last.replace(now).is_some_and(is_recent);
        is_usual && (asks_for_room || self.told.is_some_and(is_recent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_expects_a_full_ring_again_and_when_it_asks_for_room_or_has_been_told() {
        let start = Instant::now();
        let mut sends = FullSends::default();
        sends.note_told(start, true);
        assert!(!sends.is_expected(start, true), "a part is no full ring");
        assert!(sends.is_expected(start, true));
        assert!(sends.is_expected(start, false), "it has been told");
        assert!(!sends.is_expected(start + 2 * AGAIN, true), "not full for a long time");
        assert!(!sends.is_expected(start + 2 * AGAIN, false), "told long ago");
        sends.note_told(start + 4 * AGAIN, false);
        assert!(sends.is_expected(start + 4 * AGAIN, false), "told by `EAGAIN`");
    }
}
