//! A client with one thread and many connections: each has messages sent back so often that it
//! leaves TCP, then some go on while the others rest.

use super::epoll::Epoll;
use super::{SIZE, message, parse_seconds, print_rate, wrong_answer};
use crate::hold::{READY, allow_descriptors};
use crate::moved;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// The options of the client.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    port: u16,
    /// Connections that carry messages all the time
    #[arg(long, default_value_t = 0)]
    busy: u16,
    /// Connections that rest
    #[arg(long, default_value_t = 0)]
    idle: u16,
    /// Seconds
    #[arg(long, default_value = "1", value_parser = parse_seconds)]
    time: Duration,
    /// Print how many connections were set up in a second, and wait until standard input ends
    #[arg(long)]
    hold: bool,
}

/// Messages of each connection before the busy ones go on.
const N_TRIPS: u64 = 32;
/// Connections that are opened and used together.
const GROUP: usize = 100;

pub(super) fn run(args: &Args) -> io::Result<()> {
    let n = usize::from(args.busy) + usize::from(args.idle);
    allow_descriptors(n);
    let mut client = Client { epoll: Epoll::new()?, streams: Vec::with_capacity(n) };
    let start = Instant::now();
    while client.streams.len() < n {
        let begin = client.streams.len();
        for _ in begin..n.min(begin + GROUP) {
            client.open(args.port)?;
        }
        for _ in 0..N_TRIPS {
            client.trip(begin..client.streams.len())?;
        }
    }
    if args.hold {
        print_rate(n as f64 / start.elapsed().as_secs_f64())?;
        client.await_move()?;
        return client.hold();
    }
    print_rate(client.busy(args.busy.into(), args.time)?)?;
    // Those that rested still work.
    for begin in (0..n).step_by(GROUP) {
        client.trip(begin..n.min(begin + GROUP))?;
    }
    Ok(())
}

struct Client {
    epoll: Epoll,
    streams: Vec<Stream>,
}

/// A connection, and the number of its latest message.
struct Stream {
    socket: TcpStream,
    number: u64,
    /// Bytes of the answer so far.
    answer: Vec<u8>,
}

impl Client {
    fn open(&mut self, port: u16) -> io::Result<()> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let index = self.streams.len();
        self.epoll.add(&socket, index as u64)?;
        // Connections differ in their first numbers, so that they cannot be mixed up.
        let number = (index as u64) << 32;
        self.streams.push(Stream { socket, number, answer: Vec::with_capacity(SIZE) });
        Ok(())
    }

    /// Sends a message on each connection of `range`, and waits for all answers.
    fn trip(&mut self, range: std::ops::Range<usize>) -> io::Result<()> {
        let mut left = range.len();
        self.streams[range].iter_mut().try_for_each(Stream::send)?;
        while left > 0 {
            for stream in self.ready()? {
                left -= usize::from(self.streams[stream].has_answer()?);
            }
        }
        Ok(())
    }

    /// Measures the round trips per second of the first `n` connections.
    fn busy(&mut self, n: usize, time: Duration) -> io::Result<f64> {
        let (mut count, start) = (0_u64, Instant::now());
        self.streams[..n].iter_mut().try_for_each(Stream::send)?;
        while start.elapsed() < time {
            for stream in self.ready()? {
                if self.streams[stream].has_answer()? {
                    self.streams[stream].send()?;
                    count += 1;
                }
            }
        }
        let rate = count as f64 / start.elapsed().as_secs_f64();
        let mut left = n;
        while left > 0 {
            for stream in self.ready()? {
                left -= usize::from(self.streams[stream].has_answer()?);
            }
        }
        Ok(rate)
    }

    /// Has messages sent back on all connections until each has left TCP, if the library is below:
    /// on a busy machine some need more of them than others. Some may never leave.
    fn await_move(&mut self) -> io::Result<()> {
        const LIMIT: Duration = Duration::from_secs(10);
        let start = Instant::now();
        let own = std::process::id();
        while moved::have_all_moved(own, self.streams.len()) == Some(false)
            && start.elapsed() < LIMIT
        {
            for begin in (0..self.streams.len()).step_by(GROUP) {
                self.trip(begin..self.streams.len().min(begin + GROUP))?;
            }
        }
        Ok(())
    }

    /// Waits in the set until standard input ends.
    fn hold(&mut self) -> io::Result<()> {
        let input = io::stdin();
        let end = self.streams.len();
        self.epoll.add(&input, end as u64)?;
        writeln!(io::stdout(), "{READY}")?;
        match self.ready()?.first() {
            Some(index) if *index == end => Ok(()),
            _ => Err(io::Error::other("a stream that should rest carries bytes")),
        }
    }

    fn ready(&mut self) -> io::Result<Vec<usize>> {
        let numbers = self.epoll.wait()?;
        Ok(numbers.into_iter().filter_map(|number| usize::try_from(number).ok()).collect())
    }
}

impl Stream {
    fn send(&mut self) -> io::Result<()> {
        self.number += 1;
        self.answer.clear();
        self.socket.write_all(&message(self.number))
    }

    /// Reads; whether the answer is complete.
    fn has_answer(&mut self) -> io::Result<bool> {
        let mut buf = [0; SIZE];
        match self.socket.read(&mut buf) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => self.answer.extend(&buf[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(e) => return Err(e),
        }
        match self.answer.len() {
            0..SIZE => Ok(false),
            _ if self.answer == message(self.number) => Ok(true),
            _ => Err(wrong_answer()),
        }
    }
}
