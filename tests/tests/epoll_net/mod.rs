//! Random programs of epoll calls in lock step: what each call returns with the library is what it
//! returns without.
//!
//! A seed names a program (`program`), whose calls `model` has admitted. It runs without the
//! library first (`player`), then with it. A program whose calls return something else is made as
//! short as it can be, and shown, also as a C program (`c_source`).

mod c_source;
mod model;
mod player;
mod program;

use crate::c_program::compiled;
use c_source::c_source;
pub(crate) use model::Avoid;
use player::{Played, Stage, rate};
use program::{Call, Layout, possible, program};
use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

/// What came of many programs.
#[derive(Debug, Default)]
pub(crate) struct Found {
    /// Descriptions of those that differ.
    pub(crate) differences: Vec<String>,
    /// Programs in which bytes went past the kernel.
    pub(crate) off_kernel: u64,
}

/// What a program without the library is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    Library,
    /// Itself: it must not depend on time.
    Kernel,
}

/// Runs the programs of `n` seeds from `first` on, in some threads.
pub(crate) fn run(first: u64, n: u64, avoid: Avoid, against: Against) -> Found {
    let next = AtomicU64::new(first);
    let end = first.wrapping_add(n);
    let path = compiled("epoll_net");
    let began = Instant::now();
    let worker = |cpu| {
        let mut stage = Stage::new(&path, cpu);
        let mut found = Found::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed.wrapping_sub(first) >= end.wrapping_sub(first)
                || found.differences.len() >= ENOUGH
            {
                return found;
            }
            let done = seed.wrapping_sub(first) + 1;
            if done.is_multiple_of(PROGRESS) {
                // Past the harness, which keeps what a test prints: a run that says nothing is
                // ended.
                let rate = rate(done, began.elapsed().as_secs_f64());
                let text = format!("epoll net: {done} programs, seeds up to {seed}, {rate}\n");
                let _ = std::io::stdout().write_all(text.as_bytes());
            }
            let _watchdog = rsock_tests::Watchdog::new(LIMIT);
            run_one(&mut stage, seed, avoid, against, &mut found);
        }
    };
    thread::scope(|scope| {
        let spawn = |cpu| {
            let name = format!("epoll net {cpu}, seeds {first} and on");
            let work = move || worker(cpu);
            thread::Builder::new().name(name).spawn_scoped(scope, work).expect("a thread")
        };
        // More than processors: a program waits for the kernel's clock most of the time.
        let workers = [0, 1, 2, 3, 4, 5].map(spawn);
        let mut all = Found::default();
        for worker in workers {
            let found = worker.join().expect("reported above");
            all.differences.extend(found.differences);
            all.off_kernel += found.off_kernel;
        }
        all
    })
}

fn play_both(stage: &mut Stage<'_>, layout: Layout, calls: &[Call], against: Against) -> Pair {
    let plain = stage.play_plain(layout, calls);
    let other = match against {
        Against::Library => stage.play_with(layout, calls, &plain),
        Against::Kernel => stage.play_plain(layout, calls),
    };
    (plain, other)
}

fn run_one(stage: &mut Stage<'_>, seed: u64, avoid: Avoid, against: Against, found: &mut Found) {
    let (layout, calls) = program(seed, avoid);
    let pair = play_both(stage, layout, &calls, against);
    found.off_kernel += u64::from(pair.1.is_past_kernel);
    if differs(&pair) {
        let before = pair.clone();
        let possible = |calls| possible(layout, avoid, calls);
        let (calls, pair) = shorten(stage, layout, calls, possible, against, pair);
        let again = (0..10).filter(|_| differs(&play_both(stage, layout, &calls, against))).count();
        let mut text = shown(seed, layout, &pair);
        let _ = writeln!(text, "  again in {again} of 10 runs");
        if again == 0 {
            text.push_str(&shown(seed, layout, &before));
        }
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("epoll_{seed}.c"));
        fs::write(&path, c_source(seed, layout, &calls)).expect("a file in the target directory");
        let _ = writeln!(text, "  as a C program: {}", path.display());
        found.differences.push(text);
    }
}

/// The C programs of seeds from `first` on.
pub(crate) fn sources(first: u64, n: u64) -> impl Iterator<Item = String> {
    (first..first + n).map(|seed| {
        let (layout, calls) = program(seed, Avoid::Nothing);
        c_source(seed, layout, &calls)
    })
}

/// What a program's calls returned without the library, and with it.
type Pair = (Played, Played);

fn differs(pair: &Pair) -> bool {
    pair.0.calls != pair.1.calls
}

/// Leaves out calls as long as what is left still differs.
fn shorten(
    stage: &mut Stage<'_>,
    layout: Layout,
    mut calls: Vec<Call>,
    possible: impl Fn(Vec<Call>) -> Vec<Call>,
    against: Against,
    mut last: Pair,
) -> (Vec<Call>, Pair) {
    let mut piece = calls.len().div_ceil(2);
    while piece != 0 {
        let mut at = 0;
        while at < calls.len() {
            let mut fewer = calls.clone();
            fewer.drain(at..(at + piece).min(calls.len()));
            let fewer = possible(fewer);
            let pair = play_both(stage, layout, &fewer, against);
            if differs(&pair) {
                (calls, last) = (fewer, pair);
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    (calls, last)
}

fn shown(seed: u64, layout: Layout, (plain, other): &Pair) -> String {
    let mut text = format!(
        "program {seed}, {layout:?}: what a call returns without the library, and with it\n"
    );
    for i in 0..plain.calls.len().max(other.calls.len()) {
        let at = |played: &Played| match played.calls.get(i) {
            Some((call, answer)) => (call.clone(), answer.clone()),
            None => (String::new(), "nothing".to_owned()),
        };
        let ((call, answer), (_, second)) = (at(plain), at(other));
        let more = if answer == second { String::new() } else { format!("   <-- {second}") };
        let _ = writeln!(text, "  {call:<44} {answer}{more}");
    }
    text
}

/// After how many programs there is a sign of life.
const PROGRESS: u64 = 500;

/// Differences after which there is no need to look for more.
const ENOUGH: usize = 4;

/// Many times what one program needs, when it is made shorter too.
const LIMIT: std::time::Duration = std::time::Duration::from_secs(300);
