//! Random programs in lock step: what each call returns with the library is what it returns
//! without.
//!
//! A seed names a program (`program`), which runs without the library first (`player`), then with
//! it. A program whose calls return something else is made as short as it can be, and shown.

mod player;
mod program;

use crate::c_program::compiled;
use player::{Played, Stage};
use program::{Call, Layout, possible, program};
use std::fmt::Write as _;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// What came of many programs.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Descriptions of those that differ.
    pub(crate) differences: Vec<String>,
    /// Programs in which bytes went past the kernel.
    pub(crate) off_kernel: u64,
}

/// Runs the programs of `n` seeds from `first` on, in two threads.
pub(crate) fn run(first: u64, n: u64) -> Found {
    let next = AtomicU64::new(first);
    let end = first.wrapping_add(n);
    let path = compiled("lockstep");
    let worker = || {
        let mut stage = Stage::new(&path);
        let mut found = Found::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed.wrapping_sub(first) >= end.wrapping_sub(first)
                || found.differences.len() >= ENOUGH
            {
                return found;
            }
            if seed.wrapping_sub(first) % PROGRESS == PROGRESS - 1 {
                // Past the harness, which keeps what a test prints: a run that says nothing is
                // ended.
                let text = format!("lock step: {PROGRESS} more programs, seeds up to {seed}\n");
                let _ = std::io::stdout().write_all(text.as_bytes());
            }
            let _watchdog = rsock_tests::Watchdog::new(LIMIT);
            run_one(&mut stage, seed, &mut found);
        }
    };
    thread::scope(|scope| {
        let spawn = |i| {
            let name = format!("lock step {i}, seeds {first} and on");
            thread::Builder::new().name(name).spawn_scoped(scope, worker).expect("a thread")
        };
        let workers = [0, 1].map(spawn);
        let mut all = Found::default();
        for worker in workers {
            let found = worker.join().expect("reported above");
            all.differences.extend(found.differences);
            all.off_kernel += found.off_kernel;
        }
        all
    })
}

fn run_one(stage: &mut Stage<'_>, seed: u64, found: &mut Found) {
    let (layout, calls) = program(seed);
    let plain = stage.play_plain(&calls);
    let ours = stage.play(layout, &calls);
    found.off_kernel += u64::from(ours.past_kernel != 0);
    if ours.calls != plain.calls {
        let differs = shorten(stage, layout, calls, (plain, ours));
        found.differences.push(shown(seed, layout, &differs));
    }
}

/// What a program's calls returned without the library, and with it.
type Pair = (Played, Played);

/// Leaves out calls as long as what is left still differs.
fn shorten(stage: &mut Stage<'_>, layout: Layout, mut calls: Vec<Call>, mut last: Pair) -> Pair {
    let mut piece = calls.len().div_ceil(2);
    while piece != 0 {
        let mut at = 0;
        while at < calls.len() {
            let mut fewer = calls.clone();
            fewer.drain(at..(at + piece).min(calls.len()));
            let fewer = possible(fewer);
            let plain = stage.play_plain(&fewer);
            let ours = stage.play(layout, &fewer);
            if plain.calls == ours.calls {
                at += piece;
            } else {
                (calls, last) = (fewer, (plain, ours));
            }
        }
        piece /= 2;
    }
    last
}

fn shown(seed: u64, layout: Layout, (plain, ours): &Pair) -> String {
    let mut text = format!(
        "program {seed}, {layout:?}: what a call returns without the library, and with it\n"
    );
    for i in 0..plain.calls.len().max(ours.calls.len()) {
        let at = |played: &Played| match played.calls.get(i) {
            Some((call, answer)) => (call.to_string(), answer.clone()),
            None => (String::new(), "nothing".to_owned()),
        };
        let ((call, answer), (_, other)) = (at(plain), at(ours));
        let mark = if answer == other { "" } else { "   <-- differs" };
        let _ = writeln!(text, "  {call:<24} {answer:<20} {other}{mark}");
    }
    text
}

/// After how many programs there is a sign of life.
const PROGRESS: u64 = 100;

/// Differences after which there is no need to look for more.
const ENOUGH: usize = 4;

/// Many times what one program needs, when it is made shorter too.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(300);
