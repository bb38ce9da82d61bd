//! Whether a program expects to be told that the ring is full.

#![forbid(unsafe_code)]

use std::time::{Duration, Instant};

/// A stream in bulk finds its ring full again within this time.
const AGAIN: Duration = Duration::from_millis(50);

/// What a sending direction remembers of full channels.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::accelerate) struct FullSends {
    /// When a call that must not wait last found the ring full.
    last: Option<Instant>,
    /// The program has been told that there is no room, and has sent nothing since.
    is_told: bool,
}

impl FullSends {
    /// Bytes have been sent.
    #[inline]
    pub(in crate::accelerate) fn note_sent(&mut self) {
        self.is_told = false;
    }

    /// A call has found no room, and is about to say so.
    pub(in crate::accelerate) fn note_told(&mut self) {
        self.is_told = true;
    }

    /// A call that must not wait has found the ring full at `now`. Returns whether the program
    /// expects to be told, of which it is known whether it `asks_for_room`.
    pub(in crate::accelerate) fn is_expected(&mut self, now: Instant, asks_for_room: bool) -> bool {
        let is_usual = self.last.replace(now).is_some_and(|last| now - last < AGAIN);
        is_usual && (asks_for_room || self.is_told)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_expects_a_full_ring_again_and_when_it_asks_for_room_or_has_been_told() {
        let start = Instant::now();
        let mut sends = FullSends::default();
        assert!(!sends.is_expected(start, true), "for the first time");
        assert!(sends.is_expected(start, true));
        assert!(!sends.is_expected(start, false), "it asks for input alone");
        sends.note_told();
        assert!(sends.is_expected(start, false));
        sends.note_sent();
        assert!(!sends.is_expected(start, false));
        assert!(sends.is_expected(start + AGAIN / 2, true));
        assert!(!sends.is_expected(start + 2 * AGAIN, true), "not full for a long time");
    }
}
