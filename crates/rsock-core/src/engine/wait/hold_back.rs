//! Whether a reader in bulk lets messages come for a microsecond before it looks for them.
//!
//! A reader that looks all the time takes the line of the next message from the writer's CPU again
//! and again. The writer has to get it back before it can announce the message, and waits for that
//! at its next atomic instruction. A reader that holds back finds several messages at once, and
//! disturbs the writer for none of them.
//!
//! The price is that a message may be seen a microsecond late. So a reader holds back only where
//! messages have been coming faster than that, as it tries out now and then, and never where it has
//! sent anything since its last wait: the peer may wait for its answer then.
//!
//! PERF: netperf on a Zen 4, by turns, Gbit/s without and with. CPUs that share a cache: 600 bytes
//! 29 and 36, 1 KiB 46 and 59, 2 KiB 59 and 104, 4 KiB 87 and 150, 8 KiB 183 and 199, 16 KiB the
//! same. CPUs that share none: 4 KiB 74 and 77, the others the same.

/// What a reader has learnt about its waits. Behind the `recv` lock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HoldBack {
    /// The last read took [`BULK`] bytes or more.
    is_bulk: bool,
    /// The wait under way has held back.
    has_held_back: bool,
    /// Waits after such reads, modulo [`TRY_EVERY`].
    n_waits: u8,
    /// The next waits hold back, so many of them.
    n_left: u8,
    /// Sends of this end as of the last wait.
    n_sends: u32,
}

/// Only a wait after a read of so many bytes holds back.
const BULK: usize = 512;
/// One of so many waits tries it.
const TRY_EVERY: u8 = 64;
/// Waits that hold back after one that has found more than one message.
const GO_ON: u8 = 8;
/// Messages that are longer than this on average take longer to copy than to announce.
const LONGEST: usize = 8 << 10;

impl HoldBack {
    /// Notes a read of `n` bytes.
    #[inline]
    pub(in crate::engine) fn note_read(&mut self, n: usize) {
        self.is_bulk = n >= BULK;
    }

    /// Whether the wait that begins holds back, of an end that has sent `n_sends` times.
    #[inline]
    pub(in crate::engine) fn begin_wait(&mut self, n_sends: u32) -> bool {
        if std::mem::replace(&mut self.n_sends, n_sends) != n_sends {
            self.n_left = 0;
            return false;
        }
        if !self.is_bulk {
            return false;
        }
        self.n_waits = (self.n_waits + 1) % TRY_EVERY;
        self.has_held_back = self.n_left != 0 || self.n_waits == 0;
        self.has_held_back
    }

    /// Learns what was found, by the wait that began last or without one: so many messages, with
    /// `len` bytes together.
    #[inline]
    pub(in crate::engine) fn learn(&mut self, n_messages: usize, len: usize) {
        if std::mem::take(&mut self.has_held_back) {
            let has_helped = n_messages > 1 && len / n_messages <= LONGEST;
            self.n_left = if has_helped { GO_ON } else { self.n_left.saturating_sub(1) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `n` waits hold back, of a reader that finds `n_messages` each time with `len`
    /// bytes together, and sends after every `sends_after` of them.
    fn held_back(n: u32, n_messages: usize, len: usize, sends_after: u32) -> u32 {
        let mut hold_back = HoldBack::default();
        let mut n_held = 0;
        for wait in 0..n {
            hold_back.note_read(len);
            n_held += u32::from(hold_back.begin_wait(wait / sends_after));
            hold_back.learn(n_messages, len);
        }
        n_held
    }

    #[test]
    fn a_reader_that_finds_several_messages_goes_on_holding_back() {
        assert_eq!(held_back(640, 2, BULK, u32::MAX), 640 - 63);
    }

    #[test]
    fn a_reader_that_finds_single_messages_only_tries() {
        assert_eq!(held_back(640, 1, BULK, u32::MAX), 10);
    }

    #[test]
    fn a_reader_of_long_messages_only_tries() {
        assert_eq!(held_back(640, 2, 2 * LONGEST, u32::MAX), 640 - 63);
        assert_eq!(held_back(640, 2, 2 * LONGEST + 2, u32::MAX), 10);
    }

    #[test]
    fn a_reader_of_little_or_one_that_answers_never_holds_back() {
        assert_eq!(held_back(640, 2, BULK - 1, u32::MAX), 0);
        assert_eq!(held_back(640, 2, BULK, 1), 0);
    }

    #[test]
    fn a_reader_stops_once_messages_come_singly_and_when_it_has_sent() {
        let mut hold_back = HoldBack::default();
        hold_back.note_read(BULK);
        while !hold_back.begin_wait(0) {}
        hold_back.learn(3, BULK);
        for _ in 0..GO_ON {
            assert!(hold_back.begin_wait(0));
            hold_back.learn(1, BULK);
        }
        assert!(!hold_back.begin_wait(0), "single messages");
        while !hold_back.begin_wait(0) {}
        hold_back.learn(3, BULK);
        assert!(!hold_back.begin_wait(1), "a request");
        assert!(!hold_back.begin_wait(1), "after a request");
    }

    #[test]
    fn messages_that_no_wait_has_found_teach_nothing() {
        let mut hold_back = HoldBack::default();
        hold_back.note_read(BULK);
        assert!(!hold_back.begin_wait(0));
        hold_back.learn(5, BULK);
        assert!(!hold_back.begin_wait(0));
    }
}
