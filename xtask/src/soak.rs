//! `cargo xtask soak`: connections, datagrams and forks that come and go, and a count of what is
//! left of them.

use crate::steps::{self, Done};
use crate::torture;
use clap::Args;

/// How to soak.
#[derive(Args, Debug)]
pub(crate) struct Soak {
    /// How long
    #[arg(long, default_value_t = 1)]
    minutes: u64,
}

/// Builds what is soaked, and soaks it.
pub(crate) fn run(options: &Soak) -> Done {
    torture::build()?;
    let mut command = torture::driver();
    command.arg("soak").arg("--library").arg(torture::library());
    steps::run(command.args(["--seconds", &(options.minutes * 60).to_string()]))
}
