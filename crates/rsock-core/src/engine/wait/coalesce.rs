//! Wake-up coalescing: a reader in bulk naps instead of being woken for each message.
//!
//! A wake-up takes time from its cause. A software device works on the sender's CPU, and waking a
//! sleeper on another CPU was all that kept a stream of 64 KiB writes behind bare verbs, whose
//! benchmark never sleeps: an eighth of that CPU's time. A hardware device interrupts the receiver
//! instead. So a reader that has been receiving many bytes, and has sent none meanwhile, sleeps
//! without asking to be woken, for about as long as the next large message takes to arrive. It
//! finds what arrived meanwhile when it wakes.
//!
//! The price is that the end of a burst may be seen one nap late. So a reader does not nap where
//! the peer may be waiting for an answer: not if it has sent anything lately, not at lower rates,
//! where each message may matter by itself, and not again after a nap in which nothing arrived. At
//! higher rates bytes arrive sooner than a timer is worth.

use crate::engine::QpStream;
use crate::engine::wait::Wake;
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_verbs::Backend;
use std::time::{Duration, Instant};

/// Bytes that should arrive during a nap: about a third of what is announced to a peer at one time,
/// which must not run out of room meanwhile.
const NAP_BYTES: u64 = 80 << 10;
/// A shorter nap is not worth its timer.
const SHORTEST: Duration = Duration::from_micros(100);
/// No data is seen later than this because of a nap.
const LONGEST: Duration = Duration::from_millis(2);
/// How long bytes are counted before the rate is computed.
const PERIOD: Duration = Duration::from_millis(4);
/// A count over a longer time says nothing about the current rate.
const STALE: Duration = Duration::from_millis(40);

/// How much has been received lately, and whether the next wait may nap.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct WakeCoalescing {
    /// Bytes received.
    n_read: u64,
    /// When counting began, and the totals at that time.
    since: Option<Instant>,
    n_read_then: u64,
    n_sends_then: u32,
    /// How long the next wait may nap.
    nap: Option<Duration>,
}

impl WakeCoalescing {
    #[inline]
    pub(in crate::engine) fn note_read(&mut self, n: usize) {
        self.n_read += n as u64;
    }

    /// How long to nap, for a stream that has sent `n_sends` times.
    fn nap(&mut self, now: Instant, n_sends: u32) -> Option<Duration> {
        let since = *self.since.get_or_insert(now);
        let period = now.saturating_duration_since(since);
        if n_sends != self.n_sends_then || period >= STALE {
            self.begin(now, n_sends);
            self.nap = None;
        } else if period >= PERIOD {
            self.nap = nap_at(self.n_read - self.n_read_then, period);
            self.begin(now, n_sends);
        }
        self.nap
    }

    fn begin(&mut self, now: Instant, n_sends: u32) {
        (self.since, self.n_read_then, self.n_sends_then) = (Some(now), self.n_read, n_sends);
    }
}

/// How long [`NAP_BYTES`] take at the rate of `n` bytes in `period`, if that is worth a nap.
fn nap_at(n: u64, period: Duration) -> Option<Duration> {
    let nanos = period.as_nanos() * u128::from(NAP_BYTES) / u128::from(n.max(1));
    let nap = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
    (SHORTEST..=LONGEST).contains(&nap).then_some(nap)
}

impl<B: Backend> QpStream<B> {
    /// For a caller that is about to wait for data, at most for `left`: naps first if that pays,
    /// and returns how the nap ended. `None` if the caller should wait as usual.
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
        // Nothing arrived: no further nap until the rate is high again.
        self.ring.lock_recv().coalescing.nap = None;
        Some(Wake::TimedOut)
    }

    fn next_nap(&self) -> Option<Duration> {
        let _section = Section::enter();
        let n_sends = self.ring.shared.mail.n_sends();
        self.ring.lock_recv().coalescing.nap(sys::now(), n_sends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(1);

    /// Whether each wait naps, of a stream that waits once per [`STEP`], and in between receives
    /// the bytes of `n_read` and sends those of `n_sent`.
    fn naps(n_read: &[usize], n_sent: &[u32]) -> Vec<bool> {
        let mut coalescing = WakeCoalescing::default();
        let (start, mut sent) = (Instant::now(), 0);
        let steps = n_read.iter().zip(n_sent).zip(0..);
        let wait = |((&read, &send), at)| {
            coalescing.note_read(read);
            sent += send;
            coalescing.nap(start + STEP * at, sent).is_some()
        };
        steps.map(wait).collect()
    }

    #[test]
    fn a_stream_that_receives_in_bulk_naps() {
        let naps = naps(&[64 << 10; 10], &[0; 10]);
        assert_eq!(naps, [false, false, false, false, true, true, true, true, true, true]);
    }

    #[test]
    fn a_reader_that_answers_does_not_nap() {
        assert_eq!(naps(&[64 << 10; 12], &[1; 12]), [false; 12]);
        let mut sent = [0; 12];
        sent[7] = 1;
        let naps = naps(&[64 << 10; 12], &sent);
        assert!(naps[6] && !naps[7], "at once: {naps:?}");
        assert!(!naps[10] && naps[11], "after a while without: {naps:?}");
    }

    #[test]
    fn a_nap_lasts_as_long_as_its_bytes_take_within_the_limits() {
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
    fn a_pause_ends_napping() {
        let mut coalescing = WakeCoalescing::default();
        let start = Instant::now();
        coalescing.nap(start, 0);
        coalescing.note_read(1 << 20);
        assert!(coalescing.nap(start + PERIOD, 0).is_some());
        assert!(coalescing.nap(start + PERIOD + STALE, 0).is_none());
    }
}
