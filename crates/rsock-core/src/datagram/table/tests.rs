//! Scenarios with a virtual clock, and random operations against the invariants.

use crate::datagram::table::*;
use proptest::prelude::*;
use std::collections::HashMap;

const LIMITS: Limits = Limits {
    n_spoken: 8,
    n_heard: 4,
    confirm: Duration::from_secs(1),
    retry_min: Duration::from_millis(20),
    retry_max: Duration::from_millis(100),
};

/// A route is the number that it leads to, and does not detect the peer's exit.
type Routes = Table<QpNum>;

impl PeerRoute for QpNum {
    fn detects_peer_exit(&self) -> bool {
        false
    }
}

/// A route that detects the peer's exit.
#[derive(Debug, PartialEq)]
struct Detecting;

impl PeerRoute for Detecting {
    fn detects_peer_exit(&self) -> bool {
        true
    }
}

fn peer(i: u8) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, i], 7174))
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A table that has a route to `peer(1)`'s queue 5.
fn with_route(now: Instant) -> Routes {
    let mut table = Routes::new(LIMITS);
    assert_eq!(table.select(peer(1), now), Selection::Udp);
    assert_eq!(table.handle_control(peer(1), QpNum(5), now), None);
    assert_eq!(table.select(peer(1), now), Selection::Open(QpNum(5)));
    assert_eq!(table.select(peer(1), now), Selection::Udp);
    assert_eq!(table.opened(peer(1), QpNum(5), QpNum(5), now), None);
    table
}

#[test]
fn datagrams_go_by_udp_until_the_route_is_open() {
    let now = Instant::now();
    let mut table = with_route(now);
    assert_eq!(table.select(peer(1), now), Selection::Route(&QpNum(5)));
    assert_eq!(table.select(peer(2), now), Selection::Udp);
}

#[test]
fn a_source_that_sent_first_has_a_route_for_the_answer() {
    let now = Instant::now();
    let mut table = Routes::new(LIMITS);
    table.handle_data(peer(1), QpNum(9), now);
    assert_eq!(table.select(peer(1), now), Selection::Open(QpNum(9)));
}

#[test]
fn a_peer_that_restarts_is_found_under_its_new_number() {
    let now = Instant::now();
    let mut table = with_route(now);
    assert_eq!(table.handle_data(peer(1), QpNum(6), now), Some(QpNum(5)));
    assert_eq!(table.select(peer(1), now), Selection::Open(QpNum(6)));
    // The route that was being opened for the old number comes too late.
    assert_eq!(table.opened(peer(1), QpNum(5), QpNum(5), now), Some(QpNum(5)));
    assert_eq!(table.opened(peer(1), QpNum(6), QpNum(6), now), None);
    assert_eq!(table.select(peer(1), now), Selection::Route(&QpNum(6)));
}

#[test]
fn a_route_that_ends_leads_back_to_udp() {
    let now = Instant::now();
    let mut table = with_route(now);
    assert_eq!(table.lost(peer(1), now), Some(QpNum(5)));
    assert_eq!(table.select(peer(1), now), Selection::Udp);
    table.handle_control(peer(1), QpNum(5), now);
    assert_eq!(table.select(peer(1), now), Selection::Open(QpNum(5)));
}

#[test]
fn a_number_in_use_is_confirmed_periodically() {
    let start = Instant::now();
    let mut table = with_route(start);
    let later = start + ms(1000);
    assert_eq!(table.select(peer(1), later - ms(1)), Selection::Route(&QpNum(5)));
    assert_eq!(table.select(peer(1), later), Selection::Udp);
    // One datagram asks by UDP; the others do not wait for the answer.
    assert_eq!(table.select(peer(1), later + ms(1)), Selection::Route(&QpNum(5)));
    // The peer answers, and the route is opened again: the same number may belong to another queue
    // by now.
    let answered = later + ms(2);
    assert_eq!(table.handle_control(peer(1), QpNum(5), answered), Some(QpNum(5)));
    assert_eq!(table.select(peer(1), answered), Selection::Open(QpNum(5)));
    assert_eq!(table.opened(peer(1), QpNum(5), QpNum(5), answered), None);
    // Further answers do not change the route.
    assert_eq!(table.handle_control(peer(1), QpNum(5), answered + ms(1)), None);
    assert_eq!(table.select(peer(1), later + ms(900)), Selection::Route(&QpNum(5)));
    assert_eq!(table.select(peer(1), later + ms(1003)), Selection::Udp);
}

#[test]
fn a_route_that_detects_the_peers_exit_is_neither_confirmed_nor_reopened() {
    let now = Instant::now();
    let mut table = Table::new(LIMITS);
    table.handle_data(peer(1), QpNum(5), now);
    assert_eq!(table.select(peer(1), now), Selection::Open(QpNum(5)));
    assert_eq!(table.opened(peer(1), QpNum(5), Detecting, now), None);
    for minute in 1..60 {
        let now = now + ms(minute * 60_000);
        assert_eq!(table.select(peer(1), now), Selection::Route(&Detecting));
        assert_eq!(table.handle_data(peer(1), QpNum(5), now), None);
    }
}

