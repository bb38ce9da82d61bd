//! Unmodified `rstream` of rdmacm-utils, blocking, on an RDMA device: over librdmacm's rsockets or
//! over ours. A server serves one client and ends.

use crate::bench::Bench;
use crate::case::{Case, Side};
use crate::collected::Collected;
use crate::installed::Program;
use crate::process;
use crate::programs::perftest;
use crate::server::Server;
use rsock_cli::error::Error;
use std::time::Duration;

/// How much both ends send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Volume {
    /// Bytes per message.
    size: usize,
    /// Messages in one direction, before the other end sends as many back.
    n_messages: u64,
    n_turns: u64,
}

impl Volume {
    /// One-byte messages, each answered.
    pub(crate) const ROUND_TRIPS: Self =
        Self { size: 1, n_messages: 1, n_turns: perftest::N_ROUND_TRIPS as u64 };

    /// Bytes of both directions together.
    fn bytes(self) -> u64 {
        2 * self.size as u64 * self.n_messages * self.n_turns
    }

    fn args(self) -> [String; 8] {
        let Self { size, n_messages, n_turns } = self;
        let numbers = [size.to_string(), n_messages.to_string(), n_turns.to_string()];
        let [size, n_messages, n_turns] = numbers;
        ["-T", "b", "-S", &size, "-C", &n_messages, "-I", &n_turns].map(str::to_owned)
    }
}

/// Starts a server.
pub(crate) fn start_server(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
    volume: Volume,
) -> Result<Server, Error> {
    Server::start("rstream", bench.listening(case, side), |port| {
        let mut command = program.command();
        command.args(["-b", &bench.host(case), "-p", &port.to_string()]).args(volume.args());
        bench.set_environment(&mut command, case, side);
        Ok(command)
    })
}

/// Starts a client.
pub(crate) fn start_client(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
    volume: Volume,
    port: u16,
) -> Result<Collected, Error> {
    let mut command = program.command();
    command.args(["-s", &bench.host(case), "-p", &port.to_string()]).args(volume.args());
    bench.set_environment(&mut command, case, side);
    Collected::spawn("rstream", command)
}

/// Parses round trips per second from the time of one way.
pub(crate) fn parse(output: &str) -> Result<f64, Error> {
    let line = output.lines().find(|line| line.starts_with("custom"));
    let micros = line.and_then(|line| line.split_whitespace().next_back()?.parse::<f64>().ok());
    match micros.filter(|micros| micros.is_finite() && *micros > 0.0) {
        Some(micros) => Ok(1e6 / (2.0 * micros)),
        None => Err(Error::Failed(format!("rstream printed no result: {:?}", output.trim()))),
    }
}

/// Measures the nanoseconds of user CPU time that both ends take for 1024 bytes, less the time for
/// starting and ending.
pub(crate) fn user_cpu(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
    size: usize,
) -> Result<f64, Error> {
    let least = Volume { size, n_messages: 1, n_turns: 1 };
    let volume = Volume { size, n_messages: CPU_VOLUME / size as u64 / 4, n_turns: 2 };
    let idle = user_time(bench, program, case, side, least)?;
    let busy = user_time(bench, program, case, side, volume)?;
    let bytes = (volume.bytes() - least.bytes()) as f64;
    Ok(busy.saturating_sub(idle).as_nanos() as f64 / (bytes / 1024.0))
}

/// Measures the user CPU time of both ends of one run.
fn user_time(
    bench: &Bench,
    program: &Program,
    case: &Case,
    side: Side,
    volume: Volume,
) -> Result<Duration, Error> {
    let server = start_server(bench, program, case, side, volume)?;
    // The server ends later; processes that have ended so far only looked for its listener.
    let before = process::user_time_of_ended_children()?;
    let client = start_client(bench, program, case, side, volume, server.port)?;
    let deadline = bench.deadline(bench.time);
    client.finish(deadline)?;
    server.finish(deadline)?;
    Ok(process::user_time_of_ended_children()?.saturating_sub(before))
}

/// Bytes of both directions together.
const CPU_VOLUME: u64 = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_column_is_half_a_round_trip() {
        let output = "name      bytes   xfers   iters   total       time     Gb/sec    usec/xfer\n\
            custom    1       1       10k     19k         1.13s      0.00      50.00\n";
        assert_eq!(parse(output).unwrap(), 10_000.0);
        for bad in ["", "rconnect: Connection refused", "custom 1 1 inf"] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn volumes_add_up() {
        let volume = Volume { size: 65536, n_messages: 256, n_turns: 2 };
        assert_eq!(volume.bytes(), CPU_VOLUME);
    }
}
