//! The error of every command, and the exit status that it means.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// A failure, shown to the user as one line.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A library of rsock's is in none of the places where this program looks.
    #[error("cannot find {name}: looked in {looked}; set {env} to its path")]
    NoLibrary {
        /// The library's file name.
        name: &'static str,
        /// The directories, separated by commas.
        looked: String,
        /// The variable that names the file directly.
        env: &'static str,
    },
    /// A program of rsock's is neither beside this one nor in PATH.
    #[error(
        "cannot find {name} in {beside} or in PATH; build it with \
         `cargo build --release -p {name}`, or install it with `cargo install --path crates/{name}`"
    )]
    NoProgram {
        /// The program's name, which is its package's name too.
        name: &'static str,
        /// The directory of this program.
        beside: String,
    },
    /// A path that the dynamic linker's variable cannot hold.
    #[error("{} has a space or a colon in its path, which LD_PRELOAD cannot hold", .0.display())]
    UnusablePath(PathBuf),
    /// A file that cannot be used for what the user asked.
    #[error("cannot {what} {}: {}", .path.display(), reason(.source))]
    File {
        /// What was to be done with the file.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// A program that cannot be started.
    #[error("cannot run {program}: {}", reason(.source))]
    Program {
        /// The program's name.
        program: String,
        /// Why it failed.
        source: io::Error,
    },
    /// An argument that makes no sense here.
    #[error("{0}")]
    Usage(String),
    /// The reader of standard output closed it.
    #[error("standard output is closed")]
    OutputClosed,
    /// Something is wrong, and the report on standard output says what.
    #[error("something is wrong")]
    Reported,
    /// A call failed while the command ran.
    #[error("{what}: {}", reason(.source))]
    Io {
        /// What failed.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// A program or a peer did not do what it should.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// An error about a file, from the error of the call that failed.
    pub fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { what, path, source }
    }

    /// An error about a call, from its own error.
    pub fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }

    /// Status 2 if nothing was run, 1 if the command failed on the way.
    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(match self {
            Self::OutputClosed => 0,
            Self::Io { .. } | Self::Failed(_) | Self::Reported => 1,
            _ => 2,
        })
    }
}

/// The system's message without the number that the standard library adds.
pub(crate) fn reason(e: &io::Error) -> String {
    let text = e.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}
