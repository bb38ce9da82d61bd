//! Endless loops beside the samples: processes that use whatever CPU time they get. They end with
//! this process, whatever ends it.

use crate::bench::Bench;
use rsock_cli::child::Child;
use rsock_cli::error::Error;
use rsock_cli::library;
use std::hint;
use std::process::Stdio;

/// Loops that run until this is dropped.
#[derive(Debug)]
pub(crate) struct EndlessLoops {
    _children: Vec<Child>,
}

impl EndlessLoops {
    /// Starts as many as the bench has.
    pub(crate) fn start(bench: &Bench) -> Result<Self, Error> {
        let children = (0..bench.n_loops).map(|_| {
            let mut command = bench.own_command(&["end", "loop"]);
            command.env_remove(library::PRELOAD_ENV);
            command.stdin(Stdio::null()).stdout(Stdio::null());
            Child::spawn("an endless loop", command)
        });
        Ok(Self { _children: children.collect::<Result<_, _>>()? })
    }
}

/// The loop itself.
pub(crate) fn run() -> ! {
    loop {
        hint::black_box(());
    }
}
