//! `rsock perf`: latency, bandwidth and connect rate of plain loops over a byte stream.
//!
//! The loops are generic over [`device::Device`], so kernel TCP, Unix sockets and rsock run the
//! same code and differ in one call. Client and server are two processes; without `--server` or
//! `--connect` the command starts its own server and ends it.

mod client;
mod datagrams;
mod death;
mod device;
mod dgram;
mod ends;
mod hold;
mod incast;
mod report;
mod server;
mod wire;

use crate::error::Error;
use clap::{Subcommand, ValueEnum};
use device::{Device, Rdma, Rsock, Soft, Tcp, Unix};
use ends::{Ends, Role, own_command};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

pub(crate) use dgram::DatagramReport;
pub(crate) use ends::read_address;
pub(crate) use hold::READY;
pub(crate) use report::{Latency, Report};

/// Measure latency, bandwidth and connect rate
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    test: Test,
}

#[derive(Debug, Subcommand)]
enum Test {
    /// Round trips of one request and one answer: percentiles and rate
    Rr {
        #[command(flatten)]
        common: Common,
        /// Bytes of request and answer
        #[arg(long, default_value = "1", value_parser = parse_size)]
        size: usize,
        /// Requests per second at most [default: as many as possible]
        #[arg(long)]
        rate: Option<f64>,
    },
    /// One-way bandwidth
    Stream {
        #[command(flatten)]
        common: Common,
        /// Bytes per write
        #[arg(long, default_value = "64K", value_parser = parse_size)]
        size: usize,
    },
    /// Connect, request, answer, close: rate and percentiles
    Connect {
        #[command(flatten)]
        common: Common,
        /// Bytes of request and answer
        #[arg(long, default_value = "100", value_parser = parse_size)]
        size: usize,
    },
    /// Time until a blocked reader notices that the peer was killed
    Death {
        #[command(flatten)]
        common: Common,
        /// How many servers to kill
        #[arg(long, default_value_t = 20)]
        runs: u32,
    },
    /// Datagrams: round trips, one-way rate, and what was lost
    Dgram(dgram::Args),
    /// Datagrams of many clients to one server: what arrives, and what becomes of the rest
    Incast(incast::Args),
    /// Open streams, use each once and keep them: for `rsock compare`
    #[command(hide = true)]
    Hold(hold::Args),
}

#[derive(Clone, Debug, clap::Args)]
struct Common {
    /// What to measure
    #[arg(long, value_enum, default_value_t = DeviceKind::DEFAULT)]
    device: DeviceKind,
    /// How long to measure, in seconds
    #[arg(long, default_value = "2", value_parser = parse_seconds, allow_negative_numbers = true)]
    time: Duration,
    #[command(flatten)]
    ends: Ends,
}

/// A column of the comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DeviceKind {
    /// rsock's streams: TCP first, then a faster path
    Rsock,
    /// rsock's pure sockets: shared memory from the first byte
    Soft,
    /// The same on an RDMA device
    Rdma,
    /// Kernel TCP
    Tcp,
    /// A Unix stream socket: addresses are paths, or @NAME
    Unix,
}

impl DeviceKind {
    const DEFAULT: Self = Self::Rsock;

    fn name(self) -> &'static str {
        match self {
            Self::Rsock => Rsock::NAME,
            Self::Soft => Soft::NAME,
            Self::Rdma => Rdma::NAME,
            Self::Tcp => Tcp::NAME,
            Self::Unix => Unix::NAME,
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let common = match &args.test {
        Test::Rr { common, .. }
        | Test::Stream { common, .. }
        | Test::Connect { common, .. }
        | Test::Death { common, .. } => common,
        Test::Dgram(args) => return dgram::run(args),
        Test::Incast(args) => return incast::run(args),
        Test::Hold(args) => return hold::run(args),
    };
    common.ends.check()?;
    match common.device {
        DeviceKind::Rsock => run_on::<Rsock>(&args.test, common),
        DeviceKind::Soft => run_on::<Soft>(&args.test, common),
        DeviceKind::Rdma => {
            choose_rdma()?;
            run_on::<Rdma>(&args.test, common)
        }
        DeviceKind::Tcp => run_on::<Tcp>(&args.test, common),
        DeviceKind::Unix => run_on::<Unix>(&args.test, common),
    }
}

/// Leaves RDMA as the only device: that is settled when a process makes its first socket, by its
/// environment, so this program starts over with the right one.
fn choose_rdma() -> Result<(), Error> {
    const NAME: &str = "RSOCK_DEVICE";
    if std::env::var_os(NAME).is_some_and(|chosen| chosen == Rdma::NAME) {
        return Ok(());
    }
    let mut again = own_command()?;
    again.args(std::env::args_os().skip(1)).env(NAME, Rdma::NAME);
    Err(Error::io("cannot start over")(again.exec()))
}

fn run_on<D: Device>(test: &Test, common: &Common) -> Result<(), Error> {
    if let Role::Server(addr) = common.ends.take_role()? {
        return server::serve::<D>(addr);
    }
    if let Test::Death { runs, .. } = test {
        return common.ends.print(&death::measure::<D>(common, *runs)?);
    }
    let (_server, addr) = common.ends.server(server_command(common)?)?;
    let report = match *test {
        Test::Rr { size, rate, .. } => client::rr::<D>(&addr, size, common.time, rate),
        Test::Stream { size, .. } => client::stream::<D>(&addr, size, common.time),
        Test::Connect { size, .. } => client::connect::<D>(&addr, size, common.time),
        Test::Death { .. } | Test::Dgram(_) | Test::Incast(_) | Test::Hold(_) => {
            unreachable!("handled above")
        }
    };
    common.ends.print(&report.map_err(Error::io(format!("{} to {addr} failed", D::NAME)))?)
}

/// This program as a server of any test.
fn server_command(common: &Common) -> Result<Command, Error> {
    let mut command = own_command()?;
    command.args(["perf", "rr", "--device", common.device.name()]);
    Ok(command)
}

/// Bytes, with K, M or G for powers of 1024.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
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
        Some(size @ 1..=wire::MAX_SIZE) => Ok(size),
        _ => Err(format!("sizes go from 1 to {} bytes", wire::MAX_SIZE)),
    }
}

/// Seconds, with a fraction.
pub(crate) fn parse_seconds(text: &str) -> Result<Duration, String> {
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
