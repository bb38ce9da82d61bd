//! `rsock compare`: becomes `rsock-compare`, a program of its own, as `cargo` and `git` do with
//! subcommands. It need not be installed to run programs over rsock.

use crate::error::Error;
use crate::program;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Measure rsock beside kernel TCP and Unix sockets
///
/// Becomes rsock-compare, which has to be beside this command or in PATH; `rsock compare --help`
/// shows its options.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// The arguments of rsock-compare
    #[arg(allow_hyphen_values = true, trailing_var_arg = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// Returns only if `rsock-compare` could not be started.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    const NAME: &str = "rsock-compare";
    let source = Command::new(program::find_own(NAME)?).args(&args.args).exec();
    Err(Error::Program { program: NAME.to_owned(), source })
}
