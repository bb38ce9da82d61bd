//! Tests of the budget of spins, and of its turns.

use super::of_thread::{FOR_FEW, MANY_MAX_NS};
use super::offer::*;
use super::turns::*;
use super::*;
use crate::engine::wait::yields::YIELDS;
use std::cell::Cell;

/// A condition that holds at its `n`th evaluation.
fn ready_at(n: u32) -> impl Fn() -> bool {
    let looks = Cell::new(0);
    move || {
        looks.set(looks.get() + 1);
        looks.get() >= n
    }
}

fn with_budget(nanos: u32) -> Spin {
    let spin = Spin::default();
    spin.budget_ns.store(nanos, Ordering::Relaxed);
    spin
}

fn budget(spin: &Spin) -> u32 {
    spin.budget_ns.load(Ordering::Relaxed)
}

#[test]
fn no_wait_spins_for_long_or_yields_where_other_processes_want_the_cpus() {
    let contention = contended();
    let spin = with_budget(MAX_NS);
    let too_late = ready_at(FREE_TURNS * stretch() + 2);
    assert!(!spin.wait_beside(Some(&contention), || None, too_late));
    assert_eq!(budget(&spin), MAX_NS, "nothing is learnt from it");
}

/// A machine on which other processes want all CPUs, as far as a test can wait.
fn contended() -> CpuContention {
    let contention = CpuContention::new();
    contention.report_at(Duration::from_secs(u32::MAX.into()));
    contention
}

#[test]
fn a_peer_on_another_cpu_is_spun_for_where_other_processes_want_the_cpus() {
    let contention = contended();
    let spin = with_budget(0);
    assert!(!spin.wait_beside(Some(&contention), || None, ready_at(2)), "one look, no spin");
    assert!(spin.wait_beside(Some(&contention), || Some(true), ready_at(2)));
    assert_eq!(budget(&spin), 0, "nothing is learnt from it");
}

#[test]
fn a_peer_on_this_cpu_is_not_spun_for_where_other_processes_want_the_cpus() {
    let contention = contended();
    let spin = with_budget(MAX_NS);
    assert!(!spin.wait_beside(Some(&contention), || Some(false), ready_at(2)));
    assert!(spin.wait_beside(None, || Some(false), ready_at(2)), "the machine is free");
}

#[test]
fn spins_for_a_peer_on_another_cpu_become_rare_in_vain_and_come_back_when_one_helps() {
    let contention = contended();
    let spin = Spin::default();
    spin.n_missed.store(MOST_MISSED, Ordering::Relaxed);
    let wait = || spin.wait_beside(Some(&contention), || Some(true), ready_at(2));
    let n_waits = (1..=PROBE_EVERY).find(|_| wait());
    assert_eq!(n_waits, Some(PROBE_EVERY));
    assert!(wait(), "the probe has helped");
}

#[test]
fn an_offer_that_takes_a_time_slice_reports_contention() {
    let contention = CpuContention::new();
    report_slice(Some(&contention), SHORTEST_SWITCH);
    assert!(!contention.has_been_reported());
    report_slice(Some(&contention), TIME_SLICE);
    assert!(contention.has_been_reported());
}

#[test]
fn a_spin_that_loses_its_cpu_for_a_time_slice_reports_contention_and_ends() {
    let contention = CpuContention::new();
    let (_alive, closed) = std::sync::mpsc::channel::<()>();
    let looks = Cell::new(0);
    let preempted_later = || {
        looks.set(looks.get() + 1);
        if looks.get() == 2 * FREE_TURNS * stretch() {
            let _ = closed.recv_timeout(2 * TIME_SLICE);
        }
        false
    };
    assert!(!with_budget(MAX_NS).wait_beside(Some(&contention), || None, preempted_later));
    assert!(contention.has_been_reported());
}

#[test]
fn a_peer_that_answers_once_it_gets_this_cpu_is_not_spun_for() {
    let spin = with_budget(0);
    assert!(spin.wait_beside(None, || None, ready_at(YIELDS)));
    assert_eq!(budget(&spin), 0);
}

#[test]
fn long_spins_go_on_while_they_help() {
    let (spin, slow) = (with_budget(0), Spin::new(1_000_000_000, MOST_YIELDS));
    let n_long = |spin: &Spin| spin.n_long.load(Ordering::Relaxed);
    spin.learn_hit(Duration::ZERO);
    assert_eq!(n_long(&spin), 0, "no try has begun");
    for spin in [&spin, &slow] {
        spin.n_long.store(LONG_SPINS, Ordering::Relaxed);
    }
    for (took, left) in [(MAX_NS, LONG_SPINS), (MAX_NS + 1, LONG_SPINS - 1)] {
        spin.learn_hit(Duration::from_nanos(took.into()));
        assert_eq!(n_long(&spin), left, "{took} ns");
    }
    slow.budget_ns.store(0, Ordering::Relaxed);
    assert!(slow.wait_beside(None, || None, ready_at(FREE_TURNS)));
    assert_eq!(n_long(&slow), LONG_SPINS);
    assert!(!spin.wait_beside(None, || None, || false));
    assert_eq!(n_long(&spin), 0);
}

