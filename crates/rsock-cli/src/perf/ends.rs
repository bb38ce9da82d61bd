//! The two ends of a measurement: which of them this program is, on which CPU each runs, and how
//! the client gets its server.

use crate::child::Child;
use crate::error::Error;
use crate::{affinity, output};
use serde::Serialize;
use std::fmt::Display;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The options about the two ends, which all measurements share.
#[derive(Clone, Debug, clap::Args)]
pub struct Ends {
    /// Be the server until killed
    #[arg(long, value_name = "ADDR", num_args = 0..=1, conflicts_with = "connect")]
    server: Option<Option<String>>,
    /// Use the server at this address
    #[arg(long, value_name = "ADDR")]
    connect: Option<String>,
    /// Run client and server on these CPUs
    #[arg(long, value_name = "CPU[,CPU]", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Which end this program is.
#[derive(Clone, Copy, Debug)]
pub enum Role<'a> {
    /// The end that measures.
    Client,
    /// The other end, at this address if the user gave one.
    Server(Option<&'a str>),
}

impl Ends {
    /// Checks that the options make sense together.
    ///
    /// # Errors
    /// [`Error::Usage`] if they do not.
    pub fn check(&self) -> Result<(), Error> {
        if self.cpu.len() > 2 {
            return Err(Error::Usage("--cpu takes at most two CPUs: client,server".into()));
        }
        Ok(())
    }

    /// Returns which end this program is, and binds it to that end's CPU.
    ///
    /// # Errors
    /// If the CPU cannot be used.
    pub fn take_role(&self) -> Result<Role<'_>, Error> {
        let (role, cpu) = match &self.server {
            Some(addr) => (Role::Server(addr.as_deref()), self.cpu.last()),
            None => (Role::Client, self.cpu.first()),
        };
        cpu.map_or(Ok(()), |cpu| affinity::bind(&[*cpu]))?;
        Ok(role)
    }

    /// Returns the server's address: that of `--connect`, or of a server that `command` starts and
    /// that lives as long as the returned child.
    ///
    /// # Errors
    /// If the server does not start.
    pub fn server(&self, mut command: Command) -> Result<(Option<Child>, String), Error> {
        if let Some(addr) = &self.connect {
            return Ok((None, addr.clone()));
        }
        command.arg("--server").stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(cpu) = self.cpu.last() {
            command.args(["--cpu", &cpu.to_string()]);
        }
        let mut server = Child::spawn("the server", command)?;
        let addr = read_address(&mut server)?;
        Ok((Some(server), addr))
    }

    /// Has `command` start a client on the client's CPU.
    pub fn place_client(&self, command: &mut Command) {
        if let Some(cpu) = self.cpu.first() {
            command.args(["--cpu", &cpu.to_string()]);
        }
    }

    /// Prints the report as text or as JSON, as the user asked.
    ///
    /// # Errors
    /// If standard output cannot be written.
    pub fn print(&self, report: &(impl Serialize + Display)) -> Result<(), Error> {
        if self.json { output::print_json(report) } else { output::print(&report.to_string()) }
    }
}

/// Returns a command that runs this program.
///
/// # Errors
/// If the system does not tell where this program is.
pub fn own_command() -> Result<Command, Error> {
    let exe = std::env::current_exe().map_err(Error::io("cannot tell where this program is"))?;
    Ok(Command::new(exe))
}

/// Prints a server's address in the one line that [`read_address`] reads.
///
/// # Errors
/// If standard output cannot be written.
pub fn print_address(addr: impl Display) -> Result<(), Error> {
    output::print(&format!("{GREETING}{addr}\n"))
}

/// Reads the address in the one line that a server prints.
///
/// # Errors
/// If the server prints something else or nothing within twenty seconds.
pub fn read_address(server: &mut Child) -> Result<String, Error> {
    const START_LIMIT: Duration = Duration::from_secs(20);
    let line = server.read_line(Instant::now() + START_LIMIT)?;
    line.strip_prefix(GREETING)
        .map(str::to_owned)
        .ok_or_else(|| Error::Failed("the server did not start".into()))
}

/// Precedes the address once clients may connect.
const GREETING: &str = "listening on ";
