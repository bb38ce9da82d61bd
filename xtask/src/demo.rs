//! `cargo xtask demo`: rsock beside kernel TCP on this machine, in one command.

use crate::steps::{self, Done};
use crate::tools;
use std::ffi::OsString;
use std::process::{Command, Stdio};

/// Builds for release, measures, prints the table and writes it as JSON and as a plot. `more` goes
/// to `rsock compare`. Unless `more` has `--pin`, the scheduler places both ends: rows for bound
/// ends as well would take as long again.
pub(crate) fn run(more: &[OsString]) -> Done {
    if let Err(why) = tools::fetch() {
        // Other rows can be measured without these programs; the table lists those that are
        // missing.
        eprintln!("xtask: {why}");
    }
    build()?;
    let target = steps::target_dir();
    let mut compare = Command::new(target.join("release/rsock"));
    compare.arg("compare").arg("--json").arg(target.join("compare.json"));
    compare.arg("--svg").arg(target.join("compare.svg"));
    if !more.iter().any(|arg| arg.to_string_lossy().starts_with("--pin")) {
        compare.arg("--pin=no");
    }
    compare.args(more);
    let mut git = Command::new("git");
    git.current_dir(steps::root()).args(["describe", "--always", "--dirty", "--exclude=*"]);
    if let Ok(commit) = steps::quiet(&mut git) {
        compare.env("RSOCK_COMMIT", commit.trim());
    }
    steps::run(compare.env("RSOCK_TOOLS", tools::dir()).stdin(Stdio::null()))?;
    for file in ["compare.svg", "compare.json"] {
        println!("written: {}", target.join(file).display());
    }
    Ok(())
}

/// Builds the two shared libraries and the commands `rsock` and `rsock-compare`, as their users do.
fn build() -> Done {
    const PACKAGES: [&str; 4] = ["rsock-capi", "rsock-preload", "rsock-cli", "rsock-compare"];
    let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
    steps::run(steps::cargo().args(["build", "--release", "--locked"]).args(packages))
}
