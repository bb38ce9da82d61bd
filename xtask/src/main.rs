//! Project tasks, run as `cargo xtask TASK`: what a person needs to build, check and show rsock.
//!
//! Above every crate and used by none. Each task is a module; each says on standard error what it
//! runs, stops at the first failure with one line that says what failed, and exits with status 1.

#![forbid(unsafe_code)]

mod apt;
mod layers;
mod lint;
mod sources;
mod steps;
mod test;
mod tools;
mod watch;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Lint => lint::run(),
        Task::Test => test::run(),
        Task::Tools => tools::fetch().map(|dir| println!("{}", dir.display())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Project tasks of rsock.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
struct Args {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Check formatting, lints, documentation, licences, layers and where unsafe code may live
    Lint,
    /// Build everything and run every test
    Test,
    /// Fetch the programs that the tests run, and print where they are (for RSOCK_TOOLS)
    Tools,
}
