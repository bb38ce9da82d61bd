//! `cargo xtask lockstep`: random programs in lock step, with the preload library and without, for
//! as long as one likes.

use crate::steps::{self, Done};
use crate::tools;
use clap::Args;

/// Which programs.
#[derive(Debug, Args)]
pub(crate) struct Lockstep {
    /// How many
    #[arg(long, default_value_t = 20_000)]
    programs: u64,
    /// The seed of the first one; those of the others follow
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(lockstep: &Lockstep) -> Done {
    let Lockstep { programs, seed } = lockstep;
    let mut command = steps::cargo();
    command.args(["test", "--profile", "checked", "--locked", "-p", "rsock-tests"]);
    command.args(["--test", "lockstep", "--", "--nocapture", "fresh_seeds"]);
    command.env("RSOCK_LOCKSTEP", format!("{seed}:{programs}")).env("RSOCK_TOOLS", tools::dir());
    steps::run(&mut command)
}
