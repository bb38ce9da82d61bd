//! One sample of one side: starts the programs, waits for their figure and parses it.

mod service;

use crate::bench::Bench;
use crate::case::{BATCH, Calls, Case, Netperf, Side, Unit, Work};
use crate::collected::Collected;
use crate::programs::{iperf, netperf, perftest, rstream, services};
use crate::server::Server;
use crate::{hold, limit, moved, process};
use rsock_cli::child::{Child, pause};
use rsock_cli::error::Error;
use rsock_cli::library;
use rsock_cli::perf::latency::Latency;
use rsock_cli::perf::{self, DatagramReport, ends};
use service::AtRest;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A sample.
pub(crate) struct Measured {
    /// The figure, in the unit of the row.
    pub(crate) value: f64,
    /// Part of the bytes that did not use kernel TCP; `None` if nothing counted them.
    pub(crate) fast_share: Option<f64>,
    /// Percentiles, if round trips were timed one by one.
    pub(crate) latency_us: Option<Latency>,
}

impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Self { value, fast_share: None, latency_us: None }
    }
}

/// Starts the servers of a sample, if they are started apart from its clients.
pub(crate) fn start_servers(bench: &Bench, case: &Case, side: Side) -> Result<Vec<Server>, Error> {
    if side == Side::Limit {
        return Ok(Vec::new());
    }
    let side = side.at_server();
    match (case.work, &bench.programs.netserver, &bench.programs.iperf3) {
        (Work::Netperf { n_pairs, .. }, Some(netserver), _) => {
            (0..n_pairs).map(|_| netperf::start_server(bench, netserver, case, side)).collect()
        }
        (Work::RstreamRr, _, _) => {
            let rstream = bench.programs.rstream.as_ref().ok_or_else(|| absent("rstream"))?;
            let volume = rstream::Volume::ROUND_TRIPS;
            Ok(vec![rstream::start_server(bench, rstream, case, side, volume)?])
        }
        (Work::Service(service), ..) => services::start_servers(bench, case, side, service),
        (Work::CpuPerRequest, ..) => Ok(vec![services::start_redis(bench, case, side)?]),
        (Work::IdleInEpoll(_) | Work::MemoryInEpoll(_) | Work::SetUp(_), ..) => {
            Ok(vec![services::start_epoll_server(bench, case, side)?])
        }
        (Work::Iperf(_), _, Some(iperf3)) => {
            Ok(vec![iperf::start_server(bench, iperf3, case, side)?])
        }
        _ => Ok(Vec::new()),
    }
}

/// Why a row cannot be measured here.
pub(crate) fn obstacle(bench: &Bench, case: &Case) -> Option<String> {
    match case.work {
        Work::Service(service) => services::lacks(bench, service),
        Work::MemoryInEpoll(streams) | Work::SetUp(streams) => {
            hold::lacks_descriptors(streams.into())
        }
        _ => bench.lacks(case).map(|missing| format!("{missing} was not found")),
    }
}

