//! `rsock compare incast`: many clients send datagrams to one server, as fast as they can or as
//! fast as it grants, and every datagram is accounted for.
//!
//! Three kinds of processes: the one that was started (here), the server with its service threads
//! (`server.rs`), and a process for each client (`client.rs`). [`pacing`] is the flow control, a
//! value without clock or socket; [`wire`] has the messages, and `report.rs` the result.

mod client;
mod pacing;
mod report;
mod server;
mod wire;

use clap::ValueEnum;
use indicatif::{ProgressBar, ProgressStyle};
use report::{Report, Run};
use rsock_cli::child::{Child, pause};
use rsock_cli::error::Error;
use rsock_cli::perf::datagrams::{Kind, MAX_BATCH, Socket, Work};
use rsock_cli::perf::ends::{Ends, Role, own_command};
use rsock_cli::perf::{parse_seconds, parse_size};
use std::io::{self, BufReader};
use std::net::TcpStream;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};
use wire::{Message, Plan, Request, Response, Sent, Task};

/// The options of an incast.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// What to measure
    #[arg(long, value_enum, default_value_t = Kind::Soft)]
    device: Kind,
    /// Client processes
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(wire::MAX_CLIENTS)))]
    clients: u32,
    /// Service threads of the server, each with a socket; every client sends to all in turn
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(wire::MAX_THREADS)))]
    threads: u16,
    /// Bytes of a datagram's payload [default: 4096, over RDMA 1000]
    #[arg(long, visible_alias = "mtu", value_name = "BYTES", value_parser = parse_size)]
    size: Option<usize>,
    /// Datagrams that a client sends in one call
    #[arg(long, value_name = "N", default_value_t = 33,
        value_parser = clap::value_parser!(u16).range(1..=MAX_BATCH as i64))]
    depth: u16,
    /// Service threads read only the first bytes of each datagram
    #[arg(long)]
    no_copy: bool,
    /// Time that service threads rest after each batch, as 500us, 2ms or 0.1s
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    slow_reader: Duration,
    /// Clients send only as much as the server grants; `both` measures without and with
    #[arg(long, value_enum, value_name = "WHEN", num_args = 0..=1, require_equals = true,
        default_value_t = Pacing::No, default_missing_value = "yes")]
    pacing: Pacing,
    /// How long to send, in seconds
    #[arg(long, default_value = "2", value_parser = parse_seconds, allow_negative_numbers = true)]
    time: Duration,
    #[command(flatten)]
    ends: Ends,
    /// Be a client of a run
    #[arg(long, hide = true)]
    be_client: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pacing {
    No,
    Yes,
    Both,
}

pub(crate) fn run(args: &Args) -> Result<(), Error> {
    args.ends.check()?;
    let sizes = wire::HEADER_LEN..=wire::MAX_SIZE;
    if args.size.is_some_and(|size| !sizes.contains(&size)) {
        let (least, most) = (sizes.start(), sizes.end());
        return Err(Error::Usage(format!("--size of an incast goes from {least} to {most} bytes")));
    }
    args.device.run(args)
}

impl Work for &Args {
    fn run_on<S: Socket>(self) -> Result<(), Error> {
        if let Role::Server(addr) = self.ends.take_role()? {
            return server::serve::<S>(addr);
        }
        if self.be_client {
            return client::run::<S>();
        }
        let (_server, addr) = self.ends.server(end_command::<S>()?)?;
        self.ends.print(&measure::<S>(self, &addr)?)
    }
}

/// Returns a command that runs this program as an end of the same test.
fn end_command<S: Socket>() -> Result<Command, Error> {
    let mut command = own_command()?;
    command.args(["incast", "--device", S::NAME]);
    Ok(command)
}

fn measure<S: Socket>(args: &Args, addr: &str) -> Result<Report, Error> {
    let pacings: &[bool] = match args.pacing {
        Pacing::No => &[false],
        Pacing::Yes => &[true],
        Pacing::Both => &[false, true],
    };
    let mut plan = Plan {
        clients: args.clients,
        threads: args.threads,
        size: args.size.unwrap_or(S::USUAL_LEN),
        depth: args.depth,
        copy: !args.no_copy,
        rest: args.slow_reader,
        pacing: false,
    };
    let progress = progress(args.time * u32::try_from(pacings.len()).unwrap_or(1));
    let mut runs = Vec::new();
    for pacing in pacings {
        plan.pacing = *pacing;
        runs.push(run_once::<S>(args, &plan, addr, &progress)?);
    }
    progress.finish_and_clear();
    let goodput_ratio = match &runs[..] {
        [unpaced, paced] => {
            Some(paced.total.gib_per_second / unpaced.total.gib_per_second.max(1e-9))
        }
        _ => None,
    };
    Ok(Report {
        test: "incast",
        device: S::NAME,
        clients: plan.clients,
        threads: plan.threads,
        size: plan.size,
        depth: plan.depth,
        copy: plan.copy,
        slow_reader_seconds: plan.rest.as_secs_f64(),
        runs,
        goodput_ratio,
    })
}

