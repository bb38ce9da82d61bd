//! How a command starts and ends: arguments, help, one line for a failure, and the exit status.
//!
//! Status 2 stands for what the user can correct before anything ran, 1 for what went wrong later.

use crate::error::Error;
use clap::Parser;
use clap::error::ErrorKind;
use std::process::ExitCode;

/// Parses the arguments of this process and hands them to `command`; reports how that ended.
pub fn run<A: Parser>(command: impl FnOnce(A) -> Result<(), Error>) -> ExitCode {
    let args = match A::try_parse() {
        Ok(args) => args,
        Err(e) => return explain(&e, &full_name::<A>()),
    };
    match command(args) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output closed it because it has seen enough.
        Err(Error::OutputClosed) => ExitCode::SUCCESS,
        // Standard output has the message already.
        Err(e @ Error::Reported) => e.exit_code(),
        Err(e) => {
            eprintln!("rsock: {e}");
            e.exit_code()
        }
    }
}

/// The words by which a user calls the command.
fn full_name<A: Parser>() -> String {
    let command = A::command();
    command.get_bin_name().unwrap_or(command.get_name()).to_owned()
}

/// Prints help as it is, and a mistake as one line.
fn explain(e: &clap::Error, name: &str) -> ExitCode {
    if matches!(
        e.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    ) {
        // A failure means that standard output is closed, and that nothing reads the help.
        let _ = e.print();
        return ExitCode::from(u8::from(e.use_stderr()) * 2);
    }
    let text = e.to_string();
    // The paragraph before the usage, on one line: a list of missing arguments has several.
    let paragraph: Vec<_> =
        text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let paragraph = paragraph.join(" ");
    let line = paragraph.strip_prefix("error: ").unwrap_or(&paragraph);
    eprintln!("rsock: {line} (see {name} --help)");
    ExitCode::from(2)
}
