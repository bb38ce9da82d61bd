//! How long to spin before sleeping.
//!
//! Spinning wins when the peer runs on another CPU and answers soon. It loses when both share one
//! CPU, because then the peer cannot run while this thread spins. So the budget follows experience:
//! an arrival during the spin raises it, an arrival during the *yields* (the peer needed this CPU)
//! and a sleep lower it. The clock is read while nothing has arrived, never between an arrival and
//! the return: where reading it takes a real system call, that is a tenth of a round trip, and
//! there it is read less often.
//!
//! Two ends that both sleep between messages wait for each other's wake-ups, so none of them finds
//! that spinning would pay. So an end whose waits follow each other closely tries long spins now
//! and then, of four times the usual limit: that includes the wake-up of the peer and what it
//! computes then. If the peer answers meanwhile, this end goes on for some waits, in which its own
//! answers come without a wake-up; so the peer, when it tries a spin, finds that spinning pays for
//! it, and sleeps no more either.
//!
//! Where other processes want all CPUs ([`CpuContention`]), no wait yields, or spins for more than
//! a microsecond: a thread that is preempted, or yields, gets its CPU back a time slice later, and
//! one that sleeps is woken at once. PERF: beside two endless loops on two CPUs, round trips of a
//! byte (`rsock perf rr`) went from 335 a second to 131,000 (medians of three runs by turns).
//!
//! A waiter often knows on which CPU the peer ran when it last woke the waiter, and there its waits
//! do better. If the peer shares this CPU, they do not spin at all. If it runs on another one, they
//! spin, because to wake a thread on another busy CPU takes both CPUs long. PERF: nginx with one
//! connection of wrk, each bound to a CPU with an endless loop, went from 7,400 requests a second
//! to 82,000 (kernel TCP: 8,700; medians of three runs by turns).
//!
//! A peer behind a device is awaited in the same way. A software device runs on the CPUs of its
//! users, in threads that a spinning user keeps from running: without the pauses and the yields its
//! round trips took five times as long.

mod of_thread;
mod offer;
#[cfg(test)]
mod tests;
mod turns;

pub use of_thread::{spin_briefly_on, spin_on, spin_on_peers};
pub(crate) use offer::offer_cpu;

use crate::engine::wait::cpu_contention::{CPU_CONTENTION, CpuContention, TIME_SLICE};
use crate::engine::wait::spin::turns::{Spun, hold_back, spin_for, stretch, take_turns};
use crate::engine::wait::yields::{MOST_YIELDS, Yields};
use crate::sys;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Longest spin, unless `RSOCK_SPIN_US` says otherwise. Nanoseconds.
const MAX_NS: u32 = 50_000;
/// Budget of a new stream. Nanoseconds.
const START_NS: u32 = 10_000;
/// Spin that is tried now and then although spinning has not helped. Nanoseconds.
const PROBE_NS: u32 = 1_500;
/// Waits between two such probes.
const PROBE_EVERY: u32 = 32;
/// Waits are close if no more than this lies between the beginnings of two, which is the time that
/// both ends take: a long spin has to cover that of the peer. Nanoseconds.
const CLOSE_NS: u64 = 2 * LONG_TIMES as u64 * MAX_NS as u64;
/// Close waits in a row before a long spin is tried; after each that has not helped, twice as many.
const FIRST_TRY: u32 = 16;
const LAST_TRY: u32 = 4096;
/// Length of a long spin, in spins of the usual limit.
const LONG_TIMES: u32 = 4;
/// Long spins in a row that help, but take longer than the usual limit: enough for the peer to try
/// one meanwhile.
const LONG_SPINS: u32 = 4 * FIRST_TRY;
/// After so many spins in vain for a peer on another CPU of a contended machine, only every
/// [`PROBE_EVERY`]th wait spins.
const MOST_MISSED: u32 = 4;
/// Spins between two that offer the CPU to other threads first.
const OFFER_EVERY: u32 = 16;

/// A budget that learns. Plain atomics: races only cost precision.
#[derive(Debug)]
pub(in crate::engine) struct Spin {
    /// Longest spin, unless `RSOCK_SPIN_US` says otherwise. Nanoseconds.
    longest_ns: u32,
    budget_ns: AtomicU32,
    waits: AtomicU32,
    /// Close waits since the last long spin.
    n_close: AtomicU32,
    /// Close waits before the next one.
    try_after: AtomicU32,
    /// Long spins that are left.
    n_long: AtomicU32,
    yields: Yields,
    /// Waits that were to spin after the first turns.
    n_spins: AtomicU32,
    /// Spins in a row in vain for a peer on another CPU, while other processes wanted the CPUs.
    n_missed: AtomicU32,
    /// Whether another thread ran when this CPU was last offered before a spin.
    was_cpu_wanted: AtomicBool,
    /// When the last wait began that did not end at once, in nanoseconds since some moment.
    began_ns: AtomicU64,
}

impl Default for Spin {
    fn default() -> Self {
        Self::new(MAX_NS, MOST_YIELDS)
    }
}

