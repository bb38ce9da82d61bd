//! Every interleaving of two ends over two channels.
//!
//! Both ends run the real [`Receiver`](super::Receiver) and [`Sender`](super::Sender), with offsets
//! of three bits, over models of TCP, of the ring, and of threads that call, hold locks and sleep.
//! A step is what a thread does between two points at which another thread could run: one query,
//! with the observation, message, read or write that it asks for. A try has the conditions of the
//! stream as they were when it began, except where [`Seen::note`](super::Seen::note) observes them
//! again, as in rsock-core.
//!
//! * Safety: no byte is lost, doubled or out of order; the end of a stream comes after its last
//!   byte; an error only where the peer died, reset, or was left with bytes unread, or where the
//!   link to another host failed with the ring in use.
//! * Liveness: from every state, steps that are sure to be taken (of programs that keep calling, of
//!   the network, of timers) lead to a state in which every byte is read, every end is reached, and
//!   every pinned stream is served by the kernel alone.

mod answers;
mod calls;
mod channel;
mod config;
mod mistakes;
mod model;
mod observations;
mod queue;
mod scenarios;
mod search;
mod thread;
mod world;

use config::Config;
use model::Scenario;
use search::{Report, explore};

/// States at most of one scenario.
const MOST_STATES: usize = 60_000_000;

fn run(config: &Config) -> Report {
    let report = explore(&Scenario(*config), MOST_STATES);
    let Report { states, steps, took, .. } = &report;
    println!("{:28} {states:9} states {steps:10} steps {took:?}", config.name);
    report
}

fn check(scenarios: &[Config]) {
    for config in scenarios {
        if let Some(failure) = run(config).failure {
            panic!("{}: {failure:?}", config.name);
        }
    }
}

#[test]
fn streams_move_to_and_fro() {
    check(scenarios::MOVES);
}

#[test]
fn pinned_streams_come_to_rest_on_tcp() {
    check(scenarios::PINS);
}

#[test]
fn streams_end() {
    check(scenarios::ENDS);
}

#[test]
fn streams_move_between_hosts() {
    check(scenarios::BETWEEN_HOSTS);
}

#[test]
fn streams_survive_or_report_a_failure_of_the_link() {
    check(scenarios::LINK_FAILS);
}

#[test]
fn both_directions_move() {
    check(scenarios::TWO_WAYS);
}

#[test]
#[ignore = "takes minutes"]
fn deep() {
    check(scenarios::DEEP);
}

#[test]
#[ignore = "takes minutes"]
fn deep_links() {
    check(scenarios::DEEP_LINKS);
}
