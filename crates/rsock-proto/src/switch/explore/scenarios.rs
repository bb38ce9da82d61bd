//! The scenarios that are explored, each as small as what it is about allows.

use super::config::{Config, Link, PLAIN};

/// Little room, so that what spills does so soon.
const TIGHT: Config = Config { tcp_room: 1, ring_room: 1, buffer: 2, bytes: [2, 0], ..PLAIN };
const FAR: Config = Config { is_far: true, ..TIGHT };

const A: [bool; 2] = [true, false];
const B: [bool; 2] = [false, true];
const BOTH: [bool; 2] = [true, true];

const FLUSHES: Config = Config { flushes: true, ..FAR };
const ONE_FLUSHES: Config = Config { bytes: [1, 0], ..FLUSHES };
const FAILS: [Link; 2] = [Link::Fails, Link::Holds];
const BACK_FAILS: [Link; 2] = [Link::Holds, Link::Fails];
const FALLS_SILENT: [Link; 2] = [Link::FallsSilent, Link::Holds];

/// Moves to and fro on one host, and what reads beside the reader.
pub(super) const MOVES: &[Config] = &[
    Config { name: "plain", ..PLAIN },
    Config { name: "plain, taken late", is_lazy: true, lane_room: 2, ..PLAIN },
    Config { name: "four bytes", bytes: [4, 0], ..TIGHT },
    Config { name: "pairs late", pairs_late: true, ..PLAIN },
    Config { name: "pairs late, counts", pairs_late: true, counts: [0, 2], ..PLAIN },
    Config { name: "polls, counts", pairs_late: true, polls: BOTH, counts: [0, 1], ..PLAIN },
    Config { name: "two readers", second_reads: [0, 2], ..PLAIN },
    Config { name: "fork", second_reads: [0, 2], pins: B, ..TIGHT },
    Config { name: "foreign writer", foreign: [1, 0], ..PLAIN },
    Config { name: "urgent", urgent: A, ..PLAIN },
    Config { name: "urgent, taken late", urgent: A, is_lazy: true, lane_room: 3, ..TIGHT },
    Config { name: "urgent, counts", urgent: A, counts: [0, 1], ..PLAIN },
];

/// What keeps a stream on TCP, on one host.
pub(super) const PINS: &[Config] = &[
    Config { name: "pinned writer", pins: A, ..PLAIN },
    Config { name: "pinned reader", pins: B, ..PLAIN },
    Config { name: "pinned, pairs late", pairs_late: true, pins: A, ..TIGHT },
    Config { name: "reader hands over", hands_over: B, ..PLAIN },
    Config { name: "writer hands over", hands_over: A, ..PLAIN },
    Config { name: "refusal", hands_over: B, pins: A, bytes: [1, 0], ..TIGHT },
    Config { name: "pins", pins: BOTH, ..TIGHT },
];

/// How streams end on one host.
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
    Config { name: "half-close, taken late", half_closes: A, is_lazy: true, ..TIGHT },
    Config { name: "half-close, two readers", half_closes: A, second_reads: [0, 2], ..TIGHT },
    Config { name: "half-close, foreign writer", half_closes: A, foreign: [1, 0], ..TIGHT },
    Config { name: "half-close, urgent", half_closes: A, urgent: A, ..TIGHT },
    Config { name: "urgent, reader dies", urgent: A, only_writes: A, dies: B, ..TIGHT },
    Config { name: "urgent, reader closes", urgent: A, only_writes: A, closes: B, ..TIGHT },
    Config { name: "writer closes, polls", closes: A, polls: BOTH, ..TIGHT },
    Config { name: "writer closes, pairs late", closes: A, pairs_late: true, ..TIGHT },
    Config { name: "writer closes, pinned", closes: A, pins: A, ..TIGHT },
    Config { name: "writer dies, pinned", dies: A, pins: A, ..TIGHT },
    Config { name: "writer dies, taken late", dies: A, is_lazy: true, ..TIGHT },
];

/// Between hosts.
pub(super) const BETWEEN_HOSTS: &[Config] = &[
    Config { name: "far", bytes: [3, 0], ..FAR },
    Config { name: "far, taken late", is_lazy: true, ..FAR },
    Config { name: "far, pinned writer", pins: A, ..FAR },
    Config { name: "far, reader hands over", hands_over: B, bytes: [1, 0], ..FAR },
    Config { name: "far, half-close", half_closes: A, ..FAR },
    Config { name: "far, writer closes", closes: A, ..FAR },
    Config { name: "far, writer dies", dies: A, ..FAR },
    Config { name: "far, reader dies", dies: B, ..FAR },
    Config { name: "far, urgent", urgent: A, ..FAR },
    Config { name: "far, two readers", second_reads: [0, 2], ..FAR },
    Config { name: "far, foreign writer", foreign: [1, 0], ..FAR },
    Config { name: "far, half-close, polls", half_closes: A, polls: BOTH, ..FAR },
    Config { name: "far, closes, taken late", closes: A, is_lazy: true, ..FAR },
    Config { name: "far, dies, taken late", dies: A, is_lazy: true, ..FAR },
];

