//! Mistakes in the rules: the explorer finds each, and prints the shortest way to it.

use super::config::Config;
use super::model::Scenario;
use super::scenarios::{BETWEEN_HOSTS, ENDS, LINK_FAILS, MOVES, PINS};
use super::search::explore;
use super::world::MISTAKE;
use crate::switch::mistake::Mistake;

/// Many times what the scenarios have without a mistake.
const MOST_STATES: usize = 2_000_000;

/// The scenario that a mistake breaks.
fn scenario(mistake: Mistake) -> &'static str {
    use Mistake as M;
    match mistake {
        M::InviteWhileKernelOnlyWaits => "pairs late, counts",
        M::InvitedReadsAll | M::QueueAfterMessages | M::DownBeforeRingIsEmpty => "four bytes",
        M::NoSecondCheckAtEnd | M::UpWithoutReady => "writer closes",
        M::LimitIgnored | M::OffsetOfRingAndTcp => "plain, dispatched late",
        M::OffsetNotUnwrapped => "plain",
        M::KernelNotAsked => "foreign writer",
        M::ReadyUsedTwice | M::RingEndIsTheEnd => "half-close",
        M::LeaveNotAnswered => "pinned reader",
        M::RefusedByOneDown | M::DownsMerge => "refusal",
        M::EndOnTcpFirst | M::EndOfTcpBetweenHosts => "remote, half-close",
        M::TcpOvertakesRing => "remote, dispatched late",
        M::KernelCallOvertakes => "remote, urgent",
        M::EndWithoutLock => "half-close, two writers",
        M::ReaderWakesNoOther => "two readers",
        M::EmptyRingCountsAsLeft => "reader hands over",
        M::OwnEndUnnoticed => "reader shuts reading",
        M::SilenceIgnored => "remote, link falls silent",
        M::EndedByFailure => "remote, link fails, half-close",
        M::ErrorForgotten | M::DrainedByFailure | M::BreakIsAnEnd | M::FailureNotSettled => {
            "remote, link fails"
        }
    }
}

fn named(name: &str) -> Config {
    let all = [MOVES, PINS, ENDS, BETWEEN_HOSTS, LINK_FAILS].concat();
    all.into_iter().find(|config| config.name == name).expect("a scenario")
}

#[test]
fn every_mistake_is_found() {
    for mistake in Mistake::ALL {
        let config = named(scenario(mistake));
        MISTAKE.set(Some(mistake));
        let report = explore(&Scenario(config), MOST_STATES);
        MISTAKE.set(None);
        let failure = report.failure.unwrap_or_else(|| panic!("{mistake:?} is not found"));
        println!("{mistake:?}, in \"{}\", after {} states:", config.name, report.states);
        println!("{failure:?}");
        assert!(!failure.is_too_large(), "{mistake:?} is not found in {MOST_STATES} states");
    }
}