/// Takes one sample.
pub(crate) fn measure(
    bench: &Bench,
    case: &Case,
    side: Side,
    servers: &[Server],
) -> Result<Measured, Error> {
    if side == Side::Limit {
        return limit_of(bench, case);
    }
    match case.work {
        Work::Netperf { test, .. } => {
            let Some(program) = &bench.programs.netperf else { return Err(absent("netperf")) };
            let start = |server: &Server| {
                netperf::start_client(bench, program, case, side, test, server.port)
            };
            let clients = servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            let time = bench.time_of(case);
            let measured = finish_all(bench, time, clients, |output| netperf::parse(output, test))?;
            if case.is_on_device() && !case.calls_rsockets(side) {
                on_device(measured.fast_share)?;
            }
            Ok(measured)
        }
        Work::Iperf(options) => {
            let Some(program) = &bench.programs.iperf3 else { return Err(absent("iperf3")) };
            let start = |server: &Server| {
                iperf::start_client(bench, program, case, side, options, server.port)
            };
            let clients = servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            finish_all(bench, bench.time, clients, iperf::parse)
        }
        Work::Service(service) => {
            let measured = service::rate(bench, case, side, service, servers);
            servers.iter().for_each(|server| services::remove_files(server.port));
            measured
        }
        Work::CpuPerRequest => service::cpu_per_request(bench, case, side, servers),
        Work::IdleInEpoll(streams) => {
            let switches = |ends: &AtRest| switches_per_second(&ends.pids);
            service::at_rest(bench, case, side, streams, servers, switches)
        }
        Work::MemoryInEpoll(streams) => {
            let memory =
                |ends: &AtRest| Ok(process::memory(&ends.pids)? as f64 / f64::from(streams));
            service::at_rest(bench, case, side, streams, servers, memory)
        }
        Work::SetUp(streams) => {
            service::at_rest(bench, case, side, streams, servers, |ends| Ok(ends.set_up_per_second))
        }
        Work::RstreamRr => {
            let Some(program) = &bench.programs.rstream else { return Err(absent("rstream")) };
            let volume = rstream::Volume::ROUND_TRIPS;
            let start =
                |s: &Server| rstream::start_client(bench, program, case, side, volume, s.port);
            let clients = servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            finish_all(bench, bench.time, clients, rstream::parse)
        }
        Work::RstreamCpu(size) => {
            let Some(program) = &bench.programs.rstream else { return Err(absent("rstream")) };
            Ok(rstream::user_cpu(bench, program, case, side, size)?.into())
        }
        Work::PerfRr => perf_run(bench, case, side, "rr", 1),
        Work::PerfStream(size) => perf_run(bench, case, side, "stream", size),
        Work::PerfConnect => perf_run(bench, case, side, "connect", 100),
        Work::DatagramRr(size) => {
            dgram_run(bench, side, size, Calls::Single, |report| report.round_trips_per_second)
        }
        Work::DatagramTail(size) => dgram_run(bench, side, size, Calls::Single, |report| {
            report.latency_us.p99 / report.latency_us.p50.max(f64::MIN_POSITIVE)
        }),
        Work::DatagramStream { size, kernel, rsock } => {
            let calls = if side == Side::Kernel { kernel } else { rsock };
            dgram_run(bench, side, size, calls, |report| report.received_per_second)
        }
        Work::Memory => {
            held(bench, case, side, 1000, |pids| Ok(process::memory(pids)? as f64 / 1000.0))
        }
        Work::Idle => held(bench, case, side, 100, switches_per_second),
        Work::Cpu(rate) => cpu_at_rate(bench, case, side, rate),
        Work::Quotient(..) | Work::Memcpy(_) | Work::VerbsSendRr => {
            Err(Error::Failed("this row runs nothing".into()))
        }
    }
}

/// Measures what the machine or the device could do without a protocol.
fn limit_of(bench: &Bench, case: &Case) -> Result<Measured, Error> {
    let bandwidth = |size| {
        limit::two_copy_bandwidth(bench.cpus, size).map_err(Error::io("cannot measure the limit"))
    };
    let programs = &bench.programs;
    match (case.work, &programs.ib_write_lat, &programs.ib_write_bw) {
        (Work::Memcpy(size), ..) => return Ok(limit::memcpy_bandwidth(size).into()),
        (Work::VerbsSendRr, ..) => {
            let program = programs.ib_send_lat.as_ref().ok_or_else(|| absent("ib_send_lat"))?;
            return Ok(perftest::round_trips(bench, program, case, "ib_send_lat")?.into());
        }
        (Work::Netperf { test: Netperf::Stream(size), .. }, _, Some(program))
            if case.is_on_device() =>
        {
            return Ok(perftest::bandwidth(bench, program, case, size)?.into());
        }
        (_, Some(program), _) if case.is_on_device() => {
            return Ok(perftest::round_trips(bench, program, case, "ib_write_lat")?.into());
        }
        _ => {}
    }
    match (case.work, case.unit) {
        (Work::Netperf { test: Netperf::Stream(size), .. }, _) => Ok(bandwidth(size)?.into()),
        (Work::Netperf { test: Netperf::Rr | Netperf::UdpRr, .. }, _) => {
            Ok((1.0 / limit::line_round_trip(bench.cpus).as_secs_f64()).into())
        }
        (_, Unit::Microseconds) => {
            Ok((limit::line_round_trip(bench.cpus).as_secs_f64() * 1e6).into())
        }
        _ => Err(Error::Failed("no limit is known".into())),
    }
}