/// Between hosts, over a link that may fail.
pub(super) const LINK_FAILS: &[Config] = &[
    Config { name: "far, link fails", link: FAILS, ..FLUSHES },
    Config { name: "far, link fails, refuses", link: FAILS, ..FAR },
    Config { name: "far, link fails, late", link: FAILS, is_lazy: true, ..FLUSHES },
    Config { name: "far, link fails, half-close", link: FAILS, half_closes: A, ..FLUSHES },
    Config { name: "far, link fails, closes", link: FAILS, closes: A, ..FLUSHES },
    Config { name: "far, link fails, polls", link: FAILS, polls: BOTH, ..FLUSHES },
    Config { name: "far, link fails, pinned", link: FAILS, pins: A, ..ONE_FLUSHES },
    Config { name: "far, link fails, shut reading", link: FAILS, shuts_reading: B, ..ONE_FLUSHES },
    Config { name: "far, link fails, urgent", link: FAILS, urgent: A, only_writes: A, ..FAR },
    Config { name: "far, way back fails", link: BACK_FAILS, ..ONE_FLUSHES },
    Config { name: "far, link falls silent", link: FALLS_SILENT, bytes: [3, 0], ..FAR },
    Config { name: "far, link falls silent, late", link: FALLS_SILENT, is_lazy: true, ..FAR },
];

/// Both directions at once.
pub(super) const TWO_WAYS: &[Config] = &[Config { name: "two ways", bytes: [2, 2], ..TIGHT }];

/// For an hour that is free.
pub(super) const DEEP: &[Config] = &[
    Config { name: "deep: two ways, pinned", pins: A, bytes: [1, 1], ..TIGHT },
    Config { name: "deep: refusal", hands_over: B, pins: A, ..TIGHT },
    Config { name: "deep: pins", pins: BOTH, ..PLAIN },
    Config { name: "deep: half-closes", half_closes: BOTH, bytes: [2, 1], ..TIGHT },
    Config { name: "deep: far, pins", pins: BOTH, bytes: [1, 0], ..FAR },
    Config { name: "deep: half-close, hand over", half_closes: A, hands_over: B, ..TIGHT },
    Config { name: "deep: hand over, two readers", hands_over: B, second_reads: [0, 1], ..TIGHT },
    Config { name: "deep: writer closes, pins", closes: A, pins: B, ..TIGHT },
    Config { name: "deep: reader closes, pins", closes: B, pins: B, ..TIGHT },
    Config { name: "deep: writer dies, pins", dies: A, pins: B, ..TIGHT },
    Config { name: "deep: reader dies, pins", dies: B, pins: A, ..TIGHT },
    Config { name: "deep: far, half-close, pins", half_closes: A, pins: A, ..FAR },
    Config { name: "deep: far, half-closes", half_closes: BOTH, bytes: [1, 0], ..FAR },
    Config { name: "deep: far, closes, pins", closes: A, pins: A, ..FAR },
    Config { name: "deep: far, dies, pins", dies: A, pins: A, ..FAR },
    Config { name: "deep: far, reader closes", closes: B, ..FAR },
];

/// For another: links that fail.
pub(super) const DEEP_LINKS: &[Config] = &[
    Config { name: "deep: far, way back fails", link: BACK_FAILS, ..FLUSHES },
    Config { name: "deep: far, link fails, two ways", link: FAILS, bytes: [1, 1], ..FLUSHES },
    Config { name: "deep: far, both fail, refuses", link: [Link::Fails; 2], bytes: [1, 1], ..FAR },
    Config { name: "deep: far, link fails, hands over", link: FAILS, hands_over: B, ..ONE_FLUSHES },
    Config { name: "deep: far, link fails, pinned", link: FAILS, pins: B, ..ONE_FLUSHES },
    Config {
        name: "deep: far, link fails, two ends",
        link: FAILS,
        half_closes: BOTH,
        ..ONE_FLUSHES
    },
    Config { name: "deep: far, link fails, dies", link: FAILS, dies: A, ..ONE_FLUSHES },
];
