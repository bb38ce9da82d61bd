//! `rsock run`: becomes the program, with the preload library loaded. Nothing else stays behind.

use crate::error::Error;
use crate::{library, program};
use clap::ValueHint;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Run a program over rsock
///
/// Sets LD_PRELOAD and becomes the program; plain LD_PRELOAD=librsock_preload.so does the same.
/// Connections whose other end runs rsock too move to shared memory, all others stay on TCP.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Microseconds that a waiting call spins before it sleeps [default: adapts]
    #[arg(long, value_name = "US")]
    spin_us: Option<u32>,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        value_name = "PROGRAM [ARGS]",
        value_hint = ValueHint::CommandWithArguments
    )]
    program: Vec<OsString>,
}

/// Returns only if the program could not be started.
pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let library = library::find()?;
    let Some((name, rest)) = args.program.split_first() else {
        return Err(Error::Usage("no program given".into()));
    };
    let failed = |source| Error::Program { program: name.to_string_lossy().into_owned(), source };
    let mut command = Command::new(program::find(name).map_err(failed)?);
    command.arg0(name).args(rest);
    command.env(library::PRELOAD_ENV, library::preload_value(&library));
    if let Some(spin_us) = args.spin_us {
        command.env(library::SPIN_ENV, spin_us.to_string());
    }
    Err(failed(command.exec()))
}
