//! `rsock perf`: plain loops that measure streams and datagrams.
//!
//! The loops are generic over the kind of socket, so kernel sockets and rsock run the same code and
//! differ in one call. Client and server are two processes; without `--server` or `--connect` the
//! command starts its own server and ends it.

pub mod datagrams;
pub mod ends;
pub mod latency;

mod dgram;
mod streams;

use crate::error::Error;
use clap::Subcommand;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

pub use dgram::DatagramReport;
pub use streams::Report;

/// Measure latency, bandwidth and connect rate
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    test: Test,
}

#[derive(Debug, Subcommand)]
enum Test {
    #[command(flatten)]
    Streams(streams::Test),
    /// Datagrams: round trips, one-way rate, and what was lost
    Dgram(dgram::Args),
}

/// Runs one end of a test, or both.
///
/// # Errors
/// If the arguments make no sense together, or the test fails.
pub fn run(args: &Args) -> Result<(), Error> {
    match &args.test {
        Test::Streams(test) => streams::run(test),
        Test::Dgram(args) => dgram::run(args),
    }
}

/// A command that runs this program as the end of a test of `rsock perf`.
///
/// # Errors
/// If the system does not tell where this program is.
pub fn command() -> Result<Command, Error> {
    let mut command = ends::own_command()?;
    command.arg("perf");
    Ok(command)
}

/// Leaves RDMA as the only device. A process chooses its device by its environment when it makes
/// its first socket, so this program starts over with the right one.
fn restart_on_rdma() -> Result<(), Error> {
    const NAME: &str = "RSOCK_DEVICE";
    const RDMA: &str = "rdma";
    if std::env::var_os(NAME).is_some_and(|chosen| chosen == RDMA) {
        return Ok(());
    }
    let mut again = ends::own_command()?;
    again.args(std::env::args_os().skip(1)).env(NAME, RDMA);
    Err(Error::io("cannot start over")(again.exec()))
}

/// Bytes per message at most: a server allocates what a client asks for.
const MAX_SIZE: usize = 64 << 20;

/// Parses bytes, with K, M or G for powers of 1024.
///
/// # Errors
/// A message for the user if `text` is no such number, or out of range.
pub fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.trim_end_matches(['k', 'K', 'm', 'M', 'g', 'G']) {
        digits if digits.len() == text.len() => (digits, 0),
        digits => match &text[digits.len()..] {
            "k" | "K" => (digits, 10),
            "m" | "M" => (digits, 20),
            "g" | "G" => (digits, 30),
            _ => ("", 0),
        },
    };
    let n: usize = digits.parse().map_err(|_| "not a size such as 64, 16K or 1M".to_owned())?;
    match n.checked_mul(1 << shift) {
        Some(size @ 1..=MAX_SIZE) => Ok(size),
        _ => Err(format!("sizes go from 1 to {MAX_SIZE} bytes")),
    }
}

/// Parses seconds, with a fraction.
///
/// # Errors
/// A message for the user if `text` is no such number, or out of range.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.001..=86_400.0).contains(&seconds) {
        return Err("from 0.001 to 86400 seconds".into());
    }
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_binary_suffixes_and_refuse_nonsense() {
        let good = ["1", "64", "4K", "4k", "1M", "64M"].map(|t| parse_size(t).unwrap());
        assert_eq!(good, [1, 64, 4096, 4096, 1 << 20, 64 << 20]);
        for bad in ["", "0", "K", "1KK", "-1", "1.5M", "1T", "65M", "99999999999999999999"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_are_positive_and_finite() {
        assert_eq!(parse_seconds("0.25").unwrap(), Duration::from_millis(250));
        for bad in ["", "0", "-1", "nan", "inf", "1e9", "2s"] {
            assert!(parse_seconds(bad).is_err(), "{bad}");
        }
    }
}
