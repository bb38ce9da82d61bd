//! `cargo xtask miri`: the tests that make no system call, under Miri.
//!
//! Miri runs the interpreter's own threads, memory and clock, and knows no futex words in shared
//! files, no Unix sockets with descriptors and no netlink; so the modules are named here that need
//! none of those.

use crate::nightly;
use crate::steps::{self, Done, Failure};

/// Runs them; says how many.
pub(crate) fn run() -> Done {
    nightly::require("Miri", &["miri", "rust-src"])?;
    let mut passed = 0;
    for (package, modules, skipped) in TESTS {
        let mut command = nightly::cargo();
        command.args(["miri", "test", "--package", package, "--lib", "--"]).args(*modules);
        for test in *skipped {
            command.args(["--skip", test]);
        }
        // Property tests write down what fails, which Miri keeps from them, and run long.
        command.env("MIRIFLAGS", FLAGS).env("PROPTEST_CASES", "4");
        command.env("PROPTEST_FAILURE_PERSISTENCE", "off");
        command.env("CARGO_TARGET_DIR", steps::target_dir().join("miri"));
        let line = steps::shown(&command);
        steps::say(&line);
        let said = steps::output(&mut command)?;
        print!("{said}");
        let n = tests_in(&said);
        if n == 0 {
            return Err(Failure::new(format!("`{line}` ran no test")));
        }
        passed += n;
    }
    println!("{passed} tests passed under Miri");
    Ok(())
}

/// How many tests passed, by the summaries of the test programs.
fn tests_in(said: &str) -> u64 {
    let summaries = said.lines().filter_map(|line| line.strip_prefix("test result: ok. "));
    summaries.filter_map(|line| line.split(' ').next()?.parse::<u64>().ok()).sum()
}

/// Files of the repository may be read (corpora); addresses go through the wire as numbers.
const FLAGS: &str = "-Zmiri-disable-isolation -Zmiri-permissive-provenance";

/// Packages, their modules, and of these what takes hours or a system call after all.
const TESTS: &[(&str, &[&str], &[&str])] = &[
    ("rsock-verbs", &["sync::"], &[]),
    (
        "rsock-core",
        &["datagram::header", "iov::", "engine::buffers::layout", "engine::wait::spin"],
        &[],
    ),
    (
        "rsock-proto",
        &[],
        &["snapshot", "schedules", "simulat", "explore", "shortcuts", "fuzz_corpus"],
    ),
    ("rsock-cm", &["addr::", "private_data::", "soft::wire::"], &[]),
];