impl Spin {
    const fn new(longest_ns: u32, most_yields: u32) -> Self {
        Self {
            longest_ns,
            budget_ns: AtomicU32::new(START_NS),
            waits: AtomicU32::new(0),
            n_close: AtomicU32::new(0),
            try_after: AtomicU32::new(FIRST_TRY),
            n_long: AtomicU32::new(0),
            yields: Yields::new(most_yields),
            n_spins: AtomicU32::new(0),
            n_missed: AtomicU32::new(0),
            was_cpu_wanted: AtomicBool::new(false),
            began_ns: AtomicU64::new(0),
        }
    }

    /// Spins, then yields, until `ready` holds, for a peer that `is_peer_elsewhere` knows to run on
    /// another CPU or on this one. False if the caller should sleep.
    pub(in crate::engine) fn wait(
        &self,
        is_peer_elsewhere: impl FnOnce() -> Option<bool>,
        ready: impl Fn() -> bool,
    ) -> bool {
        self.wait_beside(Some(&CPU_CONTENTION), is_peer_elsewhere, ready)
    }

    /// The first turns of [`Self::wait`]: about a microsecond, or nothing where spinning has not
    /// helped or other processes want the CPUs. A caller that `holds_back` lets as much time pass
    /// before.
    pub(in crate::engine) fn first_turns(
        &self,
        holds_back: bool,
        ready: impl Fn() -> bool,
    ) -> bool {
        let may_spin = self.max_ns() != 0 && self.budget_ns.load(Ordering::Relaxed) != 0;
        if !may_spin || CPU_CONTENTION.is_present() {
            return false;
        }
        if holds_back {
            hold_back();
        }
        take_turns(ready)
    }

    /// As [`Self::wait`] on a machine with `contention`, or with none ever, for a peer that
    /// `is_peer_elsewhere` knows to run on another CPU or on this one.
    fn wait_beside(
        &self,
        contention: Option<&CpuContention>,
        is_peer_elsewhere: impl FnOnce() -> Option<bool>,
        ready: impl Fn() -> bool,
    ) -> bool {
        let max = self.max_ns();
        if max == 0 {
            return ready();
        }
        let is_contended = contention.is_some_and(CpuContention::is_present);
        if is_contended && let Some(is_elsewhere) = is_peer_elsewhere() {
            return if is_elsewhere { self.wait_for_other_cpu(max, ready) } else { ready() };
        }
        let mut budget = self.budget_ns.load(Ordering::Relaxed).min(max);
        // The common case of a busy stream comes first: no clock, no shared write.
        if budget != 0 && take_turns(&ready) {
            return true;
        }
        if is_contended {
            return ready();
        }
        if budget < PROBE_NS && self.is_probe_due() {
            budget = PROBE_NS.min(max);
        }
        let is_try = budget < max / 2 && self.is_long_try_due(sys::nanos());
        if is_try {
            self.n_long.store(LONG_SPINS, Ordering::Relaxed);
        }
        let n_long = self.n_long.load(Ordering::Relaxed);
        let longest = if n_long == 0 { budget } else { max.saturating_mul(LONG_TIMES) };
        if longest != 0 && !self.is_cpu_wanted(is_try, || offer_cpu(contention)) {
            match spin_for(longest, &ready) {
                Spun::Ready(took) => {
                    self.learn_hit(took);
                    return true;
                }
                Spun::Preempted => {
                    if let Some(contention) = contention {
                        contention.report();
                        return ready();
                    }
                }
                Spun::InVain => {}
            }
        }
        self.n_long.store(0, Ordering::Relaxed);
        if let Some(is_ready) = self.yield_until(contention, budget, &ready) {
            return is_ready;
        }
        self.lower_to(budget / 4 * 3);
        false
    }

    /// Spins for a peer on another CPU where other processes want both. Each end gets its share of
    /// its CPU anyway, and spends it better on spins than on waking the other.
    fn wait_for_other_cpu(&self, max: u32, ready: impl Fn() -> bool) -> bool {
        let n_missed = self.n_missed.load(Ordering::Relaxed);
        if n_missed >= MOST_MISSED && !self.is_probe_due() {
            return ready();
        }
        let is_ready = match spin_for(max.saturating_mul(2), &ready) {
            Spun::Ready(_) => true,
            Spun::Preempted => return ready(),
            Spun::InVain => false,
        };
        self.n_missed.store(if is_ready { 0 } else { n_missed + 1 }, Ordering::Relaxed);
        is_ready
    }

    /// Yields until `ready` holds. None if that has not helped.
    fn yield_until(
        &self,
        contention: Option<&CpuContention>,
        budget: u32,
        ready: impl Fn() -> bool,
    ) -> Option<bool> {
        let mut offered = Instant::now();
        let n = self.yields.begin();
        for i in 0..n {
            rustix::thread::sched_yield();
            if let Some(contention) = contention
                && i.is_multiple_of(stretch())
            {
                let now = Instant::now();
                // Also if the peer has answered meanwhile: it will again, a time slice later.
                if now.duration_since(offered) >= TIME_SLICE {
                    contention.report();
                    return Some(ready());
                }
                offered = now;
            }
            if ready() {
                // The peer answered once it got this CPU: spinning kept it from running.
                self.lower_to(budget / 2);
                self.yields.learn_hit(i + 1);
                self.count_no_close_waits();
                return Some(true);
            }
        }
        self.yields.learn_miss(n);
        None
    }

