//! Copies of programs, for tests that run them as another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Copies a program to `to`, where every user may run it.
///
/// By a process of its own: a child that another thread starts meanwhile would keep a file that is
/// written here open, and running it would fail (`ETXTBSY`).
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(program: &Path, to: &Path) {
    let copied = Command::new("cp").arg(program).arg(to).status().expect("cp");
    assert!(copied.success(), "{} is not copied to {}", program.display(), to.display());
    fs::set_permissions(to, Permissions::from_mode(0o755)).expect("its mode");
}
