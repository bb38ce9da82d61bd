//! What can go wrong with the command, and the exit status it has.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One line for the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The preload library is nowhere we look.
    #[error("cannot find {name}: looked in {looked}; set {env} to its path")]
    NoLibrary { name: &'static str, looked: String, env: &'static str },
    /// A path that the dynamic linker's variable cannot hold.
    #[error("{} has a space or a colon in its path, which LD_PRELOAD cannot hold", .0.display())]
    UnusablePath(PathBuf),
    /// A file that cannot be used for what the user asked.
    #[error("cannot {what} {}: {}", .path.display(), reason(.source))]
    File { what: &'static str, path: PathBuf, source: io::Error },
    /// A program that cannot be started.
    #[error("cannot run {program}: {}", reason(.source))]
    Program { program: String, source: io::Error },
    /// An argument that does not make sense here.
    #[error("{0}")]
    Usage(String),
    /// Standard output went away.
    #[error("standard output is closed")]
    OutputClosed,
    /// Standard output says what is wrong.
    #[error("something is wrong")]
    Reported,
    /// Something failed while running.
    #[error("{what}: {}", reason(.source))]
    Io { what: String, source: io::Error },
    /// A program or a peer did not do what it should.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// Status 2: nothing was run; 1: it failed on the way.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::OutputClosed => 0,
            Self::Io { .. } | Self::Failed(_) | Self::Reported => 1,
            _ => 2,
        })
    }

    pub(crate) fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// The system's words without the number that the standard library adds.
fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}
