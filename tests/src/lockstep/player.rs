//! A process that makes one call after the other as it is ordered to.

use crate::{Running, preload_library};
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

/// Whether a process has the preload library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// It has it.
    With,
    /// It makes its calls to the kernel.
    Without,
}

/// A process that reads orders, a line each, and writes what each call returned, a line each.
#[derive(Debug)]
pub struct Player {
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
    _running: Running,
}

impl Player {
    /// Starts `command`.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn new(command: &mut Command, library: Library) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).env_remove("LD_PRELOAD");
        if library == Library::With {
            command.env("LD_PRELOAD", preload_library());
        }
        let mut running = Running::spawn(command).expect("the program starts");
        let orders = running.stdin.take().expect("piped");
        let answers = BufReader::new(running.stdout.take().expect("piped"));
        Self { orders, answers, _running: running }
    }

    /// Orders calls, in one write; nothing if the process has died.
    pub fn order(&mut self, lines: &str) -> Option<()> {
        self.orders.write_all(lines.as_bytes()).ok()
    }

    /// What the next call that was ordered returns; nothing if the process has died.
    pub fn answer(&mut self) -> Option<String> {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).ok()?;
        answer.ends_with('\n').then(|| answer.trim_end().to_owned())
    }
}
