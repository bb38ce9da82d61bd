//! Runs the rows: sides in turn, orders rotating, the cache placement probed before each sample.

use super::bench::Bench;
use super::case::{BATCH, Case, Netperf, Side, Unit, Work};
use super::progress::Progress;
use super::result::{Row, Sample};
use super::server::Server;
use super::tools::LIBRSPRELOAD;
use super::{iperf, netperf, perftest, process, rstream};
use crate::child::{Child, Collected, pause};
use crate::error::Error;
use crate::library;
use crate::perf::{self, DatagramReport, Latency};
use crate::probe::{self, Placement};
use rsock_core::stat;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Runs `cases`, each side `runs` times, or as many times more as the case asks for.
pub(super) fn run(bench: &Bench, cases: &[Case], runs: u32) -> Vec<Row> {
    let n_samples = |case: &Case| case.sides.len() as u64 * u64::from(runs * case.n_times);
    let n_all = cases.iter().filter(|c| is_measured(c)).map(n_samples).sum();
    let mut progress = Progress::new(n_all, cases.len());
    let mut rows = Vec::with_capacity(cases.len());
    for group in cases.chunk_by(|a, b| are_compared(cases, a, b)) {
        let samples = samples_of(bench, group, runs, &progress);
        for (case, samples) in group.iter().zip(samples) {
            let row = match (case.work, missing(bench, case)) {
                (Work::Quotient(..), _) => Row::quotient(case, &rows),
                (_, Some(program)) => {
                    progress.advance(n_samples(case));
                    Row::not_run(case, &format!("{program} was not found"))
                }
                (_, None) => Row::measured(case, samples),
            };
            progress.end_row(&row);
            rows.push(row);
        }
    }
    rows
}

/// Whether one of `cases` is the quotient of these two.
fn are_compared(cases: &[Case], a: &Case, b: &Case) -> bool {
    let names = [a.id.as_str(), b.id.as_str()];
    cases.iter().any(|case| match case.work {
        Work::Quotient(above, below) => names == [above, below] || names == [below, above],
        _ => false,
    })
}

/// The samples of each of `cases`, which take turns: what the machine does meanwhile is the same for all.
fn samples_of(bench: &Bench, cases: &[Case], runs: u32, progress: &Progress) -> Vec<Vec<Sample>> {
    let n_runs = |case: &Case| match is_measured(case) && missing(bench, case).is_none() {
        true => runs * case.n_times,
        false => 0,
    };
    let mut samples: Vec<_> = cases.iter().map(|_| Vec::new()).collect();
    for run in 0..cases.iter().map(n_runs).max().unwrap_or(0) {
        let mut turns: Vec<_> = cases.iter().zip(&mut samples).collect();
        if run % 2 == 1 {
            turns.reverse();
        }
        for (case, samples) in turns {
            if run < n_runs(case) {
                samples.extend(round(bench, case, run, progress));
            }
        }
    }
    samples
}

fn is_measured(case: &Case) -> bool {
    !matches!(case.work, Work::Quotient(..))
}

/// The program without which this cannot be measured.
fn missing(bench: &Bench, case: &Case) -> Option<&'static str> {
    let tools = &bench.tools;
    if case.is_on_device() && !matches!(case.work, Work::Memcpy(_)) {
        let needed = [
            ("an RDMA device with an address", bench.device.is_some()),
            ("librsock.so", bench.c_library.is_some()),
            (LIBRSPRELOAD, tools.librspreload.is_some()),
            ("rdma", tools.rdma.is_some()),
            ("rstream", tools.rstream.is_some()),
            ("ib_write_lat", tools.ib_write_lat.is_some()),
            ("ib_write_bw", tools.ib_write_bw.is_some()),
        ];
        if let Some((name, _)) = needed.into_iter().find(|(_, is_there)| !is_there) {
            return Some(name);
        }
    }
    match case.work {
        Work::Netperf { .. } if tools.netperf.is_none() => Some("netperf"),
        Work::Netperf { .. } if tools.netserver.is_none() => Some("netserver"),
        Work::Iperf if tools.iperf3.is_none() => Some("iperf3"),
        _ => None,
    }
}

