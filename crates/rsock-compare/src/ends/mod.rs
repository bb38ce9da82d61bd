//! Ends of rows about services that no program of others is made for. They use plain TCP sockets;
//! the environment decides whether rsock is below.

mod epoll;
mod epoll_client;
mod epoll_server;
mod poll_server;
mod redis_client;
mod tokio_echo;

use crate::{endless_loops, sweep};
use clap::Subcommand;
use rsock_cli::error::Error;
use std::io;
use std::time::Duration;

/// The options of the ends.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    end: End,
}

#[derive(Debug, Subcommand)]
enum End {
    /// Send back what comes, with epoll
    EpollServer { port: u16 },
    /// Have messages sent back on some connections, with epoll, and open others
    EpollClient(epoll_client::Args),
    /// Send back what comes, with poll
    PollServer { port: u16 },
    /// Send back what comes, with Tokio
    TokioServer { port: u16 },
    /// Have messages sent back, with Tokio
    TokioClient {
        port: u16,
        /// Seconds
        #[arg(long, value_parser = parse_seconds)]
        time: Duration,
    },
    /// Ask redis for a value, at a pace
    RedisClient(redis_client::Args),
    /// Receive what a sweep sends
    SweepServer,
    /// Send as a sweep does
    SweepClient(sweep::ClientArgs),
    /// Use CPU time
    Loop,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    let done = match &args.end {
        End::EpollServer { port } => epoll_server::run(*port),
        End::PollServer { port } => poll_server::run(*port),
        End::EpollClient(args) => epoll_client::run(args),
        End::TokioServer { port } => tokio_echo::serve(*port),
        End::TokioClient { port, time } => tokio_echo::ask(*port, *time),
        End::RedisClient(args) => redis_client::run(args),
        End::SweepServer => sweep::server(),
        End::SweepClient(args) => sweep::client(args),
        End::Loop => endless_loops::run(),
    };
    done.map_err(Error::io("the end failed"))
}

/// The message of this number: neighbours differ, so that an answer to another one is noticed.
fn message(number: u64) -> [u8; SIZE] {
    let mut bytes = [b'x'; SIZE];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

const SIZE: usize = crate::case::Service::MESSAGE;

/// Prints a rate as [`crate::programs::services`] reads it.
/// What stands before a rate that an end prints.
pub(crate) const RATE: &str = "rate: ";

fn print_rate(rate: f64) -> io::Result<()> {
    use std::io::Write;
    writeln!(io::stdout(), "{RATE}{rate}")
}

fn wrong_answer() -> io::Error {
    io::Error::other("a wrong answer")
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map_err(|_| format!("'{text}' is no number of seconds"))?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_neighbouring_numbers_differ() {
        assert_ne!(message(255), message(256));
        assert_eq!(message(7), message(7));
    }
}
