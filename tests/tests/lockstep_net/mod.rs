//! Random programs on one connection in lock step: which they are (`program`), and how they run
//! (`player`).

mod player;
mod program;

use crate::c_program::compiled;
use player::Stage;
use program::{Call, Layout, possible, program};
use rsock_tests::lockstep::{Net, Played};
use std::path::PathBuf;

/// Programs on one connection.
pub(crate) struct LockstepNet {
    program: PathBuf,
}

impl LockstepNet {
    pub(crate) fn new() -> Self {
        Self { program: compiled("lockstep") }
    }
}

impl Net for LockstepNet {
    const NAME: &'static str = "lock step";
    const VARIABLE: &'static str = "RSOCK_LOCKSTEP";
    const WORKERS: usize = 2;

    type Layout = Layout;
    type Call = Call;
    type Stage = Stage;

    fn stage(&self, _worker: usize) -> Stage {
        Stage::new(self.program.clone())
    }

    fn program(&self, seed: u64) -> (Layout, Vec<Call>) {
        program(seed)
    }

    fn possible(&self, _layout: Layout, calls: Vec<Call>) -> Vec<Call> {
        possible(calls)
    }

    fn play(&self, stage: &mut Stage, layout: Layout, calls: &[Call]) -> [Played; 2] {
        [stage.play_plain(calls), stage.play(layout, calls)]
    }
}
