//! `cargo xtask test`: builds everything and runs every test.

use crate::steps::{self, Done};

/// Runs the whole suite.
pub(crate) fn run() -> Done {
    steps::run(steps::cargo().args(["test", "--workspace", "--no-fail-fast", "--locked"]))
}