#[test]
fn a_silent_peer_is_forgotten_after_a_while_but_not_after_a_pause_in_sending() {
    let start = Instant::now();
    let mut table = with_route(start);
    assert_eq!(table.select(peer(1), start + ms(1000)), Selection::Udp);
    assert_eq!(table.select(peer(1), start + ms(2000)), Selection::Udp);
    assert_eq!(table.select(peer(1), start + ms(2500)), Selection::Route(&QpNum(5)));
    assert_eq!(table.select(peer(1), start + ms(3000)), Selection::Udp);
    assert_eq!(table.select(peer(1), start + ms(3001)), Selection::Udp, "unknown now");
    // If nothing was sent for an hour, that says nothing about the peer.
    let mut table = with_route(start);
    assert_eq!(table.select(peer(1), start + ms(3_600_000)), Selection::Udp);
    assert_eq!(table.select(peer(1), start + ms(3_600_001)), Selection::Route(&QpNum(5)));
}

#[test]
fn retries_after_failures_back_off() {
    let mut now = Instant::now();
    let mut table = Routes::new(LIMITS);
    table.handle_data(peer(1), QpNum(9), now);
    for pause in [20, 40, 80, 100, 100] {
        assert_eq!(table.select(peer(1), now), Selection::Open(QpNum(9)));
        table.failed(peer(1), QpNum(9), now);
        assert_eq!(table.select(peer(1), now + ms(pause - 1)), Selection::Udp);
        now += ms(pause);
    }
    assert_eq!(table.select(peer(1), now), Selection::Open(QpNum(9)));
}

#[test]
fn control_packets_from_other_addresses_change_nothing() {
    let now = Instant::now();
    let mut table = with_route(now);
    let other_port = SocketAddr::new(peer(1).ip(), 7175);
    for from in [peer(2), other_port] {
        assert_eq!(table.handle_control(from, QpNum(66), now), None);
    }
    assert_eq!((table.n_unsolicited(), table.len()), (2, 1));
    assert_eq!(table.select(peer(1), now), Selection::Route(&QpNum(5)));
    assert_eq!(table.select(peer(2), now), Selection::Udp);
}

#[test]
fn a_peer_without_a_queue_is_reached_by_udp() {
    let now = Instant::now();
    let mut table = with_route(now);
    assert_eq!(table.handle_control(peer(1), QpNum(0), now), Some(QpNum(5)));
    assert_eq!(table.select(peer(1), now), Selection::Udp);
    table.handle_data(peer(2), QpNum(0), now);
    assert_eq!(table.select(peer(2), now), Selection::Udp);
}

#[test]
fn a_flood_of_unknown_sources_displaces_no_destination() {
    let now = Instant::now();
    let mut table = with_route(now);
    for i in 0..10_000u32 {
        let [a, b, ..] = i.to_be_bytes();
        let [.., c, d] = i.to_be_bytes();
        let from = SocketAddr::from(([10, a | b, c, d], 1));
        table.handle_data(from, QpNum(i + 1), now);
        table.handle_control(from, QpNum(i + 1), now);
    }
    assert!(table.len() <= 1 + LIMITS.n_heard);
    assert_eq!(table.select(peer(1), now), Selection::Route(&QpNum(5)));
}

#[derive(Clone, Debug)]
enum Op {
    Send(u8),
    Data(u8, u32),
    Control(u8, u32),
    Open(u8),
    Fail(u8),
    Lose(u8),
    Sleep(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let peers = 0u8..14;
    prop_oneof![
        4 => peers.clone().prop_map(Op::Send),
        2 => (peers.clone(), 0u32..4).prop_map(|(p, n)| Op::Data(p, n)),
        2 => (peers.clone(), 0u32..4).prop_map(|(p, n)| Op::Control(p, n)),
        3 => peers.clone().prop_map(Op::Open),
        1 => peers.clone().prop_map(Op::Fail),
        1 => peers.prop_map(Op::Lose),
        2 => (1u64..2000).prop_map(Op::Sleep),
    ]
}

proptest! {
    /// After any operations a route in use leads to the number that its destination told last, and
    /// the table is bounded.
    #[test]
    fn ways_lead_where_their_destination_says(ops in proptest::collection::vec(op(), 0..300)) {
        let mut now = Instant::now();
        let mut table = Routes::new(LIMITS);
        let mut said: HashMap<u8, u32> = HashMap::new();
        let mut opening: HashMap<u8, QpNum> = HashMap::new();
        for op in ops {
            match op {
                Op::Send(p) => match table.select(peer(p), now) {
                    Selection::Udp => {}
                    Selection::Open(number) => {
                        prop_assert_eq!(Some(&number.0), said.get(&p));
                        opening.insert(p, number);
                    }
                    Selection::Route(route) => {
                        prop_assert!(route.0 != 0);
                        prop_assert_eq!(Some(&route.0), said.get(&p));
                    }
                },
                Op::Data(p, n) => {
                    table.handle_data(peer(p), QpNum(n), now);
                    said.insert(p, n);
                }
                Op::Control(p, n) => {
                    let before = table.n_unsolicited();
                    table.handle_control(peer(p), QpNum(n), now);
                    if table.n_unsolicited() == before {
                        said.insert(p, n);
                    }
                }
                Op::Open(p) => if let Some(number) = opening.remove(&p) {
                    table.opened(peer(p), number, number, now);
                },
                Op::Fail(p) => if let Some(number) = opening.remove(&p) {
                    table.failed(peer(p), number, now);
                },
                Op::Lose(p) => {
                    table.lost(peer(p), now);
                }
                Op::Sleep(n) => now += ms(n),
            }
            prop_assert!(table.len() <= LIMITS.n_spoken + LIMITS.n_heard);
        }
    }
}
