//! The dependency arrows: a crate may use crates of a lower rank only, modules of a folder may not
//! use each other in a circle, and some modules may not mention what is listed for them.
//! ARCHITECTURE.md draws the same picture.

mod cycles;
mod picture;
mod references;

use crate::sources;
use crate::steps::{self, Done, Failure};
use cycles::Allowed;
use references::Sources;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Checks crates, then modules.
pub(crate) fn check() -> Done {
    let mut wrong = Vec::new();
    for package in packages()? {
        crates(&package, &mut wrong);
        arrows(&package, &mut wrong)?;
    }
    mentions(&mut wrong)?;
    sources::verdict("layers", &wrong)
}

/// Every package of the workspace, as `cargo metadata` describes it.
fn packages() -> Done<Vec<Value>> {
    let metadata = ["metadata", "--no-deps", "--format-version", "1", "--locked"];
    let metadata = steps::output(steps::cargo().args(metadata))?;
    let mut metadata = serde_json::from_str::<Value>(&metadata)
        .map_err(|e| Failure::new(format!("cargo metadata: {e}")))?;
    match metadata["packages"].take() {
        Value::Array(packages) => Ok(packages),
        _ => Err(Failure::new("cargo metadata: no packages")),
    }
}

/// Checks the arrows between the modules of a package's libraries and programs.
fn arrows(package: &Value, wrong: &mut Vec<String>) -> Done {
    let name = package["name"].as_str().unwrap_or_default();
    for target in package["targets"].as_array().into_iter().flatten() {
        let is_tested_only = |kind: &Value| {
            ["test", "bench", "example", "custom-build"]
                .contains(&kind.as_str().unwrap_or_default())
        };
        if target["kind"].as_array().is_none_or(|kinds| kinds.iter().any(is_tested_only)) {
            continue;
        }
        let root = Path::new(target["src_path"].as_str().unwrap_or_default());
        let sources = Sources::read(root, &steps::root())?;
        let arrows = cycles::arrows(name, &sources);
        for (folder, arrows) in &arrows {
            wrong.extend(cycles::check(folder, arrows, ALLOWED));
        }
        if let Some(arrows) = arrows.get(name).filter(|_| name == DRAWN) {
            picture::check(name, &sources, arrows, wrong)?;
        }
    }
    Ok(())
}

fn crates(package: &Value, wrong: &mut Vec<String>) {
    let name = package["name"].as_str().unwrap_or_default();
    let Some(rank) = rank(name) else {
        wrong.push(format!("crate `{name}` has no rank in xtask/src/layers/mod.rs"));
        return;
    };
    for dependency in package["dependencies"].as_array().into_iter().flatten() {
        let other = dependency["name"].as_str().unwrap_or_default();
        // A crate may name itself, to switch on its own features for its tests.
        let is_dev = dependency["kind"].as_str() == Some("dev");
        if self::rank(other).is_some_and(|other| other >= rank) && !(is_dev && other == name) {
            wrong.push(format!("`{name}` must not depend on `{other}`, which is not below it"));
        }
    }
}

fn rank(name: &str) -> Option<usize> {
    RANKS.iter().position(|rank| rank.contains(&name))
}

/// Checks that modules do not mention what [`MODULES`] bans there.
fn mentions(wrong: &mut Vec<String>) -> Done {
    for rule in MODULES {
        for file in sources::files(rule.dir)? {
            let shown = file.strip_prefix(steps::root()).unwrap_or(&file).display().to_string();
            let text = fs::read_to_string(&file).map_err(|e| Failure::io(&shown, &e))?;
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                for banned in rule.banned.iter().filter(|banned| code.contains(**banned)) {
                    let at = number + 1;
                    wrong.push(format!("{shown}:{at}: `{banned}` ({})", rule.why));
                }
            }
        }
    }
    Ok(())
}

/// The crate whose modules ARCHITECTURE.md lists.
const DRAWN: &str = "rsock-core";

/// Crates from the bottom up; those of one line do not know each other.
const RANKS: &[&[&str]] = &[
    &["rsock-api-snapshot", "rsock-test-ports"],
    &["rsock-rdma-sys"],
    &["rsock-verbs"],
    &["rsock-cm", "rsock-proto"],
    // `rsock-models` has source files of the others, and uses the protocol's rules.
    &["rsock-core", "rsock-models"],
    &["rsock-capi", "rsock-tokio"],
    // What Rust programs depend on; `rsock-tokio` is one of its features.
    &["rsock"],
    &["rsock-preload", "rsock-cli"],
    // Measures with the loops of `rsock perf`, which `rsock-cli` has as a library.
    &["rsock-compare"],
    &["rsock-tests"],
    &["rsock-benches", "rsock-examples"],
    &["xtask"],
];

/// What the sources below a directory must not mention.
struct Rule {
    dir: &'static str,
    banned: &'static [&'static str],
    why: &'static str,
}

const MODULES: &[Rule] = &[Rule {
    dir: "crates/rsock-proto/src",
    banned: &[
        "std::net",
        "std::os",
        "std::io",
        "std::fs",
        "std::thread",
        "std::sync",
        "std::time::Instant",
        "std::time::SystemTime",
        "rustix::",
    ],
    why: "the protocol knows no clock, descriptor or thread",
}];

/// Arrows that close a cycle, and why they may. One that closes none any more must leave the list.
const ALLOWED: &[Allowed] = &[Allowed {
    folder: "rsock-tokio",
    from: "waiter",
    to: "poll_driver",
    why: "the driver polls waiters, and a waiter offers itself to the driver of its runtime",
}];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_modules_of_this_workspace_use_each_other_without_circles() {
        let mut wrong = Vec::new();
        for package in packages().unwrap_or_else(|e| panic!("{e}")) {
            arrows(&package, &mut wrong).unwrap_or_else(|e| panic!("{e}"));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
