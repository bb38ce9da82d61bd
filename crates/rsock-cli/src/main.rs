//! The `rsock` command: runs programs over rsock, shows what their connections do and what stops them,
//! and measures.
//!
//! Top of the stack: it knows the preload library by its file name, other processes by their
//! counters, and the libraries by their public API. Every failure is one line on standard error:
//! exit status 2 for what the user can correct before anything ran, 1 for what went wrong later.

mod affinity;
mod child;
mod compare;
mod doctor;
mod error;
mod fabric;
mod generate;
mod library;
mod on_rdma;
mod output;
mod perf;
mod plot;
mod probe;
mod report;
mod run;
mod stat;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use error::Error;
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

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return explain(&e),
    };
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Stat(args) => stat::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Perf(args) => perf::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Generate(args) => generate::run(&args, &Cli::command()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough.
        Err(Error::OutputClosed) => ExitCode::SUCCESS,
        // It was said on standard output.
        Err(e @ Error::Reported) => e.exit_code(),
        Err(e) => {
            eprintln!("rsock: {e}");
            e.exit_code()
        }
    }
}

/// Help goes out as it is; a mistake becomes one line.
fn explain(e: &clap::Error) -> ExitCode {
    if matches!(
        e.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        // A closed standard output is the reader's business.
        let _ = e.print();
        return ExitCode::from(u8::from(e.use_stderr()) * 2);
    }
    let text = e.to_string();
    // The paragraph before the usage, on one line: a list of missing arguments has several.
    let paragraph: Vec<_> =
        text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let paragraph = paragraph.join(" ");
    let line = paragraph.strip_prefix("error: ").unwrap_or(&paragraph);
    eprintln!("rsock: {line} (see rsock --help)");
    ExitCode::from(2)
}
