//! `rsock perf dgram`: round trips and one-way rate of datagrams, and what became of each.
//!
//! The first byte of a datagram says what the server does with it: answer, count, or tell the count.
//! Nobody retries anything but that question, so what is missing was lost.

use super::client::{new_histogram, record};
use super::datagrams::{
    Batch, Counters, Kind, MAX_BATCH, OverRdma, Socket, Work, change, is_timeout,
};
use super::ends::{Ends, Role, own_command};
use super::report::Latency;
use super::server::GREETING;
use super::{parse_seconds, parse_size};
use crate::error::Error;
use crate::output;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

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
    /// Datagrams that one call sends or receives in the one-way measurement: 1 is plain calls, more are
    /// send_batch and recv_batch, or sendmmsg(2) and recvmmsg(2); the server has its own
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=MAX_BATCH as i64))]
    batch: u16,
    #[command(flatten)]
    ends: Ends,
}

/// The result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct DatagramReport {
    test: String,
    device: String,
    /// Bytes of a datagram.
    size: usize,
    /// Datagrams that a call sends or receives at most, one way.
    batch: u16,
    /// Of each of the two measurements.
    seconds: f64,
    pub(crate) round_trips_per_second: f64,
    pub(crate) latency_us: Latency,
    /// One way.
    sent: u64,
    received: u64,
    lost: u64,
    /// Of the lost ones, those that the sender knows of; nothing where it cannot.
    counted: Option<u64>,
    /// What this host's RDMA devices, or its kernel's UDP, counted meanwhile.
    device_counters: Counters,
    pub(crate) received_per_second: f64,
    gbit_per_second: f64,
}

/// Answer with the same.
const ECHO: u8 = 0;
/// Count it.
const COUNT: u8 = 1;
/// Tell how many were counted, and within what time; before and after a measurement, so that a late
/// answer is not taken for the other one.
const TELL: [u8; 2] = [2, 3];
/// Bytes of the answer to [`TELL`]: itself, the count, nanoseconds.
const ANSWER_LEN: usize = 17;
/// How long two sockets have to move to their faster path before they are measured.
const SETTLE_LIMIT: Duration = Duration::from_secs(20);
/// Longest datagram that every path takes.
const MAX_SIZE: usize = 65_000;
/// How long a lost answer is waited for.
const PATIENCE: Duration = Duration::from_millis(200);

pub(super) fn run(args: &Args) -> Result<(), Error> {
    args.ends.check()?;
    if args.size > MAX_SIZE {
        return Err(Error::Usage(format!("--size of datagrams goes up to {MAX_SIZE}")));
    }
    args.device.run(args)
}

impl Work for &Args {
    fn run_on<S: Socket>(self) -> Result<(), Error> {
        run_on::<S>(self)
    }
}

fn run_on<S: Socket>(args: &Args) -> Result<(), Error> {
    if let Role::Server(addr) = args.ends.take_role()? {
        return serve::<S>(addr, args);
    }
    let (_server, addr) = args.ends.server(server_command::<S>(args)?)?;
    let report = measure::<S>(&addr, args);
    let report = report.map_err(Error::io(format!("{} to {addr} failed", S::NAME)))?;
    args.ends.print(&report)
}

fn server_command<S: Socket>(args: &Args) -> Result<Command, Error> {
    let mut command = own_command()?;
    command.args(["perf", "dgram", "--device", S::NAME]);
    command.args(["--batch", &args.batch.to_string(), "--size", &args.size.to_string()]);
    Ok(command)
}

fn parse_addr(addr: &str) -> io::Result<SocketAddr> {
    addr.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no address"))
}

/// Serves until killed.
fn serve<S: Socket>(addr: Option<&str>, args: &Args) -> Result<(), Error> {
    let at = addr.map_or_else(S::any_local, parse_addr);
    let addr = addr.unwrap_or("an address of this host");
    let socket = at.and_then(S::bind);
    let socket = socket.map_err(|e| Error::Usage(format!("cannot listen on {addr}: {e}")))?;
    let addr = socket.address().map_err(Error::io("cannot tell the address"))?;
    output::print(&format!("{GREETING}{addr}\n"))?;
    let mut counted = Counted::default();
    if args.batch == 1 {
        let mut buf = vec![0; MAX_SIZE];
        loop {
            let (len, from) = socket.recv(&mut buf).map_err(Error::io("cannot receive"))?;
            counted.take(&socket, &buf[..len], from);
        }
    }
    let mut batch = Batch::new(args.batch.into(), args.size);
    loop {
        socket.recv_batch(&mut batch).map_err(Error::io("cannot receive"))?;
        batch.iter().for_each(|(bytes, from)| counted.take(&socket, bytes, from));
    }
}

