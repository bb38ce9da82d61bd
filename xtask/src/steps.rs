//! Runs the commands of a task, and prints each.

use std::env;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

/// Why a task failed: one line for a person.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// `what` could not be done because of an input or output error.
    pub(crate) fn io(what: impl fmt::Display, error: &io::Error) -> Self {
        Self(format!("{what}: {error}"))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How a task ends.
pub(crate) type Done<T = ()> = Result<T, Failure>;

/// The profile of what is checked and tested: Cargo.toml says what it is. One for all, so that
/// procedural macros are compiled once.
pub(crate) const PROFILE: &str = "checked";

/// The workspace's root directory.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(1).map_or_else(PathBuf::new, Into::into)
}

/// Where cargo puts what it builds.
pub(crate) fn target_dir() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Says what is about to happen, and how many minutes and seconds after the first time.
pub(crate) fn say(what: impl fmt::Display) {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    let seconds = FIRST.get_or_init(Instant::now).elapsed().as_secs();
    eprintln!("==> {}:{:02} {what}", seconds / 60, seconds % 60);
}

/// Runs `command` to its end with its output shown.
pub(crate) fn run(command: &mut Command) -> Done {
    let line = shown(command);
    say(&line);
    let status = command.status().map_err(|e| Failure::io(format!("cannot run `{line}`"), &e))?;
    if status.success() { Ok(()) } else { Err(Failure::new(format!("`{line}` failed: {status}"))) }
}

/// Runs `command` to its end and returns its standard output.
pub(crate) fn output(command: &mut Command) -> Done<String> {
    let line = shown(command);
    let out = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| Failure::io(format!("cannot run `{line}`"), &e))?;
    if !out.status.success() {
        return Err(Failure::new(format!("`{line}` failed: {}", out.status)));
    }
    String::from_utf8(out.stdout).map_err(|_| Failure::new(format!("`{line}` wrote no UTF-8")))
}

/// As [`output`], with standard error kept for the failure's message.
pub(crate) fn quiet(command: &mut Command) -> Done<String> {
    let line = shown(command);
    let out = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| Failure::io(format!("cannot run `{line}`"), &e))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
        return Err(Failure::new(format!("`{line}` failed: {}: {said}", out.status)));
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// Removes a directory and what is in it, if it is there.
pub(crate) fn remove(dir: &Path) -> Done {
    match fs::remove_dir_all(dir) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Failure::io(dir.display(), &e)),
        _ => Ok(()),
    }
}

/// Whether a program can be started at all.
pub(crate) fn is_available(program: &str, probe: &str) -> bool {
    Command::new(program)
        .arg(probe)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// `command` as one would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut line = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().to_string();
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&arg.to_string_lossy());
    }
    line
}
