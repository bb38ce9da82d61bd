//! `rsock perf dgram`: round trips and one-way rate of datagrams, and what became of each.
//!
//! The first byte of a datagram says what the server does with it: answer, count, or tell the count.
//! Nobody retries anything but that question, so what is missing was lost.

use super::client::{new_histogram, record};
use super::report::Latency;
use super::server::GREETING;
use super::{bind_cpu, parse_seconds, parse_size, read_address};
use crate::child::Child;
use crate::error::Error;
use crate::fabric;
use crate::output;
use clap::ValueEnum;
use rsock_core::dgram::Datagram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What to measure, and how.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Args {
    /// What to measure
    #[arg(long, value_enum, default_value_t = Kind::Soft)]
    device: Kind,
    /// Bytes of a datagram
    #[arg(long, default_value = "64", value_parser = parse_size)]
    size: usize,
    /// How long to measure each of the two, in seconds
    #[arg(long, default_value = "2", value_parser = parse_seconds, allow_negative_numbers = true)]
    time: Duration,
    /// Be the server until killed
    #[arg(long, value_name = "ADDR", num_args = 0..=1, conflicts_with = "connect")]
    server: Option<Option<String>>,
    /// Use the server at this address
    #[arg(long, value_name = "ADDR")]
    connect: Option<String>,
    /// Run client and server on these CPUs
    #[arg(long, value_name = "CPU[,CPU]", value_delimiter = ',')]
    cpu: Vec<usize>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    /// rsock's datagram sockets: UDP first, then shared memory
    Soft,
    /// The same, then an RDMA device, also on this host
    Rdma,
    /// Kernel UDP
    Udp,
}

/// The result.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Report {
    test: String,
    device: String,
    /// Bytes of a datagram.
    size: usize,
    /// Of each of the two measurements.
    seconds: f64,
    round_trips_per_second: f64,
    latency_us: Latency,
    /// One way.
    sent: u64,
    received: u64,
    lost: u64,
    /// Of the lost ones, those that the sender knows of; nothing where it cannot.
    counted: Option<u64>,
    /// What this host's RDMA devices counted meanwhile; nothing for other kinds.
    device_counters: BTreeMap<String, u64>,
    received_per_second: f64,
    gbit_per_second: f64,
}

/// A socket that sends and receives datagrams.
trait Socket: Sized {
    const NAME: &'static str;
    fn bind(addr: SocketAddr) -> io::Result<Self>;
    /// Where a server is that nobody gave an address.
    fn any_local() -> io::Result<SocketAddr> {
        Ok(SocketAddr::from(([127, 0, 0, 1], 0)))
    }
    fn address(&self) -> io::Result<SocketAddr>;
    fn set_limit(&self, limit: Duration) -> io::Result<()>;
    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()>;
    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)>;
    /// Whether datagrams to `to` go the way that they will keep.
    fn is_settled(&self, to: SocketAddr) -> bool;
    /// What the devices have counted so far.
    fn device_counters() -> BTreeMap<String, u64> {
        BTreeMap::new()
    }
    /// Datagrams that are known to be lost.
    fn known_lost(&self) -> Option<u64>;
}

impl Socket for UdpSocket {
    const NAME: &'static str = "udp";

    fn bind(addr: SocketAddr) -> io::Result<Self> {
        Self::bind(addr)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_read_timeout(Some(limit))
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send_to(bytes, to).map(drop)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_from(buf)
    }

    fn is_settled(&self, _to: SocketAddr) -> bool {
        true
    }

    fn known_lost(&self) -> Option<u64> {
        None
    }
}

impl Socket for Datagram {
    const NAME: &'static str = "soft";

    fn bind(addr: SocketAddr) -> io::Result<Self> {
        Self::bound(addr)
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.local_addr()
    }

    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.set_recv_timeout(Some(limit))
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        self.send_to(&[IoSlice::new(bytes)], Some(to), false).map(drop)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.recv_from(&mut [IoSliceMut::new(buf)], false, false)?;
        Ok((received.len, received.from))
    }

    fn is_settled(&self, to: SocketAddr) -> bool {
        self.max_past_udp(to).is_some()
    }

    fn known_lost(&self) -> Option<u64> {
        Some(self.counters().local.n_full)
    }
}

/// A datagram socket that talks over RDMA devices alone, and UDP; the process's environment says so.
struct OverRdma(Datagram);

impl Socket for OverRdma {
    const NAME: &'static str = "rdma";

    fn bind(addr: SocketAddr) -> io::Result<Self> {
        Datagram::bound(addr).map(Self)
    }

    fn any_local() -> io::Result<SocketAddr> {
        let devices = fabric::devices()?;
        let none = || io::Error::from_raw_os_error(libc::ENODEV);
        let (_, ip) = fabric::first_address(&devices).ok_or_else(none)?;
        Ok(SocketAddr::new(ip, 0))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        self.0.address()
    }

    fn set_limit(&self, limit: Duration) -> io::Result<()> {
        self.0.set_limit(limit)
    }

    fn send(&self, bytes: &[u8], to: SocketAddr) -> io::Result<()> {
        Socket::send(&self.0, bytes, to)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        Socket::recv(&self.0, buf)
    }

    fn is_settled(&self, to: SocketAddr) -> bool {
        Socket::is_settled(&self.0, to)
    }

    fn device_counters() -> BTreeMap<String, u64> {
        fabric::counters().unwrap_or_default()
    }

