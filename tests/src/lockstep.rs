//! Random programs in lock step: what each call returns with the preload library is what it
//! returns without.
//!
//! A seed names a program, which runs twice. One whose calls return something else the second time
//! is made as short as it can be, and shown.

mod player;
mod random;

pub use player::{Library, Player};
pub use random::Random;

use crate::Watchdog;
use std::env;
use std::fmt::{Debug, Write as _};
use std::hash::{BuildHasher, RandomState};
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A kind of random programs, and the processes that they run in.
pub trait Net: Sync {
    /// Its name in messages.
    const NAME: &'static str;
    /// The environment variable that gives [`Seeds`].
    const VARIABLE: &'static str;
    /// How many programs run at a time.
    const WORKERS: usize;

    /// Which processes the ends of a program's connections are in.
    type Layout: Copy + Debug;
    /// A call of a program.
    type Call: Clone;
    /// The processes that programs run in, one after the other.
    type Stage;

    /// The processes of a worker.
    fn stage(&self, worker: usize) -> Self::Stage;

    /// The program of a seed.
    fn program(&self, seed: u64) -> (Self::Layout, Vec<Self::Call>);

    /// Without the calls that have no meaning after others were left out.
    fn possible(&self, layout: Self::Layout, calls: Vec<Self::Call>) -> Vec<Self::Call>;

    /// What came of a program without the library, and with it.
    fn play(
        &self,
        stage: &mut Self::Stage,
        layout: Self::Layout,
        calls: &[Self::Call],
    ) -> [Played; 2];

    /// Whether programs run with the library the second time. Otherwise they are compared with
    /// themselves: they must not depend on time.
    fn uses_library(&self) -> bool {
        true
    }

    /// What a report says of a program that differs, beside its calls.
    fn note(&self, _seed: u64, _layout: Self::Layout, _calls: &[Self::Call]) -> String {
        String::new()
    }
}

/// What came of a program.
#[derive(Clone, Debug, Default)]
pub struct Played {
    /// The calls that were made, as text, and what they returned.
    pub calls: Vec<(String, String)>,
    /// Whether bytes went past the kernel.
    pub is_past_kernel: bool,
}

/// Seeds of programs: `n` from `first` on.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The seed of the first program.
    pub first: u64,
    /// How many programs.
    pub n: u64,
}

impl Seeds {
    /// Others each time.
    #[must_use]
    pub fn fresh(n: u64) -> Self {
        Self { first: RandomState::new().hash_one(0) >> 16, n }
    }

    /// Those of a long run, or of one that has failed: `FIRST:NUMBER` in the environment.
    ///
    /// # Panics
    /// If these are not numbers.
    #[must_use]
    pub fn given<N: Net>() -> Option<Self> {
        let given = env::var(N::VARIABLE).ok()?;
        let (first, n) = given.split_once(':')?;
        Some(Self { first: first.parse().expect("a seed"), n: n.parse().expect("a number") })
    }
}

/// Runs the programs of some seeds, several at a time.
///
/// # Panics
/// If a program's calls return something else with the library, or hardly any program used a ring.
pub fn assert_no_difference<N: Net>(net: &N, seeds: Seeds) {
    let Seeds { first, n } = seeds;
    let found = run(net, seeds);
    assert!(
        found.differences.is_empty(),
        "of the programs with seeds {first} and on ({}={first}:{n}):\n{}",
        N::VARIABLE,
        found.differences.join("\n")
    );
    // Otherwise this would compare the kernel with itself.
    assert!(
        !net.uses_library() || found.past_kernel * 4 > n,
        "only {} of {n} programs used a ring",
        found.past_kernel
    );
}

/// What came of many programs.
#[derive(Debug, Default)]
struct Found {
    /// Descriptions of those that differ.
    differences: Vec<String>,
    /// Programs in which bytes went past the kernel.
    past_kernel: u64,
}

