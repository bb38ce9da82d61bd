//! The scenarios that are explored, each as small as its subject allows.

use super::config::{Config, Link, PLAIN};

/// Little room, so that a full ring spills soon.
const TIGHT: Config = Config { tcp_room: 1, ring_room: 1, buffer: 2, bytes: [2, 0], ..PLAIN };
const REMOTE: Config = Config { is_remote: true, ..TIGHT };

const A: [bool; 2] = [true, false];
const B: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true, true];

const FLUSHES: Config = Config { flushes: true, ..REMOTE };
const ONE_FLUSHES: Config = Config { bytes: [1, 0], ..FLUSHES };
const FAILS: [Link; 2] = [Link::Fails, Link::Holds];
const REVERSE_FAILS: [Link; 2] = [Link::Holds, Link::Fails];
const FALLS_SILENT: [Link; 2] = [Link::FallsSilent, Link::Holds];

/// Moves to the ring and back on one host, with a second reader in some.
pub(super) const MOVES: &[Config] = &[
    Config { name: "plain", ..PLAIN },
    Config { name: "plain, dispatched late", is_lazy: true, lane_room: 2, ..PLAIN },
    Config { name: "four bytes", bytes: [4, 0], ..TIGHT },
    Config { name: "pairs late", pairs_late: true, ..PLAIN },
    Config { name: "pairs late, counts", pairs_late: true, counts: [0, 2], ..PLAIN },
    Config { name: "polls, counts", pairs_late: true, polls: BOTH, counts: [0, 1], ..PLAIN },
    Config { name: "two readers", second_reads: [0, 2], ..PLAIN },
    Config { name: "fork", second_reads: [0, 2], pins: B, ..TIGHT },
    Config { name: "foreign writer", foreign: [1, 0], ..PLAIN },
    Config { name: "urgent", urgent: A, ..PLAIN },
    Config { name: "urgent, dispatched late", urgent: A, is_lazy: true, lane_room: 3, ..TIGHT },
    Config { name: "urgent, counts", urgent: A, counts: [0, 1], ..PLAIN },
];

/// Streams that are pinned to TCP, on one host.
pub(super) const PINS: &[Config] = &[
    Config { name: "pinned writer", pins: A, ..PLAIN },
    Config { name: "pinned reader", pins: B, ..PLAIN },
    Config { name: "pinned, pairs late", pairs_late: true, pins: A, ..TIGHT },
    Config { name: "reader hands over", hands_off: B, ..PLAIN },
    Config { name: "writer hands over", hands_off: A, ..PLAIN },
    Config { name: "refusal", hands_off: B, pins: A, bytes: [1, 0], ..TIGHT },
    Config { name: "pins", pins: BOTH, ..TIGHT },
];

/// Streams that end, on one host.
pub(super) const ENDS: &[Config] = &[
    Config { name: "half-close", half_closes: A, ..PLAIN },
    Config { name: "half-close, polls", half_closes: A, polls: BOTH, counts: [0, 1], ..PLAIN },
    Config { name: "half-close, pairs late", half_closes: A, pairs_late: true, ..TIGHT },
    Config { name: "half-close, pinned writer", half_closes: A, pins: A, ..TIGHT },
    Config { name: "half-close, pinned reader", half_closes: A, pins: B, ..TIGHT },
    Config { name: "half-close, two writers", half_closes: A, second_writes: [1, 0], ..TIGHT },
    Config { name: "half-closes", half_closes: BOTH, bytes: [1, 1], ..TIGHT },
    Config { name: "writer closes", closes: A, ..PLAIN },
    Config { name: "reader closes", closes: B, bytes: [2, 0], ..PLAIN },
    Config { name: "reader closes, answered", closes: A, bytes: [1, 1], ..TIGHT },
    Config { name: "writer dies", dies: A, ..PLAIN },
    Config { name: "reader dies", dies: B, bytes: [2, 0], ..PLAIN },
    Config { name: "reader shuts reading", shuts_reading: B, bytes: [2, 0], ..PLAIN },
    Config { name: "half-close, dispatched late", half_closes: A, is_lazy: true, ..TIGHT },
    Config { name: "half-close, two readers", half_closes: A, second_reads: [0, 2], ..TIGHT },
    Config { name: "half-close, foreign writer", half_closes: A, foreign: [1, 0], ..TIGHT },
    Config { name: "half-close, urgent", half_closes: A, urgent: A, ..TIGHT },
    Config { name: "urgent, reader dies", urgent: A, only_writes: A, dies: B, ..TIGHT },
    Config { name: "urgent, reader closes", urgent: A, only_writes: A, closes: B, ..TIGHT },
    Config { name: "writer closes, polls", closes: A, polls: BOTH, ..TIGHT },
    Config { name: "writer closes, pairs late", closes: A, pairs_late: true, ..TIGHT },
    Config { name: "writer closes, pinned", closes: A, pins: A, ..TIGHT },
    Config { name: "writer dies, pinned", dies: A, pins: A, ..TIGHT },
    Config { name: "writer dies, dispatched late", dies: A, is_lazy: true, ..TIGHT },
];

