//! One end of a transfer of blocks: `tests/scripts/blocks.py`.

use crate::Piped;
use crate::hosts::{Guest, Role};
use std::path::Path;
use std::process::{Command, Stdio};

/// A started end.
#[derive(Debug)]
pub struct Blocks(Piped);

impl Blocks {
    /// Starts the script by `command`, which begins with Python.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(mut command: Command, args: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/blocks.py");
        Self(Piped::start(command.arg(script).args(args).stderr(Stdio::inherit())))
    }

    /// Starts a server at this guest's address, which is listening then.
    ///
    /// # Panics
    /// If it does not listen.
    #[must_use]
    pub fn serve(guest: &Guest, command: Command, port: &str, how: &str) -> Self {
        let mut this = Self::start(command, &["serve", &guest.ip().to_string(), port, how]);
        assert_eq!(this.0.line(), "listening");
        this
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Ends a sender, which goes on until then; what it says at its end.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn outcome(mut self) -> String {
        self.0.release();
        self.own_outcome()
    }

    /// What it says when its stream has ended, which the caller does not cause.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn own_outcome(self) -> String {
        self.0.rest().lines().last().unwrap_or("nothing").to_owned()
    }

    /// What both guests' ends say: a's, then b's.
    ///
    /// # Panics
    /// If one fails.
    #[must_use]
    pub fn end(self, guest: &Guest) -> [String; 2] {
        let own = self.outcome();
        guest.give(&own);
        guest.meet("over");
        let other = guest.take();
        match guest.role {
            Role::A => [own, other],
            Role::B => [other, own],
        }
    }
}