/// Context switches of processes that rest.
fn switches_per_second(pids: &[u32]) -> Result<f64, Error> {
    const WATCHED: Duration = Duration::from_secs(3);
    let before = process::switches(pids)?;
    pause(WATCHED);
    let after = process::switches(pids)?;
    Ok(after.saturating_sub(before) as f64 / WATCHED.as_secs_f64())
}

/// Reads the counters of the first client after half of `time`, then adds up the figures of all
/// clients.
fn finish_all(
    bench: &Bench,
    time: Duration,
    mut clients: Vec<Collected>,
    mut parse: impl FnMut(&str) -> Result<f64, Error>,
) -> Result<Measured, Error> {
    let deadline = bench.deadline(time);
    let mut fast_share = None;
    if let Some(first) = clients.first_mut()
        && !first.has_ended_by(Instant::now() + time / 2)?
    {
        fast_share = moved::share(first.pid());
    }
    let mut value = 0.0;
    for client in clients {
        value += parse(&client.finish(deadline)?)?;
    }
    Ok(Measured { fast_share, ..value.into() })
}

/// An error if less than half of a sample's bytes were on the device: it is of kernel TCP then.
fn on_device(fast_share: Option<f64>) -> Result<(), Error> {
    match fast_share {
        Some(share) if share >= 0.5 => Ok(()),
        Some(_) => Err(Error::Failed("the stream stayed on kernel TCP".into())),
        None => Err(Error::Failed("the client's table shows no stream".into())),
    }
}

/// Runs `rsock perf` with a server of its own.
fn perf_run(
    bench: &Bench,
    case: &Case,
    side: Side,
    test: &str,
    size: usize,
) -> Result<Measured, Error> {
    let (size, seconds) = (size.to_string(), bench.time.as_secs().to_string());
    let args = ["perf", test, "--json", "--size", &size, "--time", &seconds];
    let mut command = bench.own_command(&args);
    command.args(["--device", perf_device(side)]);
    if let Some([client, server]) = bench.binding(case.place) {
        command.args(["--cpu", &format!("{client},{server}")]);
    }
    bench.set_environment(&mut command, case, side);
    let client = Collected::spawn("rsock perf", command)?;
    let mut latency_us = None;
    let measured = finish_all(bench, bench.time, vec![client], |output| {
        let report: perf::Report = serde_json::from_str(output)
            .map_err(|e| Error::Failed(format!("rsock perf printed no report: {e}")))?;
        latency_us = report.latency_us;
        perf_value(&report, case.unit)
    })?;
    Ok(Measured { latency_us, ..measured })
}

/// Runs `rsock perf dgram` with a server of its own.
fn dgram_run(
    bench: &Bench,
    side: Side,
    size: usize,
    calls: Calls,
    value: impl Fn(&DatagramReport) -> f64,
) -> Result<Measured, Error> {
    // Round trips and one direction take half of the time each.
    let seconds = (bench.time / 2).as_secs_f64().to_string();
    let batch = match calls {
        Calls::Single => 1,
        Calls::Batches => BATCH,
    };
    let (size, batch) = (size.to_string(), batch.to_string());
    let args = ["perf", "dgram", "--json", "--size", &size, "--batch", &batch, "--time", &seconds];
    let mut command = bench.own_command(&args);
    command.args(["--device", if side == Side::Kernel { "udp" } else { "soft" }]);
    command.env_remove(library::PRELOAD_ENV);
    let client = Collected::spawn("rsock perf", command)?;
    let mut latency_us = None;
    let measured = finish_all(bench, bench.time, vec![client], |output| {
        let report: DatagramReport = serde_json::from_str(output)
            .map_err(|e| Error::Failed(format!("rsock perf printed no report: {e}")))?;
        latency_us = Some(report.latency_us);
        Ok(value(&report))
    })?;
    Ok(Measured { fast_share: None, latency_us, ..measured })
}

