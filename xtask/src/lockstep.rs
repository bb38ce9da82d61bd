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
    /// Programs of epoll calls instead
    #[arg(long)]
    epoll: bool,
}

pub(crate) fn run(lockstep: &Lockstep) -> Done {
    let Lockstep { programs, seed, epoll } = lockstep;
    let (test, name) =
        if *epoll { ("epoll", "RSOCK_EPOLL_NET") } else { ("lockstep", "RSOCK_LOCKSTEP") };
    let mut command = steps::cargo();
    command.args(["test", "--profile", "checked", "--locked", "-p", "rsock-tests"]);
    command.args(["--test", test, "--", "--nocapture", "of_chosen_seeds"]);
    command.env(name, format!("{seed}:{programs}")).env("RSOCK_TOOLS", tools::dir());
    steps::run(&mut command)
}
