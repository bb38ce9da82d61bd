//! Measurements of byte streams: round trips, bandwidth, connections.

mod client;
mod report;
mod server;
mod transport;
mod wire;

use super::ends::{Ends, Role};
use super::{parse_seconds, parse_size};
use crate::error::Error;
use clap::{Subcommand, ValueEnum};
use std::time::Duration;
use transport::{Rdma, Rsock, Rsockets, Tcp, Transport, Unix};

pub use report::Report;

#[derive(Debug, Subcommand)]
pub(super) enum Test {
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
}

#[derive(Clone, Debug, clap::Args)]
pub(super) struct Common {
    /// What to measure
    #[arg(long, value_enum, default_value_t = Device::Rsock)]
    device: Device,
    /// How long to measure, in seconds
    #[arg(long, default_value = "2", value_parser = parse_seconds, allow_negative_numbers = true)]
    time: Duration,
    #[command(flatten)]
    ends: Ends,
}

/// A value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Device {
    /// rsock's streams: TCP first, then a faster path
    Rsock,
    /// rsock's rsockets: shared memory from the first byte
    Soft,
    /// The same on an RDMA device
    Rdma,
    /// Kernel TCP
    Tcp,
    /// A Unix stream socket: addresses are paths, or @NAME
    Unix,
}

impl Test {
    fn common(&self) -> &Common {
        match self {
            Self::Rr { common, .. }
            | Self::Stream { common, .. }
            | Self::Connect { common, .. } => common,
        }
    }
}

pub(super) fn run(test: &Test) -> Result<(), Error> {
    let common = test.common();
    common.ends.check()?;
    match common.device {
        Device::Rsock => run_over::<Rsock>(test),
        Device::Soft => run_over::<Rsockets>(test),
        Device::Rdma => {
            super::restart_on_rdma()?;
            run_over::<Rdma>(test)
        }
        Device::Tcp => run_over::<Tcp>(test),
        Device::Unix => run_over::<Unix>(test),
    }
}

fn run_over<T: Transport>(test: &Test) -> Result<(), Error> {
    let Common { ends, time, .. } = test.common();
    if let Role::Server(addr) = ends.take_role()? {
        return server::serve::<T>(addr);
    }
    // The server of one test serves all of them.
    let mut server = super::command()?;
    server.args(["rr", "--device", T::NAME]);
    let (_server, addr) = ends.server(server)?;
    let report = match *test {
        Test::Rr { size, rate, .. } => client::rr::<T>(&addr, size, *time, rate),
        Test::Stream { size, .. } => client::stream::<T>(&addr, size, *time),
        Test::Connect { size, .. } => client::connect::<T>(&addr, size, *time),
    };
    ends.print(&report.map_err(Error::io(format!("{} to {addr} failed", T::NAME)))?)
}
