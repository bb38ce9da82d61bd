//! Samples of rows about services. Over rsock, a sample in which the connections stay on TCP has
//! failed, unless they are too short to leave it.

use super::{Measured, absent};
use crate::bench::Bench;
use crate::case::{Case, PACED_RATE, Service, Side};
use crate::collected::Collected;
use crate::ends::RATE;
use crate::programs::services;
use crate::server::Server;
use crate::{moved, process};
use rsock_cli::child::{Child, pause};
use rsock_cli::error::Error;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Measures requests per second.
pub(super) fn rate(
    bench: &Bench,
    case: &Case,
    side: Side,
    service: Service,
    servers: &[Server],
) -> Result<Measured, Error> {
    let front = servers.first().ok_or_else(|| absent("the service"))?;
    let start = Instant::now();
    let mut client = services::start_client(bench, case, side.at_client(), service, front.port)?;
    let is_accelerated = side == Side::Rsock && service.leaves_tcp();
    let fast_share = if is_accelerated { watch(bench, &mut client)? } else { None };
    let output = client.finish(bench.deadline(bench.time))?;
    let value = services::parse(&output, service, start.elapsed())?;
    if is_accelerated {
        check_share(fast_share)?;
    }
    Ok(Measured { fast_share, ..value.into() })
}

/// Reads the counters of a client until half of a sample is over and it has a connection: some
/// clients take long to start, others end early.
fn watch(bench: &Bench, client: &mut Collected) -> Result<Option<f64>, Error> {
    let (start, step) = (Instant::now(), bench.time / 8);
    let mut share = None;
    while !client.has_ended_by(Instant::now() + step)? {
        share = moved::share(client.pid()).or(share);
        let is_half_over = start.elapsed() >= bench.time / 2;
        let is_late = start.elapsed() >= bench.time * 8;
        if is_late || (is_half_over && share.is_some_and(|share| share >= MOVED)) {
            break;
        }
    }
    Ok(share)
}

/// Part of the bytes past TCP of a client whose connections have left TCP. Each begins there.
const MOVED: f64 = 0.5;

fn check_share(share: Option<f64>) -> Result<(), Error> {
    match share {
        Some(share) if share >= MOVED => Ok(()),
        Some(share) => {
            let percent = share * 100.0;
            Err(Error::Failed(format!("only {percent:.0} % of the bytes left kernel TCP")))
        }
        None => Err(Error::Failed("no connection of the library was seen".to_owned())),
    }
}

/// Measures the CPU time of redis and of a client that keeps a pace, for each request.
pub(super) fn cpu_per_request(
    bench: &Bench,
    case: &Case,
    side: Side,
    servers: &[Server],
) -> Result<Measured, Error> {
    const SETTLING: Duration = Duration::from_millis(500);
    const WATCHED: Duration = Duration::from_secs(2);
    /// Longer than both.
    const TIME: Duration = Duration::from_secs(4);
    let server = servers.first().ok_or_else(|| absent("redis-server"))?;
    let mut client = services::start_paced_client(bench, case, side, TIME, server.port)?;
    let pids = [client.pid(), server.pid()];
    pause(SETTLING);
    let (start, before) = (Instant::now(), process::cpu_time(&pids)?);
    pause(WATCHED);
    let (after, took) = (process::cpu_time(&pids)?, start.elapsed());
    let fast_share = moved::share(client.pid());
    // Fails if an answer was wrong, or if the client did not keep its pace.
    let has_ended = client.has_ended_by(Instant::now())?;
    client.finish(bench.deadline(TIME))?;
    if has_ended {
        return Err(Error::Failed("the client ended too soon".into()));
    }
    if side == Side::Rsock {
        check_share(fast_share)?;
    }
    let used = after.saturating_sub(before).as_secs_f64() * 1e6;
    let requests = f64::from(PACED_RATE) * took.as_secs_f64();
    Ok(Measured { fast_share, ..Measured::from(used / requests) })
}

/// Two ends whose streams rest in epoll sets.
pub(super) struct AtRest {
    /// The client and the server.
    pub(super) pids: [u32; 2],
    /// How many streams the client has set up and used, in a second.
    pub(super) set_up_per_second: f64,
}

/// Opens streams that carry a few messages, lets them rest in epoll sets, and applies `look` to
/// both ends.
pub(super) fn at_rest(
    bench: &Bench,
    case: &Case,
    side: Side,
    streams: u16,
    servers: &[Server],
    look: impl FnOnce(&AtRest) -> Result<f64, Error>,
) -> Result<Measured, Error> {
    const START_LIMIT: Duration = Duration::from_secs(40);
    const REST: Duration = Duration::from_secs(1);
    let server = servers.first().ok_or_else(|| absent("the server"))?;
    let args =
        ["end", "epoll-client", "--hold", "--idle", &streams.to_string(), &server.port.to_string()];
    let mut command = bench.own_command(&args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    bench.set_environment(&mut command, case, side);
    let mut client = Child::spawn("the client", command)?;
    // The client stays until this end of its input is closed.
    let _input = client.take_stdin();
    let limit = Instant::now() + START_LIMIT;
    let rate = client.read_line(limit)?;
    let set_up_per_second = rate.strip_prefix(RATE).and_then(|rate| rate.parse().ok());
    if client.read_line(limit)? != crate::hold::READY {
        return Err(Error::Failed("the client could not open its streams".into()));
    }
    let set_up_per_second =
        set_up_per_second.ok_or_else(|| Error::Failed(format!("no rate: {rate}")))?;
    pause(REST);
    let pids = [client.pid(), server.pid()];
    let value = look(&AtRest { pids, set_up_per_second })?;
    if side == Side::Rsock && moved::have_all_moved(client.pid(), streams.into()) != Some(true) {
        let moved = moved::n_connections(client.pid()).unwrap_or(0);
        let why = pids.map(moved::why_on_tcp);
        let why = format!("client: {}; server: {}", why[0], why[1]);
        let failure = format!("only {moved} of {streams} streams left kernel TCP; {why}");
        return Err(Error::Failed(failure));
    }
    // The part of the bytes says little: each stream had only a few, and the first of them on TCP.
    Ok(value.into())
}
