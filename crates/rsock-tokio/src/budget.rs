//! How long to look for messages, by what looking has led to.
//!
//! Below `hub`. Races only cost precision.

use crate::crowd::Crowd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Shortest budget worth trying.
const LEAST_NS: u32 = 2_000;
/// Of so many waits some probe even when looking never helped; more rarely, up to the second
/// number, where it was in the way.
const PROBE_EVERY: (u32, u32) = (32, 1024);
/// How many of them, one after the other: the first wakes a peer that sleeps, and the second finds
/// it awake.
const PROBES: u32 = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Nanoseconds.
    ns: AtomicU32,
    waits: AtomicU32,
    /// Of how many waits some probe.
    every: AtomicU32,
    longest_ns: u32,
    /// Where others want the CPUs nobody looks.
    crowd: &'static Crowd,
}

impl Budget {
    pub(crate) fn new(longest_ns: u32, crowd: &'static Crowd) -> Self {
        let (ns, waits) = (AtomicU32::new(longest_ns), AtomicU32::new(0));
        Self { ns, waits, every: AtomicU32::new(PROBE_EVERY.0), longest_ns, crowd }
    }

    /// The budget of the next wait, in nanoseconds, at most `longest`; zero means not to try.
    pub(crate) fn next(&self, longest: Duration) -> u32 {
        if self.crowd.is_there() {
            return 0;
        }
        let ns = self.ns.load(Ordering::Relaxed);
        let most = u32::try_from(longest.as_nanos()).unwrap_or(u32::MAX);
        if ns >= LEAST_NS {
            return ns.min(most);
        }
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        let is_probe = waits % self.every.load(Ordering::Relaxed) < PROBES;
        if is_probe { self.longest_ns.min(most) } else { 0 }
    }

    pub(crate) fn hit(&self, took: Duration) {
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        if took > self.longest_ns {
            // Longer than anybody looks: the CPU was taken from us meanwhile.
            return self.was_in_the_way();
        }
        let old = self.ns.load(Ordering::Relaxed);
        // Room for three times the usual wait, approached slowly from above.
        let want = took.saturating_mul(3).clamp(2 * LEAST_NS, self.longest_ns);
        let new = if want > old { want } else { old - (old - want) / 16 };
        self.ns.store(new, Ordering::Relaxed);
        self.every.store(PROBE_EVERY.0, Ordering::Relaxed);
    }

    pub(crate) fn miss(&self) {
        let old = self.ns.load(Ordering::Relaxed);
        self.ns.store(old / 4 * 3, Ordering::Relaxed);
    }

    /// Looking kept the other end from running.
    pub(crate) fn was_in_the_way(&self) {
        self.miss();
        let every = self.every.load(Ordering::Relaxed);
        self.every.store((every * 2).min(PROBE_EVERY.1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    const LONGEST_NS: u32 = 100_000;
    const LONG: Duration = Duration::from_micros(100);

    fn budget() -> Budget {
        static NOBODY: Crowd = Crowd::new();
        Budget::new(LONGEST_NS, &NOBODY)
    }

    fn probes(budget: &Budget, waits: usize) -> usize {
        (0..waits).filter(|_| budget.next(LONG) != 0).count()
    }

    #[test]
    fn a_budget_follows_what_looking_has_led_to() {
        let budget = budget();
        assert_eq!(budget.next(LONG), LONGEST_NS);
        assert_eq!(budget.next(Duration::from_micros(10)), 10_000, "at most what was allowed");
        assert_eq!(budget.next(Duration::ZERO), 0);
        for _ in 0..20 {
            budget.miss();
        }
        // It never helps: only probes are left.
        assert_eq!(probes(&budget, 320), 20);
        budget.hit(Duration::from_micros(5));
        assert_eq!(budget.next(LONG), 15_000, "room for three times the usual wait");
        budget.hit(Duration::from_micros(90));
        assert_eq!(budget.next(LONG), LONGEST_NS);
        budget.hit(Duration::from_secs(1));
        assert!(budget.next(LONG) < LONGEST_NS, "it was not looking that took so long");
        budget.hit(Duration::from_micros(5));
        assert!((15_000..LONGEST_NS).contains(&budget.next(LONG)), "approached slowly from above");
    }

    #[test]
    fn where_looking_is_in_the_way_probes_become_rare() {
        let budget = budget();
        for _ in 0..20 {
            budget.was_in_the_way();
        }
        assert_eq!(probes(&budget, 4096), 8);
        budget.hit(Duration::ZERO);
        for _ in 0..20 {
            budget.miss();
        }
        assert_eq!(probes(&budget, 64), 4, "they are frequent again once one has helped");
    }

    #[test]
    fn nobody_looks_in_a_crowd() {
        static CROWD: Crowd = Crowd::new();
        let budget = Budget::new(LONGEST_NS, &CROWD);
        // One that has just begun a year from now.
        CROWD.is_found(Instant::now() + Duration::from_secs(365 * 86_400));
        assert_eq!(probes(&budget, 4096), 0);
    }
}
