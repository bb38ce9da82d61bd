//! A program that a test talks to by its standard input and output.

use crate::Running;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{ChildStdout, Command, Stdio};

/// A started program that goes on until its standard input ends.
#[derive(Debug)]
pub struct Piped {
    process: Running,
    out: BufReader<ChildStdout>,
}

impl Piped {
    /// Starts `command`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::spawn(command).expect("a program starts");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, out }
    }

    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// The next line that it prints, or nothing at its end.
    ///
    /// # Panics
    /// If what it prints is no text.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    /// Reads what it prints up to a line that contains `word`; whether there is one.
    ///
    /// # Panics
    /// If what it prints is no text.
    #[must_use]
    pub fn says(&mut self, word: &str) -> bool {
        self.out.by_ref().lines().any(|line| line.expect("its output").contains(word))
    }

    /// Writes a line to its standard input; the next line that it prints.
    ///
    /// # Panics
    /// If it has ended.
    pub fn ask(&mut self, line: &str) -> String {
        let stdin = self.process.stdin.as_mut().expect("piped");
        writeln!(stdin, "{line}").expect("its standard input");
        self.line()
    }

    /// Ends its standard input, without waiting for what it does then.
    pub fn release(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Has it end, which must be with success; the rest of what it prints.
    ///
    /// # Panics
    /// If it fails.
    pub fn finish(mut self) -> String {
        self.release();
        self.rest()
    }

    /// The rest of what it prints until it ends by itself, which must be with success.
    ///
    /// # Panics
    /// If it fails.
    #[must_use]
    pub fn rest(mut self) -> String {
        let mut rest = String::new();
        self.out.read_to_string(&mut rest).expect("its output");
        assert!(self.process.wait().expect("its end").success(), "{rest}");
        rest
    }
}