    /// Whether other threads wait for this CPU: one of them may be the peer, or do what the peer
    /// waits for. Finds it out by letting them run: now and then, each time while there are some,
    /// and before the first of some long spins (`is_try`). PERF: with eight backends of PostgreSQL
    /// on two CPUs, spins took an eighth of the CPU time that the others wanted.
    fn is_cpu_wanted(&self, is_try: bool, offer: impl FnOnce() -> bool) -> bool {
        let n = self.n_spins.load(Ordering::Relaxed).wrapping_add(1);
        self.n_spins.store(n, Ordering::Relaxed);
        let is_due = is_try || n.is_multiple_of(OFFER_EVERY);
        if !is_due && !self.was_cpu_wanted.load(Ordering::Relaxed) {
            return false;
        }
        let is_wanted = offer();
        self.was_cpu_wanted.store(is_wanted, Ordering::Relaxed);
        is_wanted
    }

    /// Lowers the budget; to nothing if that is less than a probe, so that a thread which sleeps
    /// each time takes no turns before.
    fn lower_to(&self, budget: u32) {
        let budget = if budget < PROBE_NS { 0 } else { budget };
        self.budget_ns.store(budget, Ordering::Relaxed);
    }

    /// The peer shares this CPU, so that no long spin would help: tries that fail there would delay
    /// those that help once the peer has a CPU of its own. PERF: they were then so far apart that
    /// both ends went on sleeping for a fifth of a second (redis-benchmark with one client: 130
    /// thousand requests a second, and 300 thousand without such tries).
    fn count_no_close_waits(&self) {
        self.n_close.store(0, Ordering::Relaxed);
    }

    /// Counts a wait. True if it is to try spinning again.
    fn is_probe_due(&self) -> bool {
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        waits.is_multiple_of(PROBE_EVERY)
    }

    /// Notes a wait that begins at `now`. True if it is to try a long spin.
    fn is_long_try_due(&self, now: u64) -> bool {
        let began = self.began_ns.load(Ordering::Relaxed);
        self.began_ns.store(now, Ordering::Relaxed);
        let is_close = now.wrapping_sub(began) <= CLOSE_NS;
        let n = if is_close { self.n_close.load(Ordering::Relaxed).wrapping_add(1) } else { 0 };
        let tries_after = self.try_after.load(Ordering::Relaxed);
        let is_due = n >= tries_after;
        if is_due {
            // Until a spin of the usual length helps.
            let next = tries_after.saturating_mul(2).min(LAST_TRY);
            self.try_after.store(next, Ordering::Relaxed);
        }
        self.n_close.store(if is_due { 0 } else { n }, Ordering::Relaxed);
        is_due
    }

    /// Learns from an arrival after about `took`. Once a long spin has helped, a peer that answers
    /// within a spin of the usual length keeps long spins going: it now and then takes longer, and
    /// once this end sleeps, both ends sleep until the next try. PERF: an echo between two ends of
    /// Python's asyncio, where each computes for 38 us and a wake-up takes some 65: 4.1 to 4.5
    /// thousand round trips a second over kernel TCP, 4.3 to 4.6 with long spins of 100 us, 7.0 to
    /// 9.1 with 200 us, and 8 to 12.6 if long spins go on (medians of three by turns).
    fn learn_hit(&self, took: Duration) {
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        let max = self.max_ns();
        if took <= max {
            self.try_after.store(FIRST_TRY, Ordering::Relaxed);
        } else {
            let n_long = self.n_long.load(Ordering::Relaxed);
            self.n_long.store(n_long.saturating_sub(1), Ordering::Relaxed);
        }
        let old = self.budget_ns.load(Ordering::Relaxed);
        // Room for three times the usual wait, approached slowly from above.
        let want = took.saturating_mul(3).max(PROBE_NS);
        let new = if want > old { want } else { old - (old - want) / 16 };
        self.budget_ns.store(new.min(max).max(2 * PROBE_NS), Ordering::Relaxed);
    }

    fn max_ns(&self) -> u32 {
        chosen_ns().unwrap_or(self.longest_ns)
    }
}

/// Longest spin before a wait sleeps: `RSOCK_SPIN_US`, or `default`.
#[must_use]
pub fn longest_spin(default: Duration) -> Duration {
    crate::config::environment::spin_us().map_or(default, |us| Duration::from_micros(us.into()))
}

/// `RSOCK_SPIN_US`, in nanoseconds.
fn chosen_ns() -> Option<u32> {
    crate::config::environment::spin_us().map(|us| us.saturating_mul(1000))
}
