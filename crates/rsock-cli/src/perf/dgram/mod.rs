//! `rsock perf dgram`: round trips and one-way rate of datagrams, and what became of each datagram.
//!
//! The first byte of a datagram is an operation: the server answers it, counts it, or sends back
//! its count. Only that last question is retried, so whatever else is missing was lost.

mod client;
mod report;
mod server;

use super::datagrams::{Kind, MAX_BATCH, Socket, Work};
use super::ends::{Ends, Role};
use super::{parse_seconds, parse_size};
use crate::error::Error;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

pub use report::DatagramReport;

/// What to measure, and how.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure
    #[arg(long, value_enum, default_value_t = Kind::Soft)]
    device: Kind,
    /// Bytes of a datagram; of a server that receives batches, the most that it takes
    #[arg(long, default_value = "64", value_parser = parse_size)]
    size: usize,
    /// How long to measure each of the two, in seconds
    #[arg(long, default_value = "2", value_parser = parse_seconds, allow_negative_numbers = true)]
    time: Duration,
    /// Datagrams that one call sends or receives in the one-way measurement: 1 is plain calls, more
    /// are send_batch and recv_batch, or sendmmsg(2) and recvmmsg(2); the server has its own
    #[arg(long, default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=MAX_BATCH as i64))]
    batch: u16,
    #[command(flatten)]
    ends: Ends,
}

/// Has the server send the same datagram back.
const ECHO: u8 = 0;
/// Has the server count the datagram.
const COUNT: u8 = 1;
/// Have the server send its count and the time that it took. One is for before and one for after a
/// measurement, so that a late answer to the first is not taken for one to the second.
const TELL: [u8; 2] = [2, 3];
/// Bytes of the answer to [`TELL`]: the operation, the count, nanoseconds.
const ANSWER_LEN: usize = 17;
/// Longest datagram that every path takes.
const MAX_SIZE: usize = 65_000;

pub(super) fn run(args: &Args) -> Result<(), Error> {
    args.ends.check()?;
    if args.size > MAX_SIZE {
        return Err(Error::Usage(format!("--size of datagrams goes up to {MAX_SIZE}")));
    }
    args.device.run(args)
}

impl Work for &Args {
    fn run_on<S: Socket>(self) -> Result<(), Error> {
        if let Role::Server(addr) = self.ends.take_role()? {
            return server::serve::<S>(addr, self);
        }
        let (_server, addr) = self.ends.server(server_command::<S>(self)?)?;
        let report = client::measure::<S>(&addr, self);
        let report = report.map_err(Error::io(format!("{} to {addr} failed", S::NAME)))?;
        self.ends.print(&report)
    }
}

fn server_command<S: Socket>(args: &Args) -> Result<Command, Error> {
    let mut command = super::command()?;
    command.args(["dgram", "--device", S::NAME]);
    command.args(["--batch", &args.batch.to_string(), "--size", &args.size.to_string()]);
    Ok(command)
}

fn parse_addr(addr: &str) -> io::Result<SocketAddr> {
    addr.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no address"))
}