/// Each side once.
fn round(bench: &Bench, case: &Case, run: u32, progress: &Progress) -> Vec<Sample> {
    let n = case.sides.len();
    let turn = run as usize;
    // What starts first is not always what is measured first.
    let starting: Vec<_> = (0..n).map(|i| (i + turn) % n).collect();
    let measuring: Vec<_> = (0..n).map(|i| (i + turn + turn / n) % n).collect();
    let mut servers: Vec<_> = (0..n).map(|_| None).collect();
    for index in &starting {
        servers[*index] = Some(start_servers(bench, case, case.sides[*index]));
    }
    let position = |order: &[usize], index| order.iter().position(|i| *i == index).unwrap_or(0);
    let mut samples = Vec::with_capacity(n);
    for index in &measuring {
        let side = case.sides[*index];
        progress.begin(format!("{} ({side:?})", case.label.trim()));
        let line = probe::line_round_trip(bench.cpus);
        let started = servers[*index].take().unwrap_or_else(|| Ok(Vec::new()));
        let done = started.and_then(|servers| measure(bench, case, side, &servers));
        let (done, error) = match done {
            Ok(measured) => (Some(measured), None),
            Err(e) => (None, Some(e.to_string())),
        };
        samples.push(Sample {
            side,
            run,
            started_as: position(&starting, *index),
            measured_as: position(&measuring, *index),
            value: done.as_ref().map(|measured| measured.value),
            error,
            line_ns: u64::try_from(line.as_nanos()).unwrap_or(u64::MAX),
            placement: Placement::of(line),
            fast_share: done.as_ref().and_then(|measured| measured.fast_share),
            latency_us: done.and_then(|measured| measured.latency_us),
        });
        progress.advance(1);
    }
    samples
}

struct Measured {
    value: f64,
    fast_share: Option<f64>,
    latency_us: Option<Latency>,
}

impl From<f64> for Measured {
    fn from(value: f64) -> Self {
        Self { value, fast_share: None, latency_us: None }
    }
}

fn start_servers(bench: &Bench, case: &Case, side: Side) -> Result<Vec<Server>, Error> {
    if side == Side::Limit {
        return Ok(Vec::new());
    }
    match (case.work, &bench.tools.netserver, &bench.tools.iperf3) {
        (Work::Netperf { n_pairs, .. }, Some(netserver), _) => {
            (0..n_pairs).map(|_| netperf::start_server(bench, netserver, case, side)).collect()
        }
        (Work::RstreamRr, _, _) => {
            let rstream = bench.tools.rstream.as_ref().ok_or_else(|| absent("rstream"))?;
            let volume = rstream::Volume::ROUND_TRIPS;
            Ok(vec![rstream::start_server(bench, rstream, case, side, volume)?])
        }
        (Work::Iperf, _, Some(iperf3)) => Ok(vec![iperf::start_server(bench, iperf3, case, side)?]),
        _ => Ok(Vec::new()),
    }
}

fn measure(bench: &Bench, case: &Case, side: Side, servers: &[Server]) -> Result<Measured, Error> {
    if side == Side::Limit {
        return limit(bench, case);
    }
    match case.work {
        Work::Netperf { test, .. } => {
            let Some(program) = &bench.tools.netperf else { return Err(absent("netperf")) };
            let start = |server: &Server| {
                netperf::start_client(bench, program, case, side, test, server.port)
            };
            let clients = servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            finish_all(bench, clients, |output| netperf::parse(output, test))
        }
        Work::Iperf => {
            let Some(program) = &bench.tools.iperf3 else { return Err(absent("iperf3")) };
            let start =
                |server: &Server| iperf::start_client(bench, program, case, side, server.port);
            let clients = servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            finish_all(bench, clients, iperf::parse)
        }
        Work::RstreamRr => {
            let Some(program) = &bench.tools.rstream else { return Err(absent("rstream")) };
            let volume = rstream::Volume::ROUND_TRIPS;
            let start =
                |s: &Server| rstream::start_client(bench, program, case, side, volume, s.port);
            let clients = servers.iter().map(start).collect::<Result<Vec<_>, _>>()?;
            finish_all(bench, clients, rstream::parse)
        }
        Work::RstreamCpu(size) => {
            let Some(program) = &bench.tools.rstream else { return Err(absent("rstream")) };
            Ok(rstream::user_cpu(bench, program, case, side, size)?.into())
        }
        Work::PerfRr => perf_run(bench, case, side, "rr", 1),
        Work::PerfStream(size) => perf_run(bench, case, side, "stream", size),
        Work::PerfConnect => perf_run(bench, case, side, "connect", 100),
        Work::DatagramRr(size) => {
            dgram_run(bench, side, size, false, |report| report.round_trips_per_second)
        }
        Work::DatagramTail(size) => dgram_run(bench, side, size, false, |report| {
            report.latency_us.p99 / report.latency_us.p50.max(f64::MIN_POSITIVE)
        }),
        Work::DatagramStream { size, batches: [kernel, rsock] } => {
            let batches = if side == Side::Kernel { kernel } else { rsock };
            dgram_run(bench, side, size, batches, |report| report.received_per_second)
        }
        Work::Memory => {
            held(bench, case, side, 1000, |pids| Ok(process::memory(pids)? as f64 / 1000.0))
        }
        Work::Idle => held(bench, case, side, 100, |pids| {
            const WATCHED: Duration = Duration::from_secs(3);
            let before = process::switches(pids)?;
            pause(WATCHED);
            let after = process::switches(pids)?;
            Ok(after.saturating_sub(before) as f64 / WATCHED.as_secs_f64())
        }),
        Work::Cpu => cpu_at_rate(bench, case, side),
        Work::Quotient(..) | Work::Memcpy(_) => Err(Error::Failed("nothing to run".into())),
    }
}

