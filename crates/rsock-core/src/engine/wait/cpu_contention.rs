//! CPU contention: whether other processes want all CPUs of the machine, so that nothing in this
//! process should poll actively.
//!
//! A thread that polls on a contended machine is preempted and gets its CPU
//! back a whole time slice later, while a thread that sleeps is woken at once. One
//! [`CpuContention`] is enough for a process, because all its runtimes share the machine: they
//! learn from each other, and a new runtime from those before it.

use rsock_verbs::clock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Shorter than the scheduler's time slice of a thread that always has work.
pub const TIME_SLICE: Duration = Duration::from_micros(500);
/// How long polling pauses after contention: the first pause, and the longest, which is reached by
/// doubling while contention is found again after each pause. Microseconds.
const PAUSE_US: (u32, u32) = (4_000, 256_000);
/// A machine on which no contention is found for so long after a pause, several time slices, counts
/// as free again. Microseconds.
const FREE_AFTER_US: u64 = 32_000;

/// What is known of the machine that this process runs on.
pub static CPU_CONTENTION: CpuContention = CpuContention::new();

/// See the module. No thread waits for another one here: a signal handler may poll, and a forked
/// child.
#[derive(Debug)]
pub struct CpuContention {
    /// The end of the current pause, in microseconds of the monotonic clock; 0 for none.
    until_us: AtomicU64,
    /// The end of the last pause, and how long it was.
    last_until_us: AtomicU64,
    last_length_us: AtomicU32,
}

impl CpuContention {
    /// Of a machine of which nothing is known.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            until_us: AtomicU64::new(0),
            last_until_us: AtomicU64::new(0),
            last_length_us: AtomicU32::new(0),
        }
    }

    /// Whether polling pauses now.
    #[must_use]
    pub fn is_present(&self) -> bool {
        // SYNC: Relaxed, here and below: the values only decide how to wait.
        self.until_us.load(Ordering::Relaxed) != 0 && self.is_present_at(clock::monotonic())
    }

    fn is_present_at(&self, now: Duration) -> bool {
        let until = self.until_us.load(Ordering::Relaxed);
        if micros(now) < until {
            return true;
        }
        // Fails if a new pause began meanwhile.
        let _ = self.until_us.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }

    /// Reports that a polling thread was preempted for a whole time slice: begins a pause.
    pub fn report(&self) {
        self.report_at(clock::monotonic());
    }

    #[cfg(test)]
    pub(super) fn has_been_reported(&self) -> bool {
        self.last_until_us.load(Ordering::Relaxed) != 0
    }

    /// As [`Self::report`], at `now` on the monotonic clock.
    pub fn report_at(&self, now: Duration) {
        let now = micros(now);
        let last = self.last_until_us.load(Ordering::Relaxed);
        if now < last {
            // A poll that began before the pause met the same contention.
            return;
        }
        let is_free = last == 0 || now >= last.saturating_add(FREE_AFTER_US);
        let doubled = self.last_length_us.load(Ordering::Relaxed).saturating_mul(2);
        let length = if is_free { PAUSE_US.0 } else { doubled.clamp(PAUSE_US.0, PAUSE_US.1) };
        let until = now.saturating_add(length.into());
        let (relaxed, place) = (Ordering::Relaxed, &self.last_until_us);
        // Otherwise another thread has reported at the same time.
        if place.compare_exchange(last, until, relaxed, relaxed).is_ok() {
            self.last_length_us.store(length, Ordering::Relaxed);
            self.until_us.store(until, Ordering::Relaxed);
        }
    }
}

impl Default for CpuContention {
    fn default() -> Self {
        Self::new()
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The CPU time of a thread at one moment.
#[derive(Clone, Copy, Debug)]
pub struct ThreadTime {
    at: Instant,
    ran: Duration,
    thread: ThreadId,
}

impl ThreadTime {
    /// That of the calling thread at `at`, which is now. Makes a system call.
    #[must_use]
    pub fn now(at: Instant) -> Self {
        Self { at, ran: clock::of_thread(), thread: thread::current().id() }
    }

    /// How long the thread, which has not slept between the two, did not run; zero if they are of
    /// two threads.
    #[must_use]
    pub fn preempted_since(&self, before: &Self) -> Duration {
        if self.thread != before.thread {
            return Duration::ZERO;
        }
        let (passed, ran) = (self.at - before.at, self.ran.saturating_sub(before.ran));
        passed.saturating_sub(ran)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    #[test]
    fn pauses_double_while_contention_lasts_and_start_short_after_it_ended() {
        let contention = CpuContention::new();
        assert!(!contention.is_present());
        let until = || contention.last_until_us.load(Ordering::Relaxed);
        let mut now = 1_000_000;
        let mut lengths = Vec::new();
        for _ in 0..12 {
            contention.report_at(us(now));
            let end = until();
            lengths.push(u32::try_from(end - now).expect("a short pause"));
            contention.report_at(us(now));
            assert_eq!(until(), end, "reported twice in one pause");
            now = end;
        }
        assert_eq!(lengths[..3], [PAUSE_US.0, PAUSE_US.0 * 2, PAUSE_US.0 * 4]);
        assert_eq!(lengths[11], PAUSE_US.1);
        now += FREE_AFTER_US;
        contention.report_at(us(now));
        assert_eq!(until() - now, PAUSE_US.0.into(), "the machine was free for long enough");
    }

    #[test]
    fn a_pause_ends() {
        let contention = CpuContention::new();
        contention.report_at(us(1));
        assert!(contention.is_present_at(us(1)));
        assert!(!contention.is_present_at(us(1) + us(PAUSE_US.0.into())));
        assert_eq!(contention.until_us.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn time_that_a_thread_did_not_run_counts_as_preempted() {
        let before = ThreadTime::now(Instant::now());
        let (_alive, closed) = std::sync::mpsc::channel::<()>();
        let _ = closed.recv_timeout(TIME_SLICE * 4);
        let after = ThreadTime::now(Instant::now());
        assert!(after.preempted_since(&before) >= TIME_SLICE, "{before:?}, {after:?}");
        let other = thread::spawn(|| ThreadTime::now(Instant::now())).join().expect("a time");
        assert_eq!(other.preempted_since(&before), Duration::ZERO, "two threads");
    }
}