fn run<N: Net>(net: &N, Seeds { first, n }: Seeds) -> Found {
    let next = AtomicU64::new(0);
    let began = Instant::now();
    let work = |worker| {
        let mut stage = net.stage(worker);
        let mut found = Found::default();
        loop {
            let done = next.fetch_add(1, Ordering::Relaxed);
            if done >= n || found.differences.len() >= ENOUGH {
                return found;
            }
            let seed = first.wrapping_add(done);
            if (done + 1).is_multiple_of(PROGRESS) {
                say_progress::<N>(done + 1, seed, began.elapsed());
            }
            let _watchdog = Watchdog::new(LIMIT);
            run_one(net, &mut stage, seed, &mut found);
        }
    };
    let work = &work;
    thread::scope(|scope| {
        let workers = Vec::from_iter((0..N::WORKERS).map(|worker| {
            let name = format!("{} {worker}, seeds {first} and on", N::NAME);
            let builder = thread::Builder::new().name(name);
            builder.spawn_scoped(scope, move || work(worker)).expect("a thread")
        }));
        let mut all = Found::default();
        for worker in workers {
            let found = worker.join().expect("reported above");
            all.differences.extend(found.differences);
            all.past_kernel += found.past_kernel;
        }
        all
    })
}

/// Past the harness, which keeps what a test prints: a run that prints nothing is ended.
fn say_progress<N: Net>(done: u64, seed: u64, elapsed: Duration) {
    let rate = f64::from(u32::try_from(done).unwrap_or(u32::MAX)) / elapsed.as_secs_f64();
    let name = N::NAME;
    let text = format!("{name}: {done} programs, seeds up to {seed}, {rate:.0} a second\n");
    let _ = std::io::stdout().write_all(text.as_bytes());
}

fn run_one<N: Net>(net: &N, stage: &mut N::Stage, seed: u64, found: &mut Found) {
    let (layout, calls) = net.program(seed);
    let pair = net.play(stage, layout, &calls);
    found.past_kernel += u64::from(pair[1].is_past_kernel);
    if !differs(&pair) {
        return;
    }
    let before = pair.clone();
    let (calls, pair) = shorten(net, stage, layout, calls, pair);
    let again = (0..AGAIN).filter(|_| differs(&net.play(stage, layout, &calls))).count();
    let mut text = shown(seed, layout, &pair);
    let _ = writeln!(text, "  again in {again} of {AGAIN} runs");
    if again == 0 {
        text.push_str(&shown(seed, layout, &before));
    }
    text.push_str(&net.note(seed, layout, &calls));
    found.differences.push(text);
}

fn differs([first, second]: &[Played; 2]) -> bool {
    first.calls != second.calls
}

/// Leaves out calls as long as what is left still differs.
fn shorten<N: Net>(
    net: &N,
    stage: &mut N::Stage,
    layout: N::Layout,
    mut calls: Vec<N::Call>,
    mut last: [Played; 2],
) -> (Vec<N::Call>, [Played; 2]) {
    let mut piece = calls.len().div_ceil(2);
    while piece != 0 {
        let mut at = 0;
        while at < calls.len() {
            let mut fewer = calls.clone();
            fewer.drain(at..(at + piece).min(calls.len()));
            let fewer = net.possible(layout, fewer);
            let pair = net.play(stage, layout, &fewer);
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

fn shown(seed: u64, layout: impl Debug, [first, second]: &[Played; 2]) -> String {
    let mut text = format!(
        "program {seed}, {layout:?}: what a call returns without the library, and with it\n"
    );
    for i in 0..first.calls.len().max(second.calls.len()) {
        let at = |played: &Played| match played.calls.get(i) {
            Some((call, answer)) => (call.clone(), answer.clone()),
            None => (String::new(), "nothing".to_owned()),
        };
        let ((call, answer), (_, other)) = (at(first), at(second));
        let more = if answer == other { String::new() } else { format!("   <-- {other}") };
        let _ = writeln!(text, "  {call:<44} {answer}{more}");
    }
    text
}

/// After how many programs there is a sign of life.
const PROGRESS: u64 = 200;

/// Differences after which there is no need to look for more.
const ENOUGH: usize = 4;

/// How often a short program that differs runs again.
const AGAIN: usize = 10;

/// Many times what one program needs, when it is made shorter too.
const LIMIT: Duration = Duration::from_secs(300);