/// Between hosts.
pub(super) const BETWEEN_HOSTS: &[Config] = &[
    Config { name: "remote", bytes: [3, 0], ..REMOTE },
    Config { name: "remote, dispatched late", is_lazy: true, ..REMOTE },
    Config { name: "remote, pinned writer", pins: A, ..REMOTE },
    Config { name: "remote, reader hands over", hands_off: B, bytes: [1, 0], ..REMOTE },
    Config { name: "remote, half-close", half_closes: A, ..REMOTE },
    Config { name: "remote, writer closes", closes: A, ..REMOTE },
    Config { name: "remote, writer dies", dies: A, ..REMOTE },
    Config { name: "remote, reader dies", dies: B, ..REMOTE },
    Config { name: "remote, urgent", urgent: A, ..REMOTE },
    Config { name: "remote, two readers", second_reads: [0, 2], ..REMOTE },
    Config { name: "remote, foreign writer", foreign: [1, 0], ..REMOTE },
    Config { name: "remote, half-close, polls", half_closes: A, polls: BOTH, ..REMOTE },
    Config { name: "remote, closes, dispatched late", closes: A, is_lazy: true, ..REMOTE },
    Config { name: "remote, dies, dispatched late", dies: A, is_lazy: true, ..REMOTE },
];

/// Between hosts, over a link that may fail.
pub(super) const LINK_FAILS: &[Config] = &[
    Config { name: "remote, link fails", link: FAILS, ..FLUSHES },
    Config { name: "remote, link fails, refuses", link: FAILS, ..REMOTE },
    Config { name: "remote, link fails, late", link: FAILS, is_lazy: true, ..FLUSHES },
    Config { name: "remote, link fails, half-close", link: FAILS, half_closes: A, ..FLUSHES },
    Config { name: "remote, link fails, closes", link: FAILS, closes: A, ..FLUSHES },
    Config { name: "remote, link fails, polls", link: FAILS, polls: BOTH, ..FLUSHES },
    Config { name: "remote, link fails, pinned", link: FAILS, pins: A, ..ONE_FLUSHES },
    Config {
        name: "remote, link fails, shut reading",
        link: FAILS,
        shuts_reading: B,
        ..ONE_FLUSHES
    },
    Config { name: "remote, link fails, urgent", link: FAILS, urgent: A, only_writes: A, ..REMOTE },
    Config { name: "remote, reverse link fails", link: REVERSE_FAILS, ..ONE_FLUSHES },
    Config { name: "remote, link falls silent", link: FALLS_SILENT, bytes: [3, 0], ..REMOTE },
    Config { name: "remote, link falls silent, late", link: FALLS_SILENT, is_lazy: true, ..REMOTE },
];

/// Both directions at once.
pub(super) const TWO_WAYS: &[Config] = &[Config { name: "two ways", bytes: [2, 2], ..TIGHT }];

/// Large scenarios, which take minutes.
pub(super) const DEEP: &[Config] = &[
    Config { name: "deep: two ways, pinned", pins: A, bytes: [1, 1], ..TIGHT },
    Config { name: "deep: refusal", hands_off: B, pins: A, ..TIGHT },
    Config { name: "deep: pins", pins: BOTH, ..PLAIN },
    Config { name: "deep: half-closes", half_closes: BOTH, bytes: [2, 1], ..TIGHT },
    Config { name: "deep: remote, pins", pins: BOTH, bytes: [1, 0], ..REMOTE },
    Config { name: "deep: half-close, hand over", half_closes: A, hands_off: B, ..TIGHT },
    Config { name: "deep: hand over, two readers", hands_off: B, second_reads: [0, 1], ..TIGHT },
    Config { name: "deep: writer closes, pins", closes: A, pins: B, ..TIGHT },
    Config { name: "deep: reader closes, pins", closes: B, pins: B, ..TIGHT },
    Config { name: "deep: writer dies, pins", dies: A, pins: B, ..TIGHT },
    Config { name: "deep: reader dies, pins", dies: B, pins: A, ..TIGHT },
    Config { name: "deep: remote, half-close, pins", half_closes: A, pins: A, ..REMOTE },
    Config { name: "deep: remote, half-closes", half_closes: BOTH, bytes: [1, 0], ..REMOTE },
    Config { name: "deep: remote, closes, pins", closes: A, pins: A, ..REMOTE },
    Config { name: "deep: remote, dies, pins", dies: A, pins: A, ..REMOTE },
    Config { name: "deep: remote, reader closes", closes: B, ..REMOTE },
];

/// Large scenarios in which links fail.
pub(super) const DEEP_LINKS: &[Config] = &[
    Config { name: "deep: remote, reverse link fails", link: REVERSE_FAILS, ..FLUSHES },
    Config { name: "deep: remote, link fails, two ways", link: FAILS, bytes: [1, 1], ..FLUSHES },
    Config {
        name: "deep: remote, both fail, refuses",
        link: [Link::Fails; 2],
        bytes: [1, 1],
        ..REMOTE
    },
    Config {
        name: "deep: remote, link fails, hands over",
        link: FAILS,
        hands_off: B,
        ..ONE_FLUSHES
    },
    Config { name: "deep: remote, link fails, pinned", link: FAILS, pins: B, ..ONE_FLUSHES },
    Config {
        name: "deep: remote, link fails, two ends",
        link: FAILS,
        half_closes: BOTH,
        ..ONE_FLUSHES
    },
    Config { name: "deep: remote, link fails, dies", link: FAILS, dies: A, ..ONE_FLUSHES },
];
