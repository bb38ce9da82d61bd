//! The `rsock` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    rsock_cli::main()
}
