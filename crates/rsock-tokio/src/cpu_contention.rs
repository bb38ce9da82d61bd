//! CPU contention: whether other processes want all CPUs of the machine, so that nothing in this
//! process should poll actively.
//!
//! Below `spin_budget`. A thread that polls on a contended machine is preempted and gets its CPU
//! back a whole time slice later, while a thread that sleeps is woken at once. One
//! [`CpuContention`] is enough for a process, because all its runtimes share the machine: they
//! learn from each other, and a new runtime from those before it.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// Shorter than the scheduler's time slice of a thread that always has work.
pub(crate) const TIME_SLICE: Duration = Duration::from_micros(500);
/// How long polling pauses after contention: the first pause, and the longest, which is reached by
/// doubling while contention is found again after each pause.
const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(256));
/// A machine on which no contention is found for so long after a pause, several time slices, counts
/// as free again.
const FREE_AFTER: Duration = Duration::from_millis(32);

/// What is known of the machine that this process runs on.
pub(crate) static CPU_CONTENTION: CpuContention = CpuContention::new();

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// See the module.
#[derive(Debug)]
pub(crate) struct CpuContention {
    /// The end of the current pause, in microseconds since `START`; 0 for none.
    until_us: AtomicU64,
    last: Mutex<Option<Pause>>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl CpuContention {
    pub(crate) const fn new() -> Self {
        Self { until_us: AtomicU64::new(0), last: Mutex::new(None) }
    }

    /// Whether polling pauses now.
    pub(crate) fn is_present(&self) -> bool {
        // SYNC: Relaxed, here and below: the value only decides how to wait.
        self.until_us.load(Ordering::Relaxed) != 0 && self.is_present_at(Instant::now())
    }

    fn is_present_at(&self, now: Instant) -> bool {
        let until = self.until_us.load(Ordering::Relaxed);
        if since_start(now) < until {
            return true;
        }
        // Fails if a new pause began meanwhile.
        let _ = self.until_us.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }

    /// Reports that a polling thread was preempted for a whole time slice: begins a pause.
    pub(crate) fn report(&self, now: Instant) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let length = match *last {
            // Polls of another runtime that began before the pause met the same contention.
            Some(last) if now < last.until => return,
            Some(last) if now < last.until + FREE_AFTER => last.length * 2,
            _ => PAUSE.0,
        };
        let length = length.min(PAUSE.1);
        let until = now + length;
        *last = Some(Pause { until, length });
        self.until_us.store(since_start(until).max(1), Ordering::Relaxed);
    }
}

fn since_start(at: Instant) -> u64 {
    u64::try_from(at.saturating_duration_since(*START).as_micros()).unwrap_or(u64::MAX)
}

/// The CPU time of a thread at one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ThreadTime {
    at: Instant,
    ran: Duration,
    thread: ThreadId,
}

impl ThreadTime {
    /// That of the calling thread at `at`, which is now. Makes a system call.
    pub(crate) fn now(at: Instant) -> Self {
        let ran = clock_gettime(ClockId::ThreadCPUTime);
        let ran = Duration::try_from(ran).unwrap_or_default();
        Self { at, ran, thread: thread::current().id() }
    }

    /// How long the thread, which has not slept between the two, did not run; zero if they are of
    /// two threads.
    pub(crate) fn preempted_since(&self, before: &Self) -> Duration {
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

    #[test]
    fn pauses_double_while_contention_lasts_and_start_short_after_it_ended() {
        let contention = CpuContention::new();
        assert!(!contention.is_present());
        let pause = || contention.last.lock().expect("the pause").expect("one");
        let mut now = Instant::now() + PAUSE.1;
        let mut lengths = Vec::new();
        for _ in 0..12 {
            contention.report(now);
            assert_eq!(pause().until - now, pause().length);
            lengths.push(pause().length);
            contention.report(now);
            assert_eq!(pause().until - now, pause().length, "reported twice in one pause");
            now = pause().until;
        }
        assert_eq!(lengths[..3], [PAUSE.0, PAUSE.0 * 2, PAUSE.0 * 4]);
        assert_eq!(lengths[11], PAUSE.1);
        assert!(contention.is_present(), "the pause lasts");
        contention.report(now + FREE_AFTER);
        assert_eq!(pause().length, PAUSE.0, "the machine was free for long enough");
    }

    #[test]
    fn a_pause_ends() {
        let contention = CpuContention::new();
        LazyLock::force(&START);
        let now = Instant::now();
        contention.report(now);
        assert!(contention.is_present_at(now));
        assert!(!contention.is_present_at(now + PAUSE.0));
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
