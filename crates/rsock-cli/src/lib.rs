//! The `rsock` command as a library: runs programs over rsock, shows what their connections do and
//! what stops them, and measures.
//!
//! Top of the stack: it knows the preload library by its file name, other processes by their
//! counters, and the libraries by their public API. The public modules are for `rsock-compare`,
//! which measures with the same loops and fails in the same way; they promise nothing to other
//! crates.

pub mod affinity;
pub mod child;
pub mod error;
pub mod exit;
pub mod library;
pub mod output;
pub mod perf;
pub mod rdma_devices;
pub mod table;

mod compare;
mod doctor;
mod generate;
mod program;
mod rdma_usage;
mod run;
mod stat;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Sockets at RDMA and shared-memory speed, for programs as they are.
#[derive(Debug, Parser)]
#[command(name = "rsock", version, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Stat(stat::Args),
    Doctor(doctor::Args),
    Perf(perf::Args),
    Compare(compare::Args),
    Generate(generate::Args),
}

/// Does what the arguments of this process ask for.
#[must_use]
pub fn main() -> ExitCode {
    exit::run(|cli: Cli| match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Generate(args) => generate::run(&args, &Cli::command()),
    })
}
