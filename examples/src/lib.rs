//! The examples are the files in this package's directory; `tests/run.rs` runs them. Never
//! published. Here is only what the asynchronous ones share: who they are.

#![forbid(unsafe_code)]

use std::env;
use std::error::Error;

/// Part that an asynchronous example plays, by its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// No arguments: both ends, in one process.
    Both,
    /// `serve ADDRESS`: the server alone.
    Serve(String),
    /// `ask ADDRESS`: the client alone.
    Ask(String),
}

impl Role {
    /// Reads the process's arguments.
    ///
    /// # Errors
    /// A line on how to use `program`.
    pub fn of(program: &str) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let args: Vec<String> = env::args().skip(1).collect();
        match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
            [] => Ok(Self::Both),
            ["serve", at] => Ok(Self::Serve(at.to_owned())),
            ["ask", at] => Ok(Self::Ask(at.to_owned())),
            _ => Err(format!("usage: {program} [serve ADDRESS | ask ADDRESS]").into()),
        }
    }
}
