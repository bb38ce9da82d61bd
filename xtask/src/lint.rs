//! `cargo xtask lint`: everything that can be checked without running the code.

use crate::steps::{self, Done, PROFILE};
use crate::test::DEVICE_TESTS;
use crate::{commits, docs, layers, sources, types, words};
use std::process::Command;

/// Runs every check; the quick ones first.
pub(crate) fn run() -> Done {
    steps::run(steps::cargo().args(["fmt", "--all", "--check"]))?;
    steps::say("layers: crates and modules depend only downward");
    layers::check()?;
    steps::say("sources: where unsafe code may live");
    sources::check()?;
    steps::say("docs: links and file names lead somewhere");
    docs::check()?;
    steps::say("words: plain English, and lines of at most 100 columns");
    words::check()?;
    steps::say("types: one meaning for each public name");
    types::check()?;
    steps::say("commits: subjects of at most 72 characters");
    commits::check()?;
    clippy(&["--workspace", "--all-targets"])?;
    clippy(&DEVICE_TESTS)?;
    documentation()?;
    spelling()?;
    licences()
}

fn clippy(targets: &[&str]) -> Done {
    let deny = ["--profile", PROFILE, "--locked", "--", "-D", "warnings"];
    steps::run(steps::cargo().arg("clippy").args(targets).args(deny))
}

/// Documentation of everything, private items too: links to them are for readers of the code.
fn documentation() -> Done {
    // One at a time, because they make pages of the same name. Always beside the whole workspace:
    // a package alone chooses other features of its dependencies, and checks those once more.
    const CALLED_RSOCK: [&str; 3] = ["rsock", "rsock-cli", "rsock-capi"];
    for documented in CALLED_RSOCK {
        let mut doc = steps::cargo();
        doc.args(["doc", "--no-deps", "--document-private-items", "--locked", "--workspace"]);
        doc.args(["--profile", PROFILE]);
        let others = CALLED_RSOCK.into_iter().filter(|package| *package != documented);
        doc.args(others.map(|package| format!("--exclude={package}")));
        steps::run(doc.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private-intra-doc-links"))?;
    }
    Ok(())
}

/// Spelling, by typos.toml.
fn spelling() -> Done {
    if !steps::is_available("typos", "--version") {
        steps::say("typos is not installed: spelling not checked here");
        return Ok(());
    }
    steps::run(Command::new("typos").current_dir(steps::root()))
}

/// Licences, sources and duplicates of our dependencies. Advisories need a database from the
/// network; the workflow on the hosting site checks those.
fn licences() -> Done {
    if !steps::is_available("cargo-deny", "--version") {
        steps::say("cargo-deny is not installed: licences of dependencies not checked here");
        return Ok(());
    }
    steps::run(steps::cargo().args([
        "deny",
        "--offline",
        "check",
        "--hide-inclusion-graph",
        "bans",
        "licenses",
        "sources",
    ]))
}
