//! `cargo xtask sanitize`: tests of the soft device and of the engine under the compiler's
//! sanitizers.

use crate::nightly;
use crate::steps::{self, Done, Failure};
use clap::ValueEnum;

/// A sanitizer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// Memory: use after free, out of bounds, leaks.
    Address,
    /// Data races.
    Thread,
}

/// Runs the tests under `sanitizer`, or under both.
pub(crate) fn run(sanitizer: Option<Sanitizer>) -> Done {
    nightly::require("a sanitizer", &["rust-src"])?;
    for one in [Sanitizer::Address, Sanitizer::Thread] {
        if sanitizer.is_none_or(|chosen| chosen == one) {
            TESTS.iter().try_for_each(|tests| test(one, tests))?;
        }
    }
    Ok(())
}

fn test(sanitizer: Sanitizer, (package, modules, skipped): &Tests) -> Done {
    let (name, options, value) = match sanitizer {
        Sanitizer::Address => ("address", "ASAN_OPTIONS", ASAN_OPTIONS),
        Sanitizer::Thread => ("thread", "TSAN_OPTIONS", &*tsan_options()?),
    };
    let mut command = nightly::cargo();
    // With a target named, build scripts and procedural macros are left as they are.
    command.args(["test", "-Zbuild-std", "--target", TARGET, "--package", package, "--lib", "--"]);
    command.args(*modules);
    for test in *skipped {
        command.args(["--skip", test]);
    }
    command.env("RUSTFLAGS", format!("-Zsanitizer={name}"));
    command.env("RUSTDOCFLAGS", format!("-Zsanitizer={name}"));
    command.env(options, value);
    command.env("CARGO_TARGET_DIR", steps::target_dir().join("sanitize").join(name));
    steps::run(&mut command)
}

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Variables stay on the stack itself: the engine tells by their addresses which calls a `longjmp`
/// has left.
const ASAN_OPTIONS: &str = "detect_stack_use_after_return=0";

/// Children of tests die by signals, or without a word.
///
/// # Errors
/// When the file of suppressions cannot be written.
fn tsan_options() -> Result<String, Failure> {
    let file = steps::target_dir().join("tsan-suppressions");
    std::fs::write(&file, SUPPRESSIONS)
        .map_err(|e| Failure::new(format!("{}: {e}", file.display())))?;
    Ok(format!("die_after_fork=0 halt_on_error=1 suppressions={}", file.display()))
}

/// The soft device maps each segment twice where both ends are in one process, and the sanitizer
/// tells memory by its address: it does not see that what one end published at one address orders
/// what the other reads at another.
const SUPPRESSIONS: &str = "race:rsock_verbs::soft::peer_copy::\nrace:rsock_verbs::copy::\n";

/// A package, of its tests those to run (all if none is named), and of these those to leave out.
type Tests = (&'static str, &'static [&'static str], &'static [&'static str]);

const TESTS: &[Tests] = &[
    // A copy that faults is left by jumping out of it, which the sanitizers' own copies do not
    // allow.
    ("rsock-verbs", &[], &["fault::"]),
    ("rsock-cm", &["soft::"], &[]),
    ("rsock-core", &[], &[]),
];