/// Shows a bar on standard error, if that is a terminal.
fn progress(time: Duration) -> ProgressBar {
    let progress = ProgressBar::new(millis(time));
    let style = ProgressStyle::with_template("{bar:30} {eta:>4}  {msg}");
    progress.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// A client process.
struct Client {
    child: Child,
    input: ChildStdin,
}

impl Client {
    fn send(&mut self, message: &impl serde::Serialize) -> Result<(), Error> {
        wire::write(&mut self.input, message).map_err(Error::io("cannot send a client its task"))
    }

    /// Receives its next message.
    fn receive(&mut self, deadline: Instant) -> Result<Message, Error> {
        let line = self.child.read_line(deadline)?;
        match serde_json::from_str(&line) {
            Ok(Message::Failed(why)) => Err(Error::Failed(format!("a client failed: {why}"))),
            Ok(message) => Ok(message),
            Err(_) if line.is_empty() => Err(Error::Failed("a client sent nothing".into())),
            Err(_) => Err(Error::Failed(format!("a client sent: {line}"))),
        }
    }
}

/// How long clients may take beside the time that they measure, for instance to find their paths.
const OVERHEAD_LIMIT: Duration = Duration::from_secs(60);

fn run_once<S: Socket>(
    args: &Args,
    plan: &Plan,
    addr: &str,
    progress: &ProgressBar,
) -> Result<Run, Error> {
    let failed = || Error::io(format!("incast to {addr} failed"));
    let stream = TcpStream::connect(addr).map_err(failed())?;
    stream.set_read_timeout(Some(OVERHEAD_LIMIT)).map_err(failed())?;
    let mut answers = BufReader::new(&stream);
    let mut ask = |request: Request| -> Result<Response, Error> {
        wire::write(&mut &stream, &request).map_err(failed())?;
        match wire::read(&mut answers).map_err(failed())? {
            Some(Response::Failed(why)) => Err(Error::Failed(format!("the server failed: {why}"))),
            Some(answer) => Ok(answer),
            None => Err(failed()(io::ErrorKind::UnexpectedEof.into())),
        }
    };
    let Response::Listening(to) = ask(Request::Prepare(plan.clone()))? else {
        return Err(unexpected());
    };

    progress.set_message(if plan.pacing { "paced" } else { "unpaced" });
    let mut clients = Vec::new();
    for number in 0..plan.clients {
        let mut command = end_command::<S>()?;
        command.arg("--be-client").stdin(Stdio::piped()).stdout(Stdio::piped());
        args.ends.place_client(&mut command);
        let mut child = Child::spawn("a client", command)?;
        let input = child.take_stdin().ok_or_else(unexpected)?;
        let mut client = Client { child, input };
        let task = Task { number, plan: plan.clone(), time: args.time, to: to.clone() };
        client.send(&task)?;
        clients.push(client);
    }
    let deadline = Instant::now() + OVERHEAD_LIMIT;
    for client in &mut clients {
        let Message::Ready = client.receive(deadline)? else { return Err(unexpected()) };
    }
    let Response::Ready = ask(Request::Begin)? else { return Err(unexpected()) };
    clients.iter_mut().try_for_each(|client| client.send(&()))?;
    show(progress, args.time);
    let deadline = Instant::now() + OVERHEAD_LIMIT;
    let receive = |client: &mut Client| match client.receive(deadline)? {
        Message::Sent(sent) => Ok(sent),
        _ => Err(unexpected()),
    };
    let sent = clients.iter_mut().map(receive).collect::<Result<Vec<Sent>, Error>>()?;
    // The clients live until the server has taken all datagrams.
    let Response::Done(received) = ask(Request::End)? else { return Err(unexpected()) };
    Ok(Run::new::<S>(plan, sent, received))
}

/// Moves the bar while time passes.
fn show(progress: &ProgressBar, time: Duration) {
    const EVERY: Duration = Duration::from_millis(200);
    let (start, before) = (Instant::now(), progress.position());
    while let Some(left) = time.checked_sub(start.elapsed()) {
        pause(left.min(EVERY));
        progress.set_position(before + millis(start.elapsed().min(time)));
    }
}

/// The error about a response that does not belong to the request.
fn unexpected() -> Error {
    Error::Failed("the processes of the test do not understand each other".into())
}

/// Parses a number with its unit: us, ms or s.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let units = [("us", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let split = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let (number, scale) = split.ok_or("needs a unit: us, ms or s, as in 2ms")?;
    let number: f64 = number.parse().map_err(|_| "not a duration such as 500us or 2ms")?;
    let duration = Duration::try_from_secs_f64(number * scale).map_err(|e| e.to_string())?;
    if duration > wire::MAX_REST {
        return Err(format!("at most {} s", wire::MAX_REST.as_secs()));
    }
    Ok(duration)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit_and_an_end() {
        let good = ["500us", "2ms", "0.1s", "0s"].map(|text| parse_duration(text).unwrap());
        assert_eq!(good.map(|d| d.as_micros()), [500, 2000, 100_000, 0]);
        for bad in ["", "5", "ms", "-1ms", "nans", "11s", "infs", "1h"] {
            assert!(parse_duration(bad).is_err(), "{bad}");
        }
    }
}
