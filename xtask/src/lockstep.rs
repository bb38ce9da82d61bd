//! `cargo xtask lockstep`: random programs in lock step, with the preload library and without, for
//! as long as one likes.

use crate::steps::{self, Done, Failure};
use crate::tools;
use clap::Args;
use std::process::Command;

/// Which programs.
#[derive(Debug, Args)]
pub(crate) struct Lockstep {
    /// How many
    #[arg(long, default_value_t = 20_000)]
    programs: u64,
    /// The seed of the first one; those of the others follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Programs of epoll calls instead
    #[arg(long)]
    epoll: bool,
    /// Show that they find mistakes: each of ten is put into the library in turn
    #[arg(long, requires = "epoll")]
    mistakes: bool,
}

pub(crate) fn run(lockstep: &Lockstep) -> Done {
    if lockstep.mistakes {
        return mistakes(lockstep);
    }
    steps::run(&mut command(lockstep))
}

fn command(lockstep: &Lockstep) -> Command {
    let Lockstep { programs, seed, epoll, .. } = lockstep;
    let (test, name) =
        if *epoll { ("epoll", "RSOCK_EPOLL_NET") } else { ("lockstep", "RSOCK_LOCKSTEP") };
    let mut command = steps::cargo();
    command.args(["test", "--profile", "checked", "--locked", "-p", "rsock-tests"]);
    command.args(["--test", test, "--", "--nocapture", "of_chosen_seeds"]);
    command.env(name, format!("{seed}:{programs}")).env("RSOCK_TOOLS", tools::dir());
    command
}

/// The mistakes of `rsock-preload/src/event_set/mistake.rs`.
const MISTAKES: [&str; 10] = [
    "LostEdge",
    "DoubledEdge",
    "RearmedOneShot",
    "StarvedListener",
    "StaleNumber",
    "MissingHangUp",
    "DataOfAnother",
    "LostWakeUp",
    "UnfairOrder",
    "EarlyTimeout",
];

/// Runs programs of epoll calls against a library with a mistake: each mistake has to be found.
fn mistakes(lockstep: &Lockstep) -> Done {
    let target = steps::target_dir().join("mistakes");
    let mut build = steps::cargo();
    build.args(["build", "--profile", "checked", "--locked", "-p", "rsock-preload"]);
    build.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "--cfg rsock_mistakes");
    steps::run(&mut build)?;
    let mut missed = Vec::new();
    for mistake in MISTAKES {
        let mut command = command(lockstep);
        command.env("RSOCK_ARTIFACTS", target.join("checked")).env("EPOLL_MISTAKE", mistake);
        let output = command.output().map_err(|e| Failure::io("cargo", &e))?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let first = said.lines().find_map(|line| line.trim().strip_prefix("program "));
        let seed = first.and_then(|line| line.split_once(',')).map(|(seed, _)| seed);
        match seed {
            Some(seed) => steps::say(format!("{mistake}: found by program {seed}")),
            None => {
                steps::say(format!("{mistake}: not found"));
                missed.push(mistake);
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(Failure::new(missed.join(", "))) }
}
