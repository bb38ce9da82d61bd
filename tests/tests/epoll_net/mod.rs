//! Random programs of epoll calls in lock step: which they are, and how they run.
//!
//! A seed names a program (`program`), whose calls `model` has admitted; `player` runs it. One that
//! differs is shown as a C program, too (`c_source`).

mod c_source;
mod model;
mod player;
mod program;

use crate::c_program::compiled;
use c_source::c_source;
pub(crate) use model::Avoid;
use player::Stage;
use program::{Call, Layout, possible, program};
use rsock_tests::lockstep::{Net, Played};
use std::fs;
use std::path::{Path, PathBuf};

/// Programs of epoll calls.
pub(crate) struct EpollNet {
    program: PathBuf,
    avoid: Avoid,
    against: Against,
}

/// What a program without the library is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Against {
    Library,
    /// Itself: it must not depend on time.
    Kernel,
}

impl EpollNet {
    pub(crate) fn new(avoid: Avoid, against: Against) -> Self {
        Self { program: compiled("epoll_net"), avoid, against }
    }
}

impl Net for EpollNet {
    const NAME: &'static str = "epoll net";
    const VARIABLE: &'static str = "RSOCK_EPOLL_NET";
    /// More than processors: a program waits for the kernel's clock most of the time.
    const WORKERS: usize = 6;

    type Layout = Layout;
    type Call = Call;
    type Stage = Stage;

    fn stage(&self, worker: usize) -> Stage {
        Stage::new(self.program.clone(), worker)
    }

    fn program(&self, seed: u64) -> (Layout, Vec<Call>) {
        program(seed, self.avoid)
    }

    fn possible(&self, layout: Layout, calls: Vec<Call>) -> Vec<Call> {
        possible(layout, self.avoid, calls)
    }

    fn play(&self, stage: &mut Stage, layout: Layout, calls: &[Call]) -> [Played; 2] {
        let (plain, returned) = stage.play_plain(layout, calls);
        let other = match self.against {
            Against::Library => stage.play_with(layout, calls, &returned),
            Against::Kernel => stage.play_plain(layout, calls).0,
        };
        [plain, other]
    }

    fn uses_library(&self) -> bool {
        self.against == Against::Library
    }

    fn note(&self, seed: u64, layout: Layout, calls: &[Call]) -> String {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("epoll_{seed}.c"));
        fs::write(&path, c_source(seed, layout, calls)).expect("a file in the target directory");
        format!("  as a C program: {}\n", path.display())
    }
}

/// The C programs of seeds from `first` on.
pub(crate) fn sources(first: u64, n: u64) -> impl Iterator<Item = String> {
    (first..first + n).map(|seed| {
        let (layout, calls) = program(seed, Avoid::Nothing);
        c_source(seed, layout, &calls)
    })
}