/// What a server has received of [`COUNT`].
#[derive(Default)]
struct Counted {
    n: u64,
    /// When the first came, and when about the last.
    times: Option<(Instant, Instant)>,
}

impl Counted {
    #[inline]
    fn take<S: Socket>(&mut self, socket: &S, bytes: &[u8], from: SocketAddr) {
        match bytes.first() {
            // A client that is gone, or has no room, is its own affair.
            Some(&ECHO) => {
                // A measurement begins with round trips.
                self.times = None;
                let _ = socket.send(bytes, from);
            }
            Some(&COUNT) => {
                self.n += 1;
                // Reading the clock each time would be what is measured.
                if self.times.is_none() || self.n.is_multiple_of(16) {
                    let now = Instant::now();
                    self.times.get_or_insert((now, now)).1 = now;
                }
            }
            Some(op) if TELL.contains(op) => {
                let took = self.times.map_or(Duration::ZERO, |(first, last)| last - first);
                let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                let words = [self.n.to_le_bytes(), nanos.to_le_bytes()].concat();
                let answer = [&[*op][..], &words].concat();
                let _ = socket.send(&answer, from);
            }
            _ => {}
        }
    }
}

fn measure<S: Socket>(addr: &str, args: &Args) -> io::Result<DatagramReport> {
    let Args { size, time, batch, .. } = *args;
    let to = parse_addr(addr)?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = S::bind(parse_addr(any)?)?;
    socket.set_limit(PATIENCE)?;
    let mut latency = new_histogram();
    let start = Instant::now();
    loop {
        trips(&socket, to, size, time / 10, &mut new_histogram())?;
        if socket.settled_len(to).is_some() || start.elapsed() > SETTLE_LIMIT {
            break;
        }
    }
    if S::NAME == OverRdma::NAME && socket.settled_len(to).is_none() {
        let why = "no RDMA device of both hosts leads from one to the other";
        return Err(io::Error::new(io::ErrorKind::NotConnected, why));
    }
    let start = Instant::now();
    while latency.is_empty() {
        // On a busy machine an answer may come later than anybody waits.
        trips(&socket, to, size, time, &mut latency)?;
        if start.elapsed() > SETTLE_LIMIT {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }

    let (before, known_before) = (ask(&socket, to, size, TELL[0])?.0, socket.lost_in_sending());
    let counted_before = S::host_counters();
    let sent = match batch {
        1 => flood(&socket, to, size, time)?,
        _ => flood_in_batches(&socket, to, size, time, batch.into())?,
    };
    // Before the question, which may be lost as well.
    let known = change(&known_before, socket.lost_in_sending()).values().sum();
    let (after, took) = ask(&socket, to, size, TELL[1])?;
    let received = after - before;
    let per_second = received as f64 / took.as_secs_f64().max(1e-9);
    Ok(DatagramReport {
        test: "dgram".to_owned(),
        device: S::NAME.to_owned(),
        size,
        batch,
        seconds: time.as_secs_f64(),
        round_trips_per_second: latency.len() as f64 / time.as_secs_f64(),
        latency_us: Latency::new(&latency),
        sent,
        received,
        lost: sent.saturating_sub(received),
        counted: S::SENDER_KNOWS.then_some(known),
        device_counters: change(&counted_before, S::host_counters()),
        received_per_second: per_second,
        gbit_per_second: per_second * size as f64 * 8.0 / 1e9,
    })
}

/// Round trips for `time`; one that is lost is not counted.
fn trips<S: Socket>(
    socket: &S,
    to: SocketAddr,
    size: usize,
    time: Duration,
    latency: &mut hdrhistogram::Histogram<u64>,
) -> io::Result<()> {
    let (mut message, mut buf) = (vec![ECHO; size], vec![0; size]);
    let start = Instant::now();
    let mut now = start;
    let mut turn = 0u8;
    while now - start < time {
        turn = turn.wrapping_add(1);
        if let Some(last) = message.get_mut(1..).and_then(<[u8]>::last_mut) {
            *last = turn;
        }
        socket.send(&message, to)?;
        let answered = loop {
            match socket.recv(&mut buf) {
                Ok((len, _)) if buf[..len] == message[..] => break true,
                // A late answer to an earlier one.
                Ok(_) => {}
                Err(e) if is_timeout(&e) => break false,
                Err(e) => return Err(e),
            }
        };
        let then = std::mem::replace(&mut now, Instant::now());
        if answered {
            record(latency, now - then);
        }
    }
    Ok(())
}

/// Sends for `time`; how many.
fn flood<S: Socket>(socket: &S, to: SocketAddr, size: usize, time: Duration) -> io::Result<u64> {
    const PER_LOOK: u64 = 64;
    let message = vec![COUNT; size];
    let (start, mut n) = (Instant::now(), 0);
    while start.elapsed() < time {
        for _ in 0..PER_LOOK {
            socket.send(&message, to)?;
        }
        n += PER_LOOK;
    }
    Ok(n)
}

/// The same, so many in a call.
fn flood_in_batches<S: Socket>(
    socket: &S,
    to: SocketAddr,
    size: usize,
    time: Duration,
    n_each: usize,
) -> io::Result<u64> {
    const PER_LOOK: usize = 64;
    let message = vec![COUNT; size];
    let batch = vec![IoSlice::new(&message); n_each];
    let calls = PER_LOOK.div_ceil(n_each);
    let (start, mut n) = (Instant::now(), 0);
    while start.elapsed() < time {
        for _ in 0..calls {
            n += socket.send_batch(&batch, to)? as u64;
        }
    }
    Ok(n)
}

/// How many the server has counted so far, and within what time. The question is as long as what was
/// sent before, so it goes the same way and comes behind; if it is lost it is asked again.
fn ask<S: Socket>(
    socket: &S,
    to: SocketAddr,
    size: usize,
    tell: u8,
) -> io::Result<(u64, Duration)> {
    const TRIES: u32 = 50;
    let question = vec![tell; size];
    let mut buf = [0; ANSWER_LEN];
    for _ in 0..TRIES {
        socket.send(&question, to)?;
        loop {
            match socket.recv(&mut buf) {
                Ok((ANSWER_LEN, _)) if buf[0] == tell => {
                    let word = |at: usize| {
                        let mut bytes = [0; 8];
                        bytes.copy_from_slice(&buf[at..at + 8]);
                        u64::from_le_bytes(bytes)
                    };
                    return Ok((word(1), Duration::from_nanos(word(9))));
                }
                // A late answer to something else.
                Ok(_) => {}
                Err(e) if is_timeout(&e) => break,
                Err(e) => return Err(e),
            }
        }
    }
    Err(io::ErrorKind::TimedOut.into())
}

impl fmt::Display for DatagramReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, device, size, batch, seconds, .. } = self;
        write!(f, "{test} over {device}, {size} B, {seconds:.2} s each")?;
        match batch {
            1 => writeln!(f)?,
            n => writeln!(f, ", one way in batches of {n}")?,
        }
        writeln!(f, "  trips     {:>12.0} /s", self.round_trips_per_second)?;
        for (name, us) in self.latency_us.named() {
            writeln!(f, "  {name:<9} {us:>12.2} us")?;
        }
        writeln!(f, "  sent      {:>12}", self.sent)?;
        writeln!(f, "  received  {:>12}", self.received)?;
        write!(f, "  lost      {:>12}", self.lost)?;
        match self.counted {
            Some(counted) => writeln!(f, ", {counted} of them counted")?,
            None => writeln!(f)?,
        }
        writeln!(f, "  rate      {:>12.0} /s received", self.received_per_second)?;
        writeln!(f, "  bandwidth {:>12.3} Gbit/s", self.gbit_per_second)?;
        for (name, n) in &self.device_counters {
            writeln!(f, "  {name:<36} {n:>12}")?;
        }
        Ok(())
    }
}