fn perf_device(side: Side) -> &'static str {
    match side {
        Side::Unix => "unix",
        Side::Rsock => "rsock",
        _ => "tcp",
    }
}

fn perf_value(report: &perf::Report, unit: Unit) -> Result<f64, Error> {
    let value = match unit {
        Unit::Microseconds => report.latency_us.map(|latency| latency.p50),
        Unit::GbitPerSecond => report.gbit_per_second,
        _ => report.per_second,
    };
    value.ok_or_else(|| Error::Failed("rsock perf did not measure what the row needs".into()))
}

/// Opens streams that carry 1 MiB each, lets them rest, and applies `look` to both processes.
fn held(
    bench: &Bench,
    case: &Case,
    side: Side,
    n_streams: u32,
    look: impl FnOnce(&[u32]) -> Result<f64, Error>,
) -> Result<Measured, Error> {
    const REST: Duration = Duration::from_secs(1);
    let n = n_streams.to_string();
    let (server, addr) = own_server(bench, case, side, &["hold", "--streams", &n])?;
    let mut command = bench.own_command(&["hold", "--streams", &n, "--connect", &addr]);
    // The client reports its failures on the standard error of this process.
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    bench.set_environment(&mut command, case, side);
    let mut client = Child::spawn("rsock compare hold", command)?;
    // The client stays until this end of its input is closed.
    let _input = client.take_stdin();
    let line = client.read_line(bench.deadline(Duration::ZERO) + HOLD_LIMIT)?;
    if line != hold::READY {
        return Err(Error::Failed("rsock compare hold could not open its streams".into()));
    }
    pause(REST);
    let value = look(&[client.pid(), server.pid()])?;
    Ok(Measured { fast_share: moved::share(client.pid()), ..value.into() })
}

/// Measures the CPU time of both ends over a few seconds of `rate` requests per second.
fn cpu_at_rate(bench: &Bench, case: &Case, side: Side, rate: u32) -> Result<Measured, Error> {
    const SETTLING: Duration = Duration::from_millis(500);
    const WATCHED: Duration = Duration::from_secs(2);
    let (server, addr) =
        own_server(bench, case, side, &["perf", "rr", "--server", "--device", "tcp"])?;
    // Longer than the time for which its CPU time is watched.
    let rate = rate.to_string();
    let args = ["perf", "rr", "--device", "tcp", "--rate", &rate, "--time", "3.5"];
    let mut command = bench.own_command(&args);
    command.args(["--connect", &addr]);
    bench.set_environment(&mut command, case, side);
    let mut client = Collected::spawn("rsock perf", command)?;
    let pids = [client.pid(), server.pid()];
    pause(SETTLING);
    let (start, before) = (Instant::now(), process::cpu_time(&pids)?);
    pause(WATCHED);
    let (after, took) = (process::cpu_time(&pids)?, start.elapsed());
    let fast_share = moved::share(client.pid());
    if client.has_ended_by(Instant::now())? {
        client.finish(Instant::now())?;
        return Err(Error::Failed("rsock perf ended too soon".into()));
    }
    let used = after.saturating_sub(before).as_secs_f64() * 1e3;
    Ok(Measured { fast_share, ..Measured::from(used / took.as_secs_f64()) })
}

/// Starts this program as a server, and returns it with its address.
fn own_server(
    bench: &Bench,
    case: &Case,
    side: Side,
    args: &[&str],
) -> Result<(Child, String), Error> {
    let mut command = bench.own_command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    bench.set_environment(&mut command, case, side);
    let mut server = Child::spawn("rsock perf", command)?;
    let addr = ends::read_address(&mut server)?;
    Ok((server, addr))
}

fn absent(program: &str) -> Error {
    Error::Failed(format!("{program} was not found"))
}

/// Time enough for a thousand streams and a thousand MiB on a slow machine.
const HOLD_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_that_stayed_on_tcp_is_none_of_the_device() {
        assert!(on_device(Some(0.99)).is_ok());
        let reason = |share| on_device(share).unwrap_err().to_string();
        assert!(reason(Some(0.01)).contains("stayed on kernel TCP"));
        assert!(reason(None).contains("shows no stream"));
    }
}