    /// A device does not tell a sender what is lost.
    fn known_lost(&self) -> Option<u64> {
        None
    }
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
    if args.cpu.len() > 2 {
        return Err(Error::Usage("--cpu takes at most two CPUs: client,server".into()));
    }
    if args.size > MAX_SIZE {
        return Err(Error::Usage(format!("--size of datagrams goes up to {MAX_SIZE}")));
    }
    match args.device {
        Kind::Soft => run_on::<Datagram>(args),
        Kind::Rdma => {
            super::choose_rdma()?;
            run_on::<OverRdma>(args)
        }
        Kind::Udp => run_on::<UdpSocket>(args),
    }
}

fn run_on<S: Socket>(args: &Args) -> Result<(), Error> {
    if let Some(addr) = &args.server {
        bind_cpu(args.cpu.last())?;
        return serve::<S>(addr.as_deref());
    }
    bind_cpu(args.cpu.first())?;
    let (_server, addr) = match &args.connect {
        Some(addr) => (None, addr.clone()),
        None => {
            let (server, addr) = spawn_server::<S>(args)?;
            (Some(server), addr)
        }
    };
    let report = measure::<S>(&addr, args.size, args.time);
    let report = report.map_err(Error::io(format!("{} to {addr} failed", S::NAME)))?;
    if args.json { output::print_json(&report) } else { output::print(&report.to_string()) }
}

fn spawn_server<S: Socket>(args: &Args) -> Result<(Child, String), Error> {
    let exe = std::env::current_exe().map_err(Error::io("cannot tell where this program is"))?;
    let mut command = Command::new(exe);
    command.args(["perf", "dgram", "--server", "--device", S::NAME]);
    if let Some(cpu) = args.cpu.last() {
        command.args(["--cpu", &cpu.to_string()]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut server = Child::spawn("the server", command)?;
    let addr = read_address(&mut server)?;
    Ok((server, addr))
}

fn parse_addr(addr: &str) -> io::Result<SocketAddr> {
    addr.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "no address"))
}

/// Serves until killed.
fn serve<S: Socket>(addr: Option<&str>) -> Result<(), Error> {
    let at = addr.map_or_else(S::any_local, parse_addr);
    let addr = addr.unwrap_or("an address of this host");
    let socket = at.and_then(S::bind);
    let socket = socket.map_err(|e| Error::Usage(format!("cannot listen on {addr}: {e}")))?;
    let addr = socket.address().map_err(Error::io("cannot tell the address"))?;
    output::print(&format!("{GREETING}{addr}\n"))?;
    let mut buf = vec![0; MAX_SIZE];
    let (mut n_counted, mut first, mut last) = (0u64, None, Instant::now());
    loop {
        let (len, from) = socket.recv(&mut buf).map_err(Error::io("cannot receive"))?;
        match buf[..len].first() {
            // A client that is gone, or has no room, is its own affair.
            Some(&ECHO) => {
                // A measurement begins with round trips.
                first = None;
                let _ = socket.send(&buf[..len], from);
            }
            Some(&COUNT) => {
                n_counted += 1;
                // Reading the clock each time would be what is measured.
                if first.is_none() || n_counted.is_multiple_of(16) {
                    last = Instant::now();
                    first.get_or_insert(last);
                }
            }
            Some(op) if TELL.contains(op) => {
                let op = *op;
                let took = first.map_or(Duration::ZERO, |first| last - first);
                let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
                let words = [n_counted.to_le_bytes(), nanos.to_le_bytes()].concat();
                let answer = [&[op][..], &words].concat();
                let _ = socket.send(&answer, from);
            }
            _ => {}
        }
    }
}

fn measure<S: Socket>(addr: &str, size: usize, time: Duration) -> io::Result<Report> {
    let to = parse_addr(addr)?;
    let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let socket = S::bind(parse_addr(any)?)?;
    socket.set_limit(PATIENCE)?;
    let mut latency = new_histogram();
    let start = Instant::now();
    loop {
        trips(&socket, to, size, time / 10, &mut new_histogram())?;
        if socket.is_settled(to) || start.elapsed() > SETTLE_LIMIT {
            break;
        }
    }
    if S::NAME == OverRdma::NAME && !socket.is_settled(to) {
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

    let (before, known_before) = (ask(&socket, to, size, TELL[0])?.0, socket.known_lost());
    let counted_before = S::device_counters();
    let sent = flood(&socket, to, size, time)?;
    // Before the question, which may be lost as well.
    let known_after = socket.known_lost();
    let (after, took) = ask(&socket, to, size, TELL[1])?;
    let received = after - before;
    let counted_after = S::device_counters().into_iter();
    let change = |(name, n): (String, u64)| {
        let change = n.saturating_sub(counted_before.get(&name).copied().unwrap_or(0));
        (change != 0).then_some((name, change))
    };
    let device_counters = counted_after.filter_map(change).collect();
    let known = known_after.zip(known_before).map(|(after, before)| after - before);
    let per_second = received as f64 / took.as_secs_f64().max(1e-9);
    Ok(Report {
        test: "dgram".to_owned(),
        device: S::NAME.to_owned(),
        size,
        seconds: time.as_secs_f64(),
        round_trips_per_second: latency.len() as f64 / time.as_secs_f64(),
        latency_us: Latency::new(&latency),
        sent,
        received,
        lost: sent.saturating_sub(received),
        counted: known,
        device_counters,
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

fn is_timeout(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { test, device, size, seconds, .. } = self;
        writeln!(f, "{test} over {device}, {size} B, {seconds:.2} s each")?;
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
