//! `rsock-compare`, called as `rsock compare`: measures rsock beside kernel TCP, Unix sockets and
//! C's rsockets, and judges the figures by what rsock promises.
//!
//! Each row is a [`case::Case`]; [`runner`] takes its samples in turn over all sides, [`measure`]
//! takes one of them, [`judge`] holds the medians against the promise, and [`report`] shows them.
//! Measurements run in processes of their own: programs of others ([`programs`]), or this one with
//! the loops of `rsock perf` (a library, so that their version always fits).

mod bench;
mod case;
mod collected;
mod compare;
mod endless_loops;
mod ends;
mod environment;
mod hold;
mod incast;
mod installed;
mod judge;
mod kernel_speed;
mod limit;
mod measure;
mod moved;
mod output_file;
mod process;
mod programs;
mod progress;
mod report;
mod result;
mod runner;
mod server;
mod sweep;
mod trust_file;

use clap::{Parser, Subcommand};
use rsock_cli::{exit, perf};
use std::process::ExitCode;

/// Measure rsock beside kernel TCP and Unix sockets
///
/// Runs unmodified netperf and iperf3, and `rsock perf`, in turn over each; datagrams (rows called
/// dgram) beside kernel UDP. Where there is an RDMA device with an address, also netperf and
/// rstream over C's rsockets and over rsock on that device, beside perftest's bare verbs (rows
/// called rdma). Programs are taken from RSOCK_TOOLS (a directory that Debian packages were
/// unpacked in), then from PATH.
#[derive(Debug, Parser)]
#[command(
    name = "rsock-compare",
    bin_name = "rsock compare",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
struct Cli {
    #[command(flatten)]
    compare: compare::Args,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Datagrams of many clients to one server: what arrives, and what becomes of the rest
    Incast(incast::Args),
    /// Streams of every write size, by how their ends wait, beside kernel TCP
    Sweep(sweep::Args),
    /// Open streams, use each once and keep them: an end of the rows about streams at rest
    #[command(hide = true)]
    Hold(hold::Args),
    /// An end of the rows about services
    #[command(hide = true)]
    End(ends::Args),
    /// The loops of `rsock perf`: an end of the rows that run them
    #[command(hide = true)]
    Perf(perf::Args),
}

fn main() -> ExitCode {
    exit::run(|cli: Cli| match cli.command {
        None => compare::run(&cli.compare),
        Some(Command::Incast(args)) => incast::run(&args),
        Some(Command::Sweep(args)) => sweep::run(&args),
        Some(Command::Hold(args)) => hold::run(&args),
        Some(Command::End(args)) => ends::run(&args),
        Some(Command::Perf(args)) => perf::run(&args),
    })
}