fn limit(bench: &Bench, case: &Case) -> Result<Measured, Error> {
    let bandwidth = |size| {
        probe::two_copy_bandwidth(bench.cpus, size).map_err(Error::io("cannot probe the limit"))
    };
    let tools = &bench.tools;
    match (case.work, &tools.ib_write_lat, &tools.ib_write_bw) {
        (Work::Memcpy(size), ..) => return Ok(probe::memcpy_bandwidth(size).into()),
        (Work::Netperf { test: Netperf::Stream(size), .. }, _, Some(program))
            if case.is_on_device() =>
        {
            return Ok(perftest::bandwidth(bench, program, case, size)?.into());
        }
        (_, Some(program), _) if case.is_on_device() => {
            return Ok(perftest::round_trips(bench, program, case)?.into());
        }
        _ => {}
    }
    match (case.work, case.unit) {
        (Work::Netperf { test: Netperf::Stream(size), .. }, _) => Ok(bandwidth(size)?.into()),
        (_, Unit::Microseconds) => {
            Ok((probe::line_round_trip(bench.cpus).as_secs_f64() * 1e6).into())
        }
        _ => Err(Error::Failed("no limit is known".into())),
    }
}

/// Looks in on the first client half-way, then adds up what all of them print.
fn finish_all(
    bench: &Bench,
    mut clients: Vec<Collected>,
    mut parse: impl FnMut(&str) -> Result<f64, Error>,
) -> Result<Measured, Error> {
    let deadline = bench.watchdog(bench.time);
    let mut fast_share = None;
    if let Some(first) = clients.first_mut()
        && !first.has_ended_by(Instant::now() + bench.time / 2)?
    {
        fast_share = fast_share_of(first.pid());
    }
    let mut value = 0.0;
    for client in clients {
        value += parse(&client.finish(deadline)?)?;
    }
    Ok(Measured { fast_share, ..value.into() })
}

/// Part of the process's bytes that went past kernel TCP, in live connections so far.
fn fast_share_of(pid: u32) -> Option<f64> {
    let process = stat::read_process(pid).ok()??;
    let counters = process.connections.iter().flat_map(|c| [c.tx, c.rx]);
    let (fast, all) = counters.fold((0.0, 0.0), |(fast, all), counters| {
        let sum: f64 = counters.bytes.iter().map(|n| *n as f64).sum();
        (fast + sum - counters.bytes[stat::Path::Tcp as usize] as f64, all + sum)
    });
    (all > 0.0).then(|| fast / all)
}

/// `rsock perf` with a server of its own.
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
    bench.dress(&mut command, case, side);
    let client = Collected::spawn("rsock perf", command)?;
    let mut latency_us = None;
    let measured = finish_all(bench, vec![client], |output| {
        let report: perf::Report = serde_json::from_str(output)
            .map_err(|e| Error::Failed(format!("rsock perf printed no report: {e}")))?;
        latency_us = report.latency_us;
        perf_value(&report, case.unit)
    })?;
    Ok(Measured { latency_us, ..measured })
}

