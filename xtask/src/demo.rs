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
    let name = if is_about_services(more) { "services" } else { "compare" };
    let files = ["svg", "json"].map(|kind| target.join(format!("{name}.{kind}")));
    compare.arg("compare").arg("--svg").arg(&files[0]).arg("--json").arg(&files[1]);
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
    for file in files {
        println!("written: {}", file.display());
    }
    Ok(())
}

/// Whether only services are measured, whose picture and results have files of their own.
fn is_about_services(more: &[OsString]) -> bool {
    let is_service = |names: &str| names.split(',').all(|name| name.starts_with("services"));
    let mut only = false;
    let mut args = more.iter().map(|arg| arg.to_string_lossy());
    while let Some(arg) = args.next() {
        let names = match arg.strip_prefix("--only") {
            Some("") => args.next(),
            Some(names) => names.strip_prefix('=').map(Into::into),
            None => continue,
        };
        match names {
            Some(names) if is_service(&names) => only = true,
            _ => return false,
        }
    }
    only
}

/// Builds the two shared libraries and the commands `rsock` and `rsock-compare`, as their users do.
fn build() -> Done {
    const PACKAGES: [&str; 4] = ["rsock-capi", "rsock-preload", "rsock-cli", "rsock-compare"];
    let packages = PACKAGES.iter().flat_map(|package| ["-p", package]);
    steps::run(steps::cargo().args(["build", "--release", "--locked"]).args(packages))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_have_files_of_their_own_if_nothing_else_is_measured() {
        let of = |args: &str| {
            is_about_services(&args.split_whitespace().map(Into::into).collect::<Vec<_>>())
        };
        assert!(of("--only services --runs 5") && of("--runs 5 --only=services.redis,services"));
        assert!(!of("") && !of("--runs 5") && !of("--only services,rr") && !of("--only rr"));
        assert!(!of("--only services --only rr"));
    }
}
