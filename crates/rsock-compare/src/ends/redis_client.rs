//! A client of redis that asks for a value at a pace, by blocking calls.

use super::{parse_seconds, print_rate, wrong_answer};
use rsock_cli::child::pause;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The options of the client.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    port: u16,
    /// Requests per second
    #[arg(long)]
    rate: u32,
    /// Seconds
    #[arg(long, value_parser = parse_seconds)]
    time: Duration,
}

pub(super) fn run(args: &Args) -> io::Result<()> {
    const SET: &[u8] = b"*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$5\r\nvalue\r\n";
    const GET: &[u8] = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n";
    const VALUE: &[u8] = b"$5\r\nvalue\r\n";
    let mut stream = TcpStream::connect(("127.0.0.1", args.port))?;
    stream.set_nodelay(true)?;
    ask(&mut stream, SET, b"+OK\r\n")?;
    let (mut count, start) = (0, Instant::now());
    while start.elapsed() < args.time {
        ask(&mut stream, GET, VALUE)?;
        count += 1;
        let due = Duration::from_secs_f64(f64::from(count) / f64::from(args.rate));
        // Late requests follow each other at once.
        pause(due.saturating_sub(start.elapsed()));
    }
    let rate = f64::from(count) / start.elapsed().as_secs_f64();
    if rate < 0.9 * f64::from(args.rate) {
        return Err(io::Error::other(format!("only {rate:.0} requests per second")));
    }
    print_rate(rate)
}

fn ask(stream: &mut TcpStream, request: &[u8], expected: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    let mut answer = vec![0; expected.len()];
    stream.read_exact(&mut answer)?;
    if answer == expected { Ok(()) } else { Err(wrong_answer()) }
}
