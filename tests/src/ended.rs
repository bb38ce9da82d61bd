//! How a program of a test ended.

use std::process::Output;

/// What `program` printed, which must have ended with success.
///
/// # Panics
/// With all that it said, if it did not.
#[expect(clippy::must_use_candidate, reason = "the check is reason enough to call it")]
pub fn assert_worked(program: &str, out: &Output) -> String {
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    let complained = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{program}: {}\n{said}{complained}", out.status);
    said
}
