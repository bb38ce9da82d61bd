//! memcached, under the load of memcaslap.

use super::{found, no_rate, start};
use crate::bench::Bench;
use crate::case::{Case, Side};
use crate::server::Server;
use rsock_cli::error::Error;
use std::process::Command;

/// Starts the server.
pub(super) fn start_server(bench: &Bench, case: &Case, side: Side) -> Result<Server, Error> {
    let memcached = found(bench.programs.memcached.as_ref(), "memcached")?;
    start(bench, case, side, memcached, |command, port| {
        command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-t", "1"]);
        // Only needed, and only allowed, with privileges.
        if rustix::process::geteuid().is_root() {
            command.args(["-u", "root"]);
        }
        Ok(())
    })
}

pub(super) fn client(bench: &Bench, connections: u16, port: u16) -> Result<Command, Error> {
    let mut run = found(bench.programs.memcaslap.as_ref(), "memcaslap")?.command();
    run.arg(format!("--servers=127.0.0.1:{port}"));
    run.args(["-T", "1", "-c", &connections.to_string()]);
    run.args(["-t", &format!("{}s", bench.time.as_secs())]);
    Ok(run)
}

pub(super) fn parse(output: &str) -> Result<f64, Error> {
    let rate = output.split_once("TPS: ").map(|(_, rest)| rest);
    let rate = rate.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    rate.ok_or_else(|| no_rate("memcaslap"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found() {
        let output = "Run time: 2.0s Ops: 110240 TPS: 55102 Net_rate: 56.1M/s\n";
        assert_eq!(parse(output).unwrap(), 55_102.0);
        assert!(parse("").is_err());
    }
}
