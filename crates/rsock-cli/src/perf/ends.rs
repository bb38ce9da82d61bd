//! Client and server of a measurement: which of them this program is, where each runs, and how the client gets its
//! server.

use super::server::GREETING;
use crate::child::Child;
use crate::error::Error;
use crate::{affinity, output};
use serde::Serialize;
use std::fmt::Display;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What may be said of the two ends, whatever they measure.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Ends {
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
pub(super) enum Role<'a> {
    Client,
    /// At this address, if one was asked for.
    Server(Option<&'a str>),
}

impl Ends {
    /// Whether what was said makes sense.
    pub(super) fn check(&self) -> Result<(), Error> {
        if self.cpu.len() > 2 {
            return Err(Error::Usage("--cpu takes at most two CPUs: client,server".into()));
        }
        Ok(())
    }

    /// Which end this program is. From here on it runs on that end's CPU.
    pub(super) fn take_role(&self) -> Result<Role<'_>, Error> {
        let (role, cpu) = match &self.server {
            Some(addr) => (Role::Server(addr.as_deref()), self.cpu.last()),
            None => (Role::Client, self.cpu.first()),
        };
        cpu.map_or(Ok(()), |cpu| affinity::bind(&[*cpu]))?;
        Ok(role)
    }

    /// Whether the server is one that others have started.
    pub(super) fn has_server(&self) -> bool {
        self.connect.is_some()
    }

    /// The address of the server: of the one that was named, or of one that `command` starts.
    pub(super) fn server(&self, command: Command) -> Result<(Option<Child>, String), Error> {
        if let Some(addr) = &self.connect {
            return Ok((None, addr.clone()));
        }
        let (server, addr) = self.spawn_server(command)?;
        Ok((Some(server), addr))
    }

    /// Starts a server and waits until it listens.
    pub(super) fn spawn_server(&self, mut command: Command) -> Result<(Child, String), Error> {
        command.arg("--server").stdin(Stdio::null()).stdout(Stdio::piped());
        if let Some(cpu) = self.cpu.last() {
            command.args(["--cpu", &cpu.to_string()]);
        }
        let mut server = Child::spawn("the server", command)?;
        let addr = read_address(&mut server)?;
        Ok((server, addr))
    }

    /// Has `command` start a client where clients run.
    pub(super) fn place_client(&self, command: &mut Command) {
        if let Some(cpu) = self.cpu.first() {
            command.args(["--cpu", &cpu.to_string()]);
        }
    }

    /// Prints the report as it was asked for.
    pub(super) fn print(&self, report: &(impl Serialize + Display)) -> Result<(), Error> {
        if self.json { output::print_json(report) } else { output::print(&report.to_string()) }
    }
}

/// A command that runs this program.
pub(super) fn own_command() -> Result<Command, Error> {
    let exe = std::env::current_exe().map_err(Error::io("cannot tell where this program is"))?;
    Ok(Command::new(exe))
}

/// The address in the one line that a server prints.
pub(crate) fn read_address(server: &mut Child) -> Result<String, Error> {
    let line = server.read_line(Instant::now() + START_LIMIT)?;
    line.strip_prefix(GREETING)
        .map(str::to_owned)
        .ok_or_else(|| Error::Failed("the server did not start".into()))
}

/// How long a server of ours may take to start.
const START_LIMIT: Duration = Duration::from_secs(20);