#[test]
fn a_probe_that_fails_leaves_no_budget() {
    let spin = with_budget(PROBE_NS);
    assert!(!spin.wait_beside(None, || None, || false));
    assert_eq!(budget(&spin), 0);
}

#[test]
fn turns_are_stretched_where_reading_the_clock_is_slow() {
    let table = [(0, 1), (40, 1), (199, 1), (250, 2), (1_800, 4), (1_000_000_000, 4)];
    for (nanos, times) in table {
        assert_eq!(stretch_for(Duration::from_nanos(nanos)), times, "{nanos} ns");
    }
}

#[test]
fn the_budget_for_many_peers_is_small_also_where_long_spins_would_help() {
    let (few, many) = (Spin::default(), Spin::new(MANY_MAX_NS, MOST_YIELDS));
    for spin in [&few, &many] {
        spin.learn_hit(Duration::from_nanos((MAX_NS / 2).into()));
    }
    assert!(budget(&few) > MANY_MAX_NS);
    assert_eq!(budget(&many), MANY_MAX_NS);
}

#[test]
fn a_longer_limit_raises_what_a_wait_learns() {
    let spin = Spin::new(4 * MAX_NS, MOST_YIELDS);
    spin.learn_hit(Duration::from_nanos(MAX_NS.into()));
    assert_eq!(budget(&spin), 3 * MAX_NS);
    spin.learn_hit(Duration::from_nanos((2 * MAX_NS).into()));
    assert_eq!(budget(&spin), 4 * MAX_NS);
}

#[test]
fn waits_in_vain_end_and_lower_the_budget() {
    let spin = with_budget(2 * PROBE_NS);
    assert!(!spin.wait_beside(None, || None, || false));
    assert!(budget(&spin) < 2 * PROBE_NS);
}

#[test]
fn a_probe_that_hits_brings_spinning_back() {
    let spin = with_budget(0);
    for _ in 1..PROBE_EVERY {
        assert!(!spin.wait_beside(None, || None, || false));
    }
    // The arrival is found during the spin: one during a yield would lower the budget.
    assert!(spin.wait_beside(None, || None, ready_at(2)));
    assert!(budget(&spin) >= PROBE_NS);
}

#[test]
fn a_long_spin_is_tried_after_waits_that_follow_each_other_closely() {
    let spin = with_budget(0);
    let mut now = 0;
    let mut waits_until_try = |spin: &Spin, apart: u64| {
        (1..=2 * FIRST_TRY).find(|_| {
            now += apart;
            spin.is_long_try_due(now)
        })
    };
    assert_eq!(waits_until_try(&spin, 2 * CLOSE_NS), None, "these are not close");
    assert_eq!(waits_until_try(&spin, CLOSE_NS), Some(FIRST_TRY));
    assert_eq!(waits_until_try(&spin, CLOSE_NS), Some(2 * FIRST_TRY));
}

#[test]
fn no_long_spin_is_tried_for_a_peer_that_shares_this_cpu() {
    let spin = with_budget(0);
    for _ in 0..=FIRST_TRY {
        spin.began_ns.store(sys::nanos(), Ordering::Relaxed);
        assert!(spin.wait_beside(None, || None, ready_at(YIELDS)));
    }
    assert_eq!(budget(&spin), 0, "a long spin would have found that spinning helps");
}

#[test]
fn a_yield_is_a_switch_by_what_the_shortest_ones_take() {
    let micros = Duration::from_micros;
    for (took, shortest, is_switch) in [
        (2, 1, false),
        (3, 0, true),
        // An emulated guest, where a system call takes long.
        (4, 3, false),
        (12, 3, true),
        // No short one was seen yet.
        (15, 15, false),
        (20, 20, true),
    ] {
        assert_eq!(has_switched(micros(took), micros(shortest)), is_switch, "{took} {shortest}");
    }
}

#[test]
fn the_cpu_is_offered_now_and_then_and_each_time_while_others_take_it() {
    let spin = with_budget(MAX_NS);
    let n_offers = Cell::new(0);
    let after = |is_taken: bool, waits: u32| {
        n_offers.set(0);
        let offer = || {
            n_offers.set(n_offers.get() + 1);
            is_taken
        };
        let n_wanted = (0..waits).filter(|_| spin.is_cpu_wanted(false, offer)).count();
        (n_wanted, n_offers.get())
    };
    assert_eq!(after(false, 2 * OFFER_EVERY), (0, 2));
    assert_eq!(after(true, OFFER_EVERY), (1, 1));
    assert_eq!(after(true, 3), (3, 3));
    assert_eq!(after(false, OFFER_EVERY - 4), (0, 1), "they are gone");
    assert!(spin.is_cpu_wanted(true, || true), "a long spin would keep them waiting");
}

#[test]
fn a_wait_that_is_over_when_it_begins_teaches_nothing() {
    FOR_FEW.with(|spin| {
        spin.budget_ns.store(0, Ordering::Relaxed);
        spin.n_close.store(7, Ordering::Relaxed);
    });
    assert!(spin_on(|| true));
    FOR_FEW.with(|spin| assert_eq!(spin.n_close.load(Ordering::Relaxed), 7));
}
