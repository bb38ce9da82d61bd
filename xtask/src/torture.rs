//! `cargo xtask torture`: random programs over the preload library, every byte and every answer of
//! which is checked. docs/reliability.md says what is judged, and how.

use crate::steps::{self, Done, PROFILE};
use clap::Args;
use std::path::PathBuf;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// What to torture with.
#[derive(Args, Debug)]
pub(crate) struct Torture {
    /// How long
    #[arg(long, default_value_t = 1, conflicts_with_all = ["schedules", "replay"])]
    minutes: u64,
    /// Number of the first schedule; those after it have the numbers after it [default: a fresh
    /// one]
    #[arg(long)]
    seed: Option<u64>,
    /// How many schedules
    #[arg(long)]
    schedules: Option<u64>,
    /// How often each schedule runs
    #[arg(long)]
    repeat: Option<u64>,
    /// Schedules of this shape alone
    #[arg(long)]
    shape: Option<String>,
    /// The processes that run the library, or each schedule in another way [default: each in all
    /// four ways]
    #[arg(long, value_parser = ["neither", "first", "second", "both", "turns"])]
    library_at: Option<String>,
    /// Run the schedule in this file, as a failure leaves it
    #[arg(long)]
    replay: Option<PathBuf>,
    /// Go on after a failure
    #[arg(long)]
    keep_going: bool,
    /// Do not make a failing schedule smaller
    #[arg(long)]
    no_shrink: bool,
    /// Close no descriptor while a thread is in a call on it
    #[arg(long)]
    gentle: bool,
    /// Print the figures as JSON
    #[arg(long)]
    json: bool,
}

/// Builds what is tortured, and tortures it.
pub(crate) fn run(options: &Torture) -> Done {
    build()?;
    let mut command = command(options.seed.unwrap_or_else(fresh_seed));
    match (options.schedules, &options.replay) {
        (_, Some(file)) => command.arg("--replay").arg(file),
        (Some(n), None) => command.args(["--schedules", &n.to_string()]),
        (None, None) => command.args(["--seconds", &(options.minutes * 60).to_string()]),
    };
    for (option, value) in [
        ("--repeat", options.repeat.map(|n| n.to_string())),
        ("--shape", options.shape.clone()),
        ("--library-at", options.library_at.clone()),
    ] {
        if let Some(value) = value {
            command.args([option, &value]);
        }
    }
    for (option, is_on) in [
        ("--keep-going", options.keep_going),
        ("--no-shrink", options.no_shrink),
        ("--gentle", options.gentle),
        ("--json", options.json),
    ] {
        if is_on {
            command.arg(option);
        }
    }
    steps::run(&mut command)
}

/// A minute with the same schedules each time, and a minute with fresh ones, by their first seeds:
/// what `cargo xtask test` runs, by [`short_run`].
pub(crate) fn short_runs() -> [(&'static str, u64); 2] {
    [("torture with a fixed seed", FIXED_SEED), ("torture with a fresh seed", fresh_seed())]
}

/// A minute of schedules from `seed` on.
pub(crate) fn short_run(seed: u64) -> Command {
    let mut command = command(seed);
    command.args(["--seconds", "60"]);
    command
}

/// Builds the library and its driver, with all libraries and programs of the workspace: a choice of
/// packages would compile some dependencies once more. `cargo xtask test` has them from its own
/// build, where the tests choose features too.
pub(crate) fn build() -> Done {
    let all = ["build", "--profile", PROFILE, "--locked", "--workspace", "--lib", "--bins"];
    steps::run(steps::cargo().args(all))
}

/// The driver with its first schedule, and the library that it tortures.
fn command(seed: u64) -> Command {
    let mut command = driver();
    command.args(["--seed", &seed.to_string()]).arg("--library").arg(library());
    command
}

/// The driver of this and of the soak.
pub(crate) fn driver() -> Command {
    let mut command = Command::new(steps::target_dir().join(PROFILE).join("torture"));
    command.current_dir(steps::root());
    command
}

/// The library under test.
pub(crate) fn library() -> PathBuf {
    steps::target_dir().join(PROFILE).join("librsock_preload.so")
}

/// A number that no other run has, small enough to be typed.
pub(crate) fn fresh_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.as_millis().try_into().unwrap_or(u64::MAX) % 1_000_000_000_000
}

/// The seed of the run that is always the same.
const FIXED_SEED: u64 = 14;
