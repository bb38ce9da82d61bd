//! How often a wait yields its CPU before it sleeps.
//!
//! A yield helps where the peer, or what the peer waits for, wants this CPU. Where it helps, a few
//! yields more are cheaper than a sleep, which takes a wake-up by the peer too. Where both ends
//! have CPUs of their own, each yield is a system call for nothing.

use std::sync::atomic::{AtomicU32, Ordering};

/// Yields of a thread of which nothing is known, and the most of one whose waits they end. PERF:
/// with eight backends of PostgreSQL on two CPUs a wait took 8 of always 12 yields and then often
/// a sleep; where it may take more, few waits sleep, and `pgbench -S` went from 1.12 to 1.44 of
/// the kernel's rate (medians of seven runs by turns; peers rang by datagrams then).
pub(super) const YIELDS: u32 = 12;
pub(super) const MOST_YIELDS: u32 = 64;
/// The most of a thread that waits for several descriptors. Its sleep is short of system calls,
/// as peers ring it by a pipe; and what it waits for beside them may come while it yields.
/// PERF: `pgbench -S` with eight backends on two CPUs had 1.05 of the kernel's rate with up to 64
/// yields, and 1.16 to 1.24 with up to 1, 2, 3 or 6 (medians of ten by turns).
pub(super) const FEW_YIELDS: u32 = 2;
/// A wait tries so many times the yields that have ended the last ones.
const TRIED: u32 = 4;
/// The yields in vain that one wait which a yield ended pays for: a sleep and a wake-up take both
/// ends as long as some twenty. PERF: a server that got 10,000 requests a second made 11 yields
/// before each, and these ended one wait of ten: a sixth of the CPU time of both ends.
const WORTH: u32 = 32;
/// The yields in vain after which a thread gives up yielding.
const MOST_IN_VAIN: u32 = 64 * YIELDS;
/// Of the waits of a thread that has given up yielding, one of so many yields.
const YIELD_EVERY: u32 = 32;

/// Learns how often to yield. Plain atomics: races only cost precision.
#[derive(Debug)]
pub(super) struct Yields {
    /// Yields of the next wait that yields.
    n: AtomicU32,
    /// How many yields may still be in vain.
    credit: AtomicU32,
    /// Waits while there was no credit.
    n_without: AtomicU32,
    /// Yields of one wait at most.
    most: u32,
}

impl Yields {
    pub(super) const fn new(most: u32) -> Self {
        Self {
            n: AtomicU32::new(YIELDS),
            credit: AtomicU32::new(MOST_IN_VAIN),
            n_without: AtomicU32::new(0),
            most,
        }
    }

    /// How often a wait that spinning has not ended is to yield.
    pub(super) fn begin(&self) -> u32 {
        if self.credit.load(Ordering::Relaxed) == 0 {
            let n_without = self.n_without.load(Ordering::Relaxed).wrapping_add(1);
            self.n_without.store(n_without, Ordering::Relaxed);
            if !n_without.is_multiple_of(YIELD_EVERY) {
                return 0;
            }
        }
        self.n.load(Ordering::Relaxed).min(self.most)
    }

    /// Learns from a wait that its `n`th yield has ended.
    pub(super) fn learn_hit(&self, n: u32) {
        let credit = self.credit.load(Ordering::Relaxed);
        self.credit.store((credit + WORTH).min(MOST_IN_VAIN), Ordering::Relaxed);
        let old = self.n.load(Ordering::Relaxed);
        let want = n.saturating_mul(TRIED).clamp(YIELDS, MOST_YIELDS);
        let new = if want > old { want } else { old - (old - want) / 16 };
        self.n.store(new, Ordering::Relaxed);
    }

    /// Learns from a wait that none of its `n` yields has ended.
    pub(super) fn learn_miss(&self, n: u32) {
        if n == 0 {
            return;
        }
        let credit = self.credit.load(Ordering::Relaxed);
        self.credit.store(credit.saturating_sub(n), Ordering::Relaxed);
        let old = self.n.load(Ordering::Relaxed);
        self.n.store((old - old / 4).max(YIELDS), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Begins a wait that yields do not end; how many it makes.
    fn wait_in_vain(yields: &Yields) -> u32 {
        let n = yields.begin();
        yields.learn_miss(n);
        n
    }

    #[test]
    fn yields_that_never_help_become_rare_and_come_back_when_one_does() {
        let yields = Yields::new(MOST_YIELDS);
        let before = (0..MOST_IN_VAIN).take_while(|_| wait_in_vain(&yields) != 0);
        assert_eq!(before.count(), 64);
        let waits = (0..2 * YIELD_EVERY).map(|_| wait_in_vain(&yields));
        assert_eq!(waits.filter(|&n| n != 0).count(), 2);
        yields.learn_hit(1);
        assert_eq!(wait_in_vain(&yields), YIELDS);
    }

    #[test]
    fn yields_that_seldom_help_become_rare_and_those_that_often_do_go_on() {
        for (hit_every, is_rare) in [(2, false), (10, true)] {
            let yields = Yields::new(MOST_YIELDS);
            let wait = |i: u32| {
                let n = yields.begin();
                match n {
                    0 => {}
                    _ if i.is_multiple_of(hit_every) => yields.learn_hit(1),
                    _ => yields.learn_miss(n),
                }
                n
            };
            (0..1000).for_each(|i| _ = wait(i));
            let n_yields: u32 = (0..100).map(wait).sum();
            assert_eq!(n_yields < 50 * YIELDS, is_rare, "{n_yields} in 100 waits");
        }
    }

    #[test]
    fn a_wait_yields_no_more_often_than_it_may() {
        let yields = Yields::new(FEW_YIELDS);
        assert_eq!(yields.begin(), FEW_YIELDS);
        yields.learn_hit(FEW_YIELDS);
        assert_eq!(yields.begin(), FEW_YIELDS);
    }

    #[test]
    fn waits_that_late_yields_end_get_more_of_them_until_these_are_in_vain() {
        let yields = Yields::new(MOST_YIELDS);
        yields.learn_hit(YIELDS);
        assert_eq!(yields.begin(), YIELDS * TRIED);
        yields.learn_hit(MOST_YIELDS);
        assert_eq!(yields.begin(), MOST_YIELDS);
        yields.learn_hit(1);
        assert!((YIELDS..MOST_YIELDS).contains(&yields.begin()));
        (0..MOST_YIELDS).for_each(|_| _ = wait_in_vain(&yields));
        assert_eq!(yields.n.load(Ordering::Relaxed), YIELDS);
    }
}
