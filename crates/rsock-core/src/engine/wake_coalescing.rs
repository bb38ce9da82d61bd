//! Interrupt moderation: who receives in bulk from a device naps, rather than be woken for each message.
//!
//! A wake-up is dear to whoever causes it. A software device works on a sender's CPU, and waking a sleeper on
//! another one was all that kept a stream of 64 KiB writes behind bare verbs, whose benchmark never sleeps: an
//! eighth of that CPU's time. A hardware device interrupts the receiver instead. So a reader that has been
//! receiving a lot, and has sent nothing meanwhile, sleeps without asking to be woken, for about as long as the
//! next large message takes to come; what comes meanwhile it finds when it wakes.
//!
//! The price is the end of a burst, which may be seen one nap late. So there is none where somebody may be
//! waiting for an answer: not when this end has sent anything of late, not at lower rates, where each message
//! may matter for itself, and not twice in vain. At higher rates there is something before a nap would be
//! worth its timer.

use crate::engine::stream::Stream;
use crate::engine::wait::Wake;
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_verbs::Backend;
use std::time::{Duration, Instant};

/// What should come during a nap, in bytes: about a third of what is announced to a peer at one time, which must
/// not run out of room meanwhile.
const NAP_BYTES: u64 = 80 << 10;
/// A shorter nap is not worth its timer.
const SHORTEST: Duration = Duration::from_micros(100);
/// Nobody's data is seen later than that for our nap.
const LONGEST: Duration = Duration::from_millis(2);
/// How long use is counted before it is judged.
const PERIOD: Duration = Duration::from_millis(4);
/// What was counted over a longer time says nothing about now.
const STALE: Duration = Duration::from_millis(40);

/// What of late has been received, and what follows for the next wait.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moderation {
    /// Bytes received.
    n_read: u64,
    /// When counting began, and with what.
    since: Option<Instant>,
    n_read_then: u64,
    n_sent_then: u64,
    /// How long the next wait may nap.
    nap: Option<Duration>,
}

impl Moderation {
    #[inline]
    pub(super) fn note_read(&mut self, n: usize) {
        self.n_read += n as u64;
    }

    /// How long to nap, for a stream that has sent `n_sent` bytes in all.
    fn nap(&mut self, now: Instant, n_sent: u64) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        let period = now.saturating_duration_since(since);
        if n_sent != self.n_sent_then || period >= STALE {
            self.begin(now, n_sent);
            self.nap = None;
        } else if period >= PERIOD {
            self.nap = nap_at(self.n_read - self.n_read_then, period);
            self.begin(now, n_sent);
        }
        self.nap
    }

    fn begin(&mut self, now: Instant, n_sent: u64) {
        (self.since, self.n_read_then, self.n_sent_then) = (Some(now), self.n_read, n_sent);
    }
}

/// How long [`NAP_BYTES`] take at the rate of `n` bytes in `period`, if that is worth a nap.
fn nap_at(n: u64, period: Duration) -> Option<Duration> {
    let nanos = period.as_nanos() * u128::from(NAP_BYTES) / u128::from(n.max(1));
    let nap = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    (SHORTEST..=LONGEST).contains(&nap).then_some(nap)
}

impl<B: Backend> Stream<B> {
    /// For who is about to wait for data, within `left`: naps first if that pays, and says what came of it. `None`
    /// if it does not.
    pub(crate) fn nap(&self, mark: u32, left: Option<Duration>, watch: Watch) -> Option<Wake> {
        if !B::SENDS_WAIT {
            return None;
        }
        let nap = self.next_nap()?;
        if sys::sleep(&mut [], Some(left.map_or(nap, |left| left.min(nap))), None, watch).is_err() {
            return Some(Wake::Interrupted);
        }
        if self.has_changed(mark) {
            return Some(Wake::Changed);
        }
        let _section = Section::enter();
        // In vain: none until a lot has been received again.
        self.ring.lock_recv().moderation.nap = None;
        Some(Wake::TimedOut)
    }

    fn next_nap(&self) -> Option<Duration> {
        let _section = Section::enter();
        let n_sent = self.ring.lock_send().sent;
        self.ring.lock_recv().moderation.nap(sys::now(), n_sent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    /// What follows at each wait for a stream that waits once a [`STEP`], receives as many bytes in between as
    /// `n_read` says, and sends as many as `n_sent`.
    fn naps(n_read: &[usize], n_sent: &[u64]) -> Vec<bool> {
        let mut moderation = Moderation::default();
        let (start, mut sent) = (Instant::now(), 0);
        let steps = n_read.iter().zip(n_sent).zip(0..);
        let wait = |((&read, &send), at)| {
            moderation.note_read(read);
            sent += send;
            moderation.nap(start + STEP * at, sent).is_some()
        };
        steps.map(wait).collect()
    }

    #[test]
    fn a_stream_that_receives_in_bulk_naps() {
        let naps = naps(&[64 << 10; 10], &[0; 10]);
        assert_eq!(naps, [false, false, false, false, true, true, true, true, true, true]);
    }

    #[test]
    fn who_answers_does_not() {
        assert_eq!(naps(&[64 << 10; 12], &[1; 12]), [false; 12]);
        let mut sent = [0; 12];
        sent[7] = 1;
        let naps = naps(&[64 << 10; 12], &sent);
        assert!(naps[6] && !naps[7], "at once: {naps:?}");
        assert!(!naps[10] && naps[11], "after a while without: {naps:?}");
    }

    #[test]
    fn naps_are_as_long_as_the_bytes_take_and_neither_short_nor_long() {
        let table = [
            (NAP_BYTES, Some(PERIOD / 4)),
            (NAP_BYTES / 2, Some(PERIOD / 2)),
            (NAP_BYTES / 3, None),
            (NAP_BYTES * 40, None),
            (NAP_BYTES * 4, Some(PERIOD / 16)),
            (0, None),
        ];
        for (bytes, nap) in table {
            assert_eq!(nap_at(bytes, PERIOD / 4), nap, "{bytes}");
        }
    }

    #[test]
    fn a_pause_ends_it() {
        let mut moderation = Moderation::default();
        let start = Instant::now();
        moderation.nap(start, 0);
        moderation.note_read(1 << 20);
        assert!(moderation.nap(start + PERIOD, 0).is_some());
        assert!(moderation.nap(start + PERIOD + STALE, 0).is_none());
    }
}