/// `rsock perf dgram` with a server of its own.
fn dgram_run(
    bench: &Bench,
    side: Side,
    size: usize,
    batches: bool,
    value: impl Fn(&DatagramReport) -> f64,
) -> Result<Measured, Error> {
    // Round trips and one way take a half each.
    let seconds = (bench.time / 2).as_secs_f64().to_string();
    let (size, batch) = (size.to_string(), if batches { BATCH } else { 1 }.to_string());
    let args = ["perf", "dgram", "--json", "--size", &size, "--batch", &batch, "--time", &seconds];
    let mut command = bench.own_command(&args);
    command.args(["--device", if side == Side::Kernel { "udp" } else { "soft" }]);
    command.env_remove(library::preload_env());
    let client = Collected::spawn("rsock perf", command)?;
    let mut latency_us = None;
    let measured = finish_all(bench, vec![client], |output| {
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
        Side::Kernel | Side::C | Side::Limit => "tcp",
    }
}

fn perf_value(report: &perf::Report, unit: Unit) -> Result<f64, Error> {
    let value = match unit {
        Unit::Microseconds => report.latency_us.map(|latency| latency.p50),
        Unit::GbitPerSecond => report.gbit_per_second,
        _ => report.per_second,
    };
    value.ok_or_else(|| Error::Failed("rsock perf did not measure that".into()))
}

/// Opens streams that carry 1 MiB each, lets them rest and looks at both processes.
fn held(
    bench: &Bench,
    case: &Case,
    side: Side,
    n_streams: u32,
    look: impl FnOnce(&[u32]) -> Result<f64, Error>,
) -> Result<Measured, Error> {
    const REST: Duration = Duration::from_secs(1);
    let n = n_streams.to_string();
    let (server, addr) = own_server(bench, case, side, &["perf", "hold", "--streams", &n])?;
    let mut command = bench.own_command(&["perf", "hold", "--streams", &n, "--connect", &addr]);
    // What goes wrong in there is said on our own standard error.
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    bench.dress(&mut command, case, side);
    let mut client = Child::spawn("rsock perf hold", command)?;
    // It stays until this end of its input goes away.
    let _letting_go = client.take_stdin();
    let line = client.read_line(bench.watchdog(Duration::ZERO) + HOLD_LIMIT)?;
    if line != perf::READY {
        return Err(Error::Failed("rsock perf hold did not get its streams open".into()));
    }
    pause(REST);
    let value = look(&[client.pid(), server.pid()])?;
    Ok(Measured { fast_share: fast_share_of(client.pid()), ..value.into() })
}

/// CPU time of both ends over a few seconds of 100 requests per second.
fn cpu_at_rate(bench: &Bench, case: &Case, side: Side) -> Result<Measured, Error> {
    const SETTLING: Duration = Duration::from_millis(500);
    const WATCHED: Duration = Duration::from_secs(2);
    let (server, addr) =
        own_server(bench, case, side, &["perf", "rr", "--server", "--device", "tcp"])?;
    // Longer than we look.
    let args = ["perf", "rr", "--device", "tcp", "--rate", "100", "--time", "3.5"];
    let mut command = bench.own_command(&args);
    command.args(["--connect", &addr]);
    bench.dress(&mut command, case, side);
    let mut client = Collected::spawn("rsock perf", command)?;
    let pids = [client.pid(), server.pid()];
    pause(SETTLING);
    let (start, before) = (Instant::now(), process::cpu_time(&pids)?);
    pause(WATCHED);
    let (after, took) = (process::cpu_time(&pids)?, start.elapsed());
    let fast_share = fast_share_of(client.pid());
    if client.has_ended_by(Instant::now())? {
        client.finish(Instant::now())?;
        return Err(Error::Failed("rsock perf ended too soon".into()));
    }
    let used = after.saturating_sub(before).as_secs_f64() * 1e3;
    Ok(Measured { fast_share, ..Measured::from(used / took.as_secs_f64()) })
}

/// This program as a server, and its address.
fn own_server(
    bench: &Bench,
    case: &Case,
    side: Side,
    args: &[&str],
) -> Result<(Child, String), Error> {
    let mut command = bench.own_command(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    bench.dress(&mut command, case, side);
    let mut server = Child::spawn("rsock perf", command)?;
    let addr = perf::read_address(&mut server)?;
    Ok((server, addr))
}

fn absent(program: &str) -> Error {
    Error::Failed(format!("{program} was not found"))
}

/// For a thousand streams and a thousand MiB on a slow machine.
const HOLD_LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::case;

    #[test]
    fn rows_of_a_quotient_take_turns_and_no_others_do() {
        let cases = case::all();
        let groups = cases.chunk_by(|a, b| are_compared(&cases, a, b)).filter(|g| g.len() > 1);
        let together: Vec<Vec<_>> =
            groups.map(|group| group.iter().map(|case| case.id.as_str()).collect()).collect();
        assert_eq!(
            together,
            [
                ["stream.64K", "stream.1M"],
                ["stream.64K.pinned", "stream.1M.pinned"],
                ["rdma.stream.64K", "rdma.stream.1M"],
            ]
        );
    }
}
