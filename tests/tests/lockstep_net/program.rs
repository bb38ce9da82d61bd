//! Random programs on one connection: what is called, on which end, by which thread.

use rsock_tests::lockstep::Random;
use std::fmt;

/// One call. What the numbers mean is up to the word: see `tests/c/lockstep.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) word: &'static str,
    pub(crate) end: usize,
    thread: usize,
    a: i64,
    pub(crate) b: i64,
}

impl Call {
    pub(crate) fn new(word: &'static str, end: usize, a: i64) -> Self {
        Self { word, end, thread: 0, a, b: 0 }
    }

    pub(crate) fn sends(self) -> bool {
        SENDS.contains(&self.word)
    }

    /// Whether it takes bytes away from the stream.
    fn takes(self) -> bool {
        TAKES.contains(&self.word)
    }

    /// Whether its end says with it that it reads, or writes, no more.
    pub(crate) fn ends(self) -> bool {
        matches!(self.word, "shutdown" | "close")
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, end, thread, a, b } = self;
        write!(f, "{word} {end} {thread} {a} {b}")
    }
}

/// Where the two ends are, and which of them have the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Both in one process.
    One,
    /// In two processes that have it.
    Two,
    /// In two processes, of which the one that connects has it.
    Client,
    /// In two processes, of which the one that accepts has it.
    Server,
}

/// The program of a seed, and how it is laid out.
pub(crate) fn program(seed: u64) -> (Layout, Vec<Call>) {
    let mut r = Random::new(seed);
    let layout = r.one_of(&[
        Layout::One,
        Layout::One,
        Layout::One,
        Layout::Two,
        Layout::Two,
        Layout::Client,
        Layout::Server,
    ]);
    let mut calls = Vec::new();
    if r.below(3) != 0 {
        // Enough for the two ends to find each other.
        for i in 0..20 + r.below(30) {
            calls.push(Call::new("send", i % 2, 1));
            calls.push(Call::new("recv", (i + 1) % 2, 10));
        }
    }
    let threads = if r.below(5) == 0 { 2 } else { 1 };
    for _ in 0..r.one_of(&[15, 30, 60, 120]) {
        let end = r.below(2);
        calls.extend(any(&mut r, end));
    }
    if r.below(5) != 0 {
        let closes = r.below(2);
        calls.push(Call::new("close", closes, 0));
        for _ in 0..8 {
            let word = r.one_of(&["recv", "recv", "poll", "send", "error", "readable", "state"]);
            calls.push(with_numbers(&mut r, word, 1 - closes));
        }
    }
    for call in &mut calls {
        call.thread = r.below(threads);
    }
    (layout, possible(calls))
}

/// Without calls on an end that has been closed, and without those that would put more under way
/// than the kernel takes at any time: what it answered would depend on when its buffers are
/// emptied.
pub(crate) fn possible(mut calls: Vec<Call>) -> Vec<Call> {
    let (mut under_way, mut is_open) = ([0, 0], [true, true]);
    // Named difference (docs/limits.md, "Urgent data"): two urgent bytes in a row.
    let mut has_sent_urgent = [false, false];
    // Urgent data stops readers, which then take less than they ask for.
    let mut most = [MOST_UNDER_WAY; 2];
    calls.retain(|call| {
        let (end, peer) = (call.end, 1 - call.end);
        if !is_open[end] || call.sends() && under_way[peer] + call.a > most[peer] {
            return false;
        }
        if call.word == "oob" && std::mem::replace(&mut has_sent_urgent[end], true) {
            return false;
        }
        match call.word {
            "close" => is_open[end] = false,
            "oob" => most[peer] /= 2,
            _ if call.sends() => under_way[peer] += call.a,
            _ if call.takes() => under_way[end] -= call.a.min(under_way[end]),
            _ => {}
        }
        true
    });
    calls
}

/// A call of any kind, on `end`. Of those that change the connection for good there are few.
fn any(r: &mut Random, end: usize) -> Option<Call> {
    let kind = r.below(100);
    let word = match kind {
        0..30 => r.one_of(SENDS),
        30..36 => "send",
        36..62 => r.one_of(TAKES),
        62..70 => "recv",
        70..78 => r.one_of(&["peek", "peekv", "none"]),
        78..97 => r.one_of(ASKS),
        97 => r.one_of(&["dup", "dup2", "dup", "dup2", "fork"]),
        98 => r.one_of(&["lowat", "linger", "inline", "oob"]),
        _ => "shutdown",
    };
    // Programs in which such a thing happens early say little about anything else.
    let is_rare = matches!(word, "fork" | "lowat" | "oob") && r.below(2) == 0;
    let waits = word.starts_with("timed") && r.below(4) != 0;
    (!is_rare && !waits).then(|| with_numbers(r, word, end))
}

fn with_numbers(r: &mut Random, word: &'static str, end: usize) -> Call {
    let (a, b) = match word {
        _ if SENDS.contains(&word) => {
            let most = if word == "sendfile" { MOST_OF_A_FILE } else { 20_000 };
            let n = r.one_of(&[0, 1, 2, 64, 1000, 5000, 20_000]);
            // A transfer of nothing means other things.
            let least = i64::from(matches!(word, "sendfile" | "splice"));
            (n.clamp(least, most), 1 + r.below(30))
        }
        // Named difference (docs/limits.md, "`splice`"): how much one call moves depends on how TCP
        // keeps its bytes.
        "spliceout" => (r.one_of(&[1, 10]), 1),
        "timed" => (r.one_of(&[1, 100, 65_536]), r.below(2)),
        "peekv" => (r.one_of(SIZES), 1 + r.below(7)),
        _ if TAKES.contains(&word) || word == "peek" => (r.one_of(SIZES), 1 + r.below(30)),
        "poll" => {
            let asked = r.one_of(&[0x2007, 0x2007, 0, 1, 2, 4, 0x2000, 0x1c3]);
            // With or without time to wait, and alone or among many entries, of which the library
            // passes over those that ask for input alone.
            match r.below(4) {
                b @ 2.. if asked == 0x2007 => (0x2001, b),
                b => (asked, b),
            }
        }
        "shutdown" => (r.one_of(&[0, 0, 1, 1, 2]), 0),
        "lowat" => (r.one_of(&[1, 2, 100, 5000]), 0),
        "inline" => (r.one_of(&[0, 1]), 0),
        "linger" => (r.one_of(&[0, 1]), r.below(2)),
        _ => (0, 0),
    };
    Call { word, end, thread: 0, a, b: i64::try_from(b).unwrap_or(0) }
}

const SENDS: &[&str] =
    &["send", "send", "write", "writev", "sendmsg", "sendfile", "splice", "timedsend"];
const TAKES: &[&str] =
    &["recv", "read", "readv", "recvmsg", "waitall", "discard", "spliceout", "timed"];
const ASKS: &[&str] = &[
    "poll", "poll", "poll", "select", "readable", "readable", "error", "state", "peername",
    "atmark", "urgent",
];
const SIZES: &[i64] = &[1, 10, 100, 4096, 65_536];

/// Named difference (docs/limits.md, "`sendfile` to a peer that resets"): what is sent from a file
/// goes in pieces of this many bytes.
const MOST_OF_A_FILE: i64 = 16_384;

/// Less than the kernel's buffers hold at any time.
const MOST_UNDER_WAY: i64 = 45_000;
