//! Project tasks, run as `cargo xtask TASK`: what a person needs to build, check and show rsock.
//!
//! Above every crate and used by none. Each task is a module; each says on standard error what it
//! runs, stops at the first failure with one line that says what failed, and exits with status 1.

#![forbid(unsafe_code)]

mod again;
mod apt;
mod commits;
mod demo;
mod dist;
mod docs;
mod fuzz;
mod harness;
mod lab;
mod layers;
mod lint;
mod lockstep;
mod miri;
mod nightly;
mod regen;
mod sanitize;
mod soak;
mod sources;
mod steps;
mod test;
mod tools;
mod torture;
mod types;
mod watch;
mod whole_lines;
mod words;

use clap::{Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let done = match Args::parse().task {
        Task::Demo { more } => demo::run(&more),
        Task::Dist(options) => dist::run(&options),
        Task::Fuzz(fuzz) => fuzz::run(&fuzz),
        Task::Lab(lab) => lab::run(&lab),
        Task::Lint => lint::run(),
        Task::Miri => miri::run(),
        Task::Lockstep(lockstep) => lockstep::run(&lockstep),
        Task::RegenBindings => regen::run(),
        Task::Soak(options) => soak::run(&options),
        Task::Sanitize { sanitizer } => sanitize::run(sanitizer),
        Task::Test(options) => test::run(&options),
        Task::Torture(options) => torture::run(&options),
        Task::Tools { all } => tools::fetch_and(all).map(|dir| println!("{}", dir.display())),
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
    /// Build for release, measure rsock beside kernel TCP, and write target/compare.{svg,json}
    Demo {
        /// Options for `rsock compare`, after `--`: see its --help
        #[arg(last = true)]
        more: Vec<OsString>,
    },
    /// Make a Debian package and a tarball in target/dist
    Dist(dist::Dist),
    /// Run the fuzz targets under libFuzzer, one after the other (nightly): see fuzz/README.md
    Fuzz(fuzz::Fuzz),
    /// Run a script in a virtual machine with an RDMA device: see lab/README.md
    Lab(lab::Lab),
    /// Check formatting, lints, documentation, words, licences, layers and places of unsafe code
    Lint,
    /// Run the tests that make no system call under Miri (nightly)
    Miri,
    /// Compare random programs, call by call, with kernel TCP
    Lockstep(lockstep::Lockstep),
    /// Generate the bindings of rsock-rdma-sys anew, from rdma-core's headers
    RegenBindings,
    /// Let connections, datagrams and forks come and go, and count what is left of them
    Soak(soak::Soak),
    /// Run tests of the soft device and the engine under a sanitizer (nightly)
    Sanitize {
        /// Both if none is named
        sanitizer: Option<sanitize::Sanitizer>,
    },
    /// Build everything and run every test
    Test(test::Options),
    /// Run random programs over the preload library and check every byte
    Torture(torture::Torture),
    /// Fetch the programs that the tests run, and print where they are (for RSOCK_TOOLS)
    Tools {
        /// Also Node and Java, where the machine has none
        #[arg(long)]
        all: bool,
    },
}
