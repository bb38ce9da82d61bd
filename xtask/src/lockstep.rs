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
    /// Show that they find mistakes: each of ten is put into the library in turn, and what has
    /// found it is run once more without it
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

/// Runs programs of epoll calls against a library with a mistake: each mistake has to be found, by
/// a program that returns the same as on TCP when the same library makes no mistake.
fn mistakes(lockstep: &Lockstep) -> Done {
    let target = steps::target_dir().join("mistakes");
    let mut build = steps::cargo();
    build.args(["build", "--profile", "checked", "--locked", "-p", "rsock-preload"]);
    build.env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "--cfg rsock_mistakes");
    steps::run(&mut build)?;
    let differing = |lockstep: &Lockstep, mistake: Option<&str>| {
        let mut command = command(lockstep);
        command.env("RSOCK_ARTIFACTS", target.join("checked")).env_remove("EPOLL_MISTAKE");
        command.envs(mistake.map(|mistake| ("EPOLL_MISTAKE", mistake)));
        let output = command.output().map_err(|e| Failure::io("cargo", &e))?;
        first_difference(&String::from_utf8_lossy(&[output.stdout, output.stderr].concat()))
    };
    let mut missed = Vec::new();
    for mistake in MISTAKES {
        let Some(seed) = differing(lockstep, Some(mistake))? else {
            steps::say(format!("{mistake}: not found"));
            missed.push(mistake);
            continue;
        };
        let control = Lockstep { programs: 1, seed, epoll: true, mistakes: false };
        if differing(&control, None)?.is_some() {
            steps::say(format!("{mistake}: program {seed} also differs without it"));
            missed.push(mistake);
        } else {
            steps::say(format!("{mistake}: found by program {seed}, which is right without it"));
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(Failure::new(missed.join(", "))) }
}

/// The seed of the first program that a test run has found to differ. A single program may use no
/// ring, about which the test complains: that is no difference.
fn first_difference(said: &str) -> Done<Option<u64>> {
    if !said.contains("test result: ") {
        return Err(Failure::new(format!("the programs did not run: {said}")));
    }
    let mut lines = said.lines().map(str::trim);
    let first = lines.find_map(|line| line.strip_prefix("program ")?.split_once(','));
    Ok(first.and_then(|(seed, _)| seed.parse().ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_told_by_the_line_of_its_program() {
        let seed = |said: &str| first_difference(said).map_err(|e| e.to_string());
        let differs = "of the programs with seeds 1 and on:\n  program 17, in two processes:\n\
                       test result: FAILED. 0 passed; 1 failed";
        assert_eq!(seed(differs), Ok(Some(17)));
        let unused = "only 0 of 1 programs used a ring\ntest result: FAILED. 0 passed; 1 failed";
        assert_eq!(seed(unused), Ok(None));
        assert!(seed("error: could not compile").is_err());
    }
}
