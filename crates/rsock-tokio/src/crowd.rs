//! Whether others want all CPUs of the machine: then nobody in this process looks for messages.
//!
//! Below `budget`. Who looks there loses his place to them and gets it back a whole turn of the
//! scheduler later, while who sleeps is woken at once. One [`Crowd`] is enough for a process, as all its
//! runtimes share the machine; they learn from each other, and a new one from those before it.

use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

/// A whole turn of somebody who has work without end takes longer.
pub(crate) const TURN: Duration = Duration::from_micros(500);
/// How long nobody looks then: the first time, and if it is no better after that, time after time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_millis(256));
/// A machine that was not found busy for so long after a pause is not busy any more: several turns.
const FREE_AFTER: Duration = Duration::from_millis(32);

/// What is known of the machine that this process runs on.
pub(crate) static CROWD: Crowd = Crowd::new();

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// See the module.
#[derive(Debug)]
pub(crate) struct Crowd {
    /// The end of the pause, in microseconds since `START`; 0 for none.
    until_us: AtomicU64,
    last: Mutex<Option<Pause>>,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Crowd {
    pub(crate) const fn new() -> Self {
        Self { until_us: AtomicU64::new(0), last: Mutex::new(None) }
    }

    /// Whether nobody should look now.
    pub(crate) fn is_there(&self) -> bool {
        self.until_us.load(Ordering::Relaxed) != 0 && self.is_there_at(Instant::now())
    }

    fn is_there_at(&self, now: Instant) -> bool {
        let until = self.until_us.load(Ordering::Relaxed);
        if since_start(now) < until {
            return true;
        }
        // Unless a new pause began meanwhile.
        let _ = self.until_us.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        false
    }

    /// Somebody who looked lost a whole turn.
    pub(crate) fn is_found(&self, now: Instant) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let length = match *last {
            // Another runtime's looks, that began before the pause, were lost in the same crowd.
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

/// A thread at a moment, and how much it had run by then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Presence {
    at: Instant,
    ran: Duration,
    thread: ThreadId,
}

impl Presence {
    /// Of the calling thread. A system call.
    pub(crate) fn now(at: Instant) -> Self {
        let ran = clock_gettime(ClockId::ThreadCPUTime);
        let ran = Duration::try_from(ran).unwrap_or_default();
        Self { at, ran, thread: thread::current().id() }
    }

    /// How long the thread that called then and now has not run since, though it never slept.
    pub(crate) fn lost_since(&self, before: &Self) -> Duration {
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
    fn nobody_looks_for_ever_longer_where_others_want_the_cpus() {
        let crowd = Crowd::new();
        assert!(!crowd.is_there());
        let pause = || crowd.last.lock().expect("the pause").expect("one");
        let mut now = Instant::now() + PAUSE.1;
        let mut lengths = Vec::new();
        for _ in 0..12 {
            crowd.is_found(now);
            assert_eq!(pause().until - now, pause().length);
            lengths.push(pause().length);
            crowd.is_found(now);
            assert_eq!(pause().until - now, pause().length, "found by another in the same pause");
            now = pause().until;
        }
        assert_eq!(lengths[..3], [PAUSE.0, PAUSE.0 * 2, PAUSE.0 * 4]);
        assert_eq!(lengths[11], PAUSE.1);
        assert!(crowd.is_there(), "the pause lasts");
        crowd.is_found(now + FREE_AFTER);
        assert_eq!(pause().length, PAUSE.0, "that was long ago");
    }

    #[test]
    fn a_pause_ends() {
        let crowd = Crowd::new();
        LazyLock::force(&START);
        let now = Instant::now();
        crowd.is_found(now);
        assert!(crowd.is_there_at(now));
        assert!(!crowd.is_there_at(now + PAUSE.0));
        assert_eq!(crowd.until_us.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn time_that_a_thread_did_not_run_is_lost_to_it() {
        let before = Presence::now(Instant::now());
        let (_alive, told) = std::sync::mpsc::channel::<()>();
        let _ = told.recv_timeout(TURN * 4);
        let after = Presence::now(Instant::now());
        assert!(after.lost_since(&before) >= TURN, "{before:?}, {after:?}");
        let elsewhere = thread::spawn(|| Presence::now(Instant::now())).join().expect("a presence");
        assert_eq!(elsewhere.lost_since(&before), Duration::ZERO, "nobody knows");
    }
}
