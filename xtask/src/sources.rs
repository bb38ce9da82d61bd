//! Rules over source files that no compiler lint expresses: which modules promise, by attribute,
//! to hold no unsafe code.

use crate::steps::{self, Done, Failure};
use std::fs;
use std::path::PathBuf;

/// Checks that every listed module forbids unsafe code.
pub(crate) fn check() -> Done {
    let mut wrong = Vec::new();
    for file in FORBID_UNSAFE {
        match fs::read_to_string(steps::root().join(file)) {
            Ok(text) if text.lines().any(|line| line == "#![forbid(unsafe_code)]") => {}
            Ok(_) => wrong.push(format!("{file}: `#![forbid(unsafe_code)]` is missing")),
            Err(e) => wrong.push(format!("{file}: listed in xtask/src/sources.rs, but {e}")),
        }
    }
    verdict("sources", &wrong)
}

/// Every Rust file below `dir`, which is named from the workspace's root.
pub(crate) fn files(dir: &str) -> Done<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![steps::root().join(dir)];
    while let Some(dir) = todo.pop() {
        let entries = fs::read_dir(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
        for entry in entries {
            let path = entry.map_err(|e| Failure::io(dir.display(), &e))?.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Prints what is wrong; nothing wrong is success.
pub(crate) fn verdict(check: &str, wrong: &[String]) -> Done {
    for line in wrong {
        eprintln!("{line}");
    }
    match wrong.len() {
        0 => Ok(()),
        n => Err(Failure::new(format!("{check}: {n} broken rules"))),
    }
}

/// Modules that hold no unsafe code, they and everything below them. Unsafe code lives where
/// memory is shared or C is called; CONTRIBUTING.md says where.
const FORBID_UNSAFE: &[&str] =
    &["crates/rsock-core/src/proto/mod.rs", "tests/src/lib.rs", "xtask/src/main.rs"];
