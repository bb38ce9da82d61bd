//! The nightly toolchain, for what the stable compiler does not do.

use crate::steps::{self, Done, Failure};
use std::process::Command;

/// Fails, in one line that says what is missing, unless a nightly toolchain with `components` is
/// installed.
pub(crate) fn require(what: &str, components: &[&str]) -> Done {
    let mut list = Command::new("rustup");
    list.args(["component", "list", "--installed", "--toolchain", NIGHTLY]);
    let installed = steps::quiet(&mut list).map_err(|_| {
        Failure::new(format!(
            "{what} needs a nightly toolchain: rustup toolchain install {NIGHTLY}"
        ))
    })?;
    for component in components {
        if !installed.lines().any(|line| line.starts_with(component)) {
            return Err(Failure::new(format!(
                "{what} needs a component: rustup component add {component} --toolchain {NIGHTLY}"
            )));
        }
    }
    Ok(())
}

/// The nightly cargo.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new("rustup");
    command.args(["run", NIGHTLY, "cargo"]).current_dir(steps::root());
    // Those of the stable one that runs this task.
    command.env_remove("CARGO").env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC");
    command
}

const NIGHTLY: &str = "nightly";
