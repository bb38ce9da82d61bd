//! What every measurement needs to know: where things are, on which CPUs, and for how long.

use super::case::{Case, Place, Side};
use super::tools::Tools;
use crate::library;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Bench {
    /// The preload library.
    pub(super) library: PathBuf,
    /// This program.
    pub(super) exe: PathBuf,
    pub(super) tools: Tools,
    pub(super) cpus: [usize; 2],
    /// Of one sample; whole seconds.
    pub(super) time: Duration,
}

impl Bench {
    /// Sets the environment in which `command` runs over `side`, without or with the library.
    pub(super) fn dress(&self, command: &mut Command, case: &Case, side: Side) {
        if side == Side::Rsock && !case.uses_rust_interface() {
            command.env(library::preload_env(), &self.library);
            command.envs(case.settings.iter().copied());
        } else {
            // We may be preloaded ourselves.
            command.env_remove(library::preload_env());
        }
    }

    /// This program with the arguments of one of its tests.
    pub(super) fn own_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command.args(args);
        command
    }

    /// CPUs of client and server, where they are bound.
    pub(super) fn binding(&self, place: Place) -> Option<[usize; 2]> {
        match place {
            Place::Free => None,
            Place::Two => Some(self.cpus),
            Place::One => Some([self.cpus[0]; 2]),
        }
    }

    /// When a program that measures for `time` has certainly hung.
    pub(super) fn watchdog(&self, time: Duration) -> Instant {
        const GRACE: Duration = Duration::from_secs(20);
        Instant::now() + time + GRACE
    }
}
