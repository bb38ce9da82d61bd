//! Echoes: both ends in Python, in Java or on Tokio, and an epoll server with many connections.

use super::{directory, found, no_rate, number, start, write};
use crate::bench::Bench;
use crate::case::{Case, Echo, Service, Side};
use crate::installed::Program;
use crate::server::Server;
use rsock_cli::error::Error;
use std::process::Command;

/// The file of a program in another language, and its text.
struct Script {
    name: &'static str,
    text: &'static str,
}

const PYTHON: Script = Script { name: "echo.py", text: include_str!("../../../scripts/echo.py") };
const JAVA: Script = Script { name: "Echo.java", text: include_str!("../../../scripts/Echo.java") };

/// What runs the ends.
pub(super) fn name(with: Echo) -> &'static str {
    match with {
        Echo::Asyncio => "python3",
        Echo::Nio => "java",
        Echo::Tokio => "the Tokio client",
    }
}

pub(super) fn start_server(
    bench: &Bench,
    case: &Case,
    side: Side,
    with: Echo,
) -> Result<Server, Error> {
    let Some((program, script)) = script(bench, with)? else {
        return start_own(bench, case, side, "tokio-server");
    };
    start(bench, case, side, program, |command, port| {
        let path = directory(port)?.join(script.name);
        write(&path, script.text)?;
        command.arg(path).args(["server", &port.to_string(), &Service::MESSAGE.to_string()]);
        Ok(())
    })
}

/// Starts the epoll server.
pub(crate) fn start_epoll_server(bench: &Bench, case: &Case, side: Side) -> Result<Server, Error> {
    start_own(bench, case, side, "epoll-server")
}

pub(super) fn start_poll_server(bench: &Bench, case: &Case, side: Side) -> Result<Server, Error> {
    start_own(bench, case, side, "poll-server")
}

fn start_own(bench: &Bench, case: &Case, side: Side, end: &str) -> Result<Server, Error> {
    Server::start("the server", bench.listening(case, side), |port| {
        let mut command = bench.own_command(&["end", end, &port.to_string()]);
        bench.set_environment(&mut command, case, side);
        Ok(command)
    })
}

pub(super) fn client(bench: &Bench, with: Echo, port: u16) -> Result<Command, Error> {
    let (port_text, seconds) = (port.to_string(), bench.time.as_secs().to_string());
    let Some((program, script)) = script(bench, with)? else {
        return Ok(bench.own_command(&["end", "tokio-client", "--time", &seconds, &port_text]));
    };
    let mut command = program.command();
    command.arg(directory(port)?.join(script.name));
    command.args(["client", &port_text, &Service::MESSAGE.to_string(), &seconds]);
    Ok(command)
}

/// The client of [`Service::BUSY`] connections, and of so many others that rest.
pub(super) fn epoll_client(bench: &Bench, idle: u16, port: u16) -> Command {
    let [busy, idle, port] = [Service::BUSY, idle, port].map(|n| n.to_string());
    let seconds = bench.time.as_secs().to_string();
    let args = ["end", "epoll-client", "--busy", &busy, "--idle", &idle, "--time", &seconds, &port];
    bench.own_command(&args)
}

/// The interpreter and its script; `None` of an echo that is part of this program.
fn script(bench: &Bench, with: Echo) -> Result<Option<(&Program, Script)>, Error> {
    let programs = &bench.programs;
    match with {
        Echo::Asyncio => Ok(Some((found(programs.python3.as_ref(), name(with))?, PYTHON))),
        Echo::Nio => Ok(Some((found(programs.java.as_ref(), name(with))?, JAVA))),
        Echo::Tokio => Ok(None),
    }
}

pub(super) fn parse(output: &str, program: &str) -> Result<f64, Error> {
    number(output, "rate", ':').ok_or_else(|| no_rate(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        assert_eq!(parse("rate: 1234.5\n", "java").unwrap(), 1234.5);
        assert_eq!(parse("", "java").unwrap_err().to_string(), "java: no rate");
    }
}
