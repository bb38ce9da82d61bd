//! The spin budget: how long to poll for messages before sleeping, learnt from earlier polls.
//!
//! Below `poll_driver`. All accesses are Relaxed: a race only costs precision.

use rsock_core::engine::cpu_contention::CpuContention;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// The shortest budget that is worth polling for.
const LEAST_NS: u32 = 2_000;
/// Even when polling never helped, [`PROBES`] of this many waits poll; of up to the second number
/// where polling kept the peer from running.
const PROBE_EVERY: (u32, u32) = (32, 1024);
/// Consecutive waits that probe: the first wakes a sleeping peer, and the second finds it awake.
const PROBES: u32 = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct SpinBudget {
    /// Nanoseconds.
    ns: AtomicU32,
    waits: AtomicU32,
    /// Of how many waits some probe.
    probe_every: AtomicU32,
    longest_ns: u32,
    /// While it is present, the budget is zero.
    contention: &'static CpuContention,
}

impl SpinBudget {
    pub(crate) fn new(longest_ns: u32, contention: &'static CpuContention) -> Self {
        let (ns, waits) = (AtomicU32::new(longest_ns), AtomicU32::new(0));
        let probe_every = AtomicU32::new(PROBE_EVERY.0);
        Self { ns, waits, probe_every, longest_ns, contention }
    }

    /// The budget of the next wait, in nanoseconds, at most `longest`; zero means not to poll.
    pub(crate) fn next(&self, longest: Duration) -> u32 {
        if self.contention.is_present() {
            return 0;
        }
        let ns = self.ns.load(Ordering::Relaxed);
        let most = u32::try_from(longest.as_nanos()).unwrap_or(u32::MAX);
        if ns >= LEAST_NS {
            return ns.min(most);
        }
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        let is_probe = waits % self.probe_every.load(Ordering::Relaxed) < PROBES;
        if is_probe { self.longest_ns.min(most) } else { 0 }
    }

    /// Polling has found something, after `took`.
    pub(crate) fn record_success(&self, took: Duration) {
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        if took > self.longest_ns {
            // Longer than any budget: the thread was preempted meanwhile.
            return self.record_interference();
        }
        let old = self.ns.load(Ordering::Relaxed);
        // Three times the usual wait, approached slowly from above.
        let want = took.saturating_mul(3).clamp(2 * LEAST_NS, self.longest_ns);
        let new = if want > old { want } else { old - (old - want) / 16 };
        self.ns.store(new, Ordering::Relaxed);
        self.probe_every.store(PROBE_EVERY.0, Ordering::Relaxed);
    }

    /// Polling has found nothing.
    pub(crate) fn record_failure(&self) {
        let old = self.ns.load(Ordering::Relaxed);
        self.ns.store(old / 4 * 3, Ordering::Relaxed);
    }

    /// Polling kept the peer, or another process, from running.
    pub(crate) fn record_interference(&self) {
        self.record_failure();
        let every = self.probe_every.load(Ordering::Relaxed);
        self.probe_every.store((every * 2).min(PROBE_EVERY.1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONGEST_NS: u32 = 100_000;
    const LONG: Duration = Duration::from_micros(100);

    fn budget() -> SpinBudget {
        static NONE: CpuContention = CpuContention::new();
        SpinBudget::new(LONGEST_NS, &NONE)
    }

    fn probes(budget: &SpinBudget, waits: usize) -> usize {
        (0..waits).filter(|_| budget.next(LONG) != 0).count()
    }

    #[test]
    fn the_budget_follows_how_long_successful_polls_took() {
        let budget = budget();
        assert_eq!(budget.next(LONG), LONGEST_NS);
        assert_eq!(budget.next(Duration::from_micros(10)), 10_000, "at most what was allowed");
        assert_eq!(budget.next(Duration::ZERO), 0);
        for _ in 0..20 {
            budget.record_failure();
        }
        // Polling never helps: only probes are left.
        assert_eq!(probes(&budget, 320), 20);
        budget.record_success(Duration::from_micros(5));
        assert_eq!(budget.next(LONG), 15_000, "three times the usual wait");
        budget.record_success(Duration::from_micros(90));
        assert_eq!(budget.next(LONG), LONGEST_NS);
        budget.record_success(Duration::from_secs(1));
        assert!(budget.next(LONG) < LONGEST_NS, "the thread was preempted");
        budget.record_success(Duration::from_micros(5));
        assert!((15_000..LONGEST_NS).contains(&budget.next(LONG)), "approached slowly from above");
    }

    #[test]
    fn probes_become_rare_where_polling_keeps_the_peer_from_running() {
        let budget = budget();
        for _ in 0..20 {
            budget.record_interference();
        }
        assert_eq!(probes(&budget, 4096), 8);
        budget.record_success(Duration::ZERO);
        for _ in 0..20 {
            budget.record_failure();
        }
        assert_eq!(probes(&budget, 64), 4, "probes are frequent again once one has helped");
    }

    #[test]
    fn the_budget_is_zero_while_the_cpus_are_contended() {
        static CONTENTION: CpuContention = CpuContention::new();
        let budget = SpinBudget::new(LONGEST_NS, &CONTENTION);
        // A pause that ends after the machine has run for a century.
        CONTENTION.report_at(Duration::from_secs(u32::MAX.into()));
        assert_eq!(probes(&budget, 4096), 0);
    }
}
