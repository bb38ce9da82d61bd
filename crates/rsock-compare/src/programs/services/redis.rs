//! redis, under the loads of redis-benchmark and redis-cli, and of a client that keeps a pace.

use super::{found, no_rate, start};
use crate::bench::Bench;
use crate::case::{Case, PACED_RATE, RedisCommand, Side};
use crate::collected::Collected;
use crate::server::Server;
use rsock_cli::error::Error;
use std::process::Command;
use std::time::Duration;

/// Starts the server.
pub(crate) fn start_server(bench: &Bench, case: &Case, side: Side) -> Result<Server, Error> {
    let redis = found(bench.programs.redis_server.as_ref(), "redis-server")?;
    start(bench, case, side, redis, |command, port| {
        command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        Ok(())
    })
}

pub(super) fn benchmark(
    bench: &Bench,
    command: RedisCommand,
    clients: u16,
    pipeline: u16,
    port: u16,
) -> Result<Command, Error> {
    let mut run = found(bench.programs.redis_benchmark.as_ref(), "redis-benchmark")?.command();
    // It takes a number of requests, not a time: some that take about that time.
    let per_second = if clients == 1 { 60_000 } else { 150_000 } * u64::from(pipeline);
    let n = per_second.saturating_mul(bench.time.as_secs());
    run.args(["--csv", "-p", &port.to_string(), "-t", command.name(), "-r", "10000"]);
    run.args(["-c", &clients.to_string(), "-P", &pipeline.to_string()]);
    run.args(["-n", &n.to_string()]);
    Ok(run)
}

pub(super) fn parse_benchmark(output: &str) -> Result<f64, Error> {
    let last =
        output.lines().rfind(|line| line.starts_with("\"GET\"") || line.starts_with("\"SET\""));
    let rate = last.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
    rate.ok_or_else(|| no_rate("redis-benchmark"))
}

/// Runs of redis-cli in a sample.
const RUNS: usize = 50;

/// One shell that runs redis-cli again and again.
pub(super) fn command_line(bench: &Bench, port: u16) -> Result<Command, Error> {
    const LOOP: &str = "n=$1; shift; while [ $n -gt 0 ]; do \"$@\" || exit 1; n=$((n - 1)); done";
    let cli = found(bench.programs.redis_cli.as_ref(), "redis-cli")?;
    let mut run = cli.command_below("sh");
    run.args(["-c", LOOP, "sh", &RUNS.to_string()]).arg(cli.path());
    run.args(["-p", &port.to_string(), "ping"]);
    Ok(run)
}

/// Every run has to be answered.
pub(super) fn parse_command_line(output: &str, took: Duration) -> Result<f64, Error> {
    let answers = output.lines().filter(|line| *line == "PONG").count();
    if answers != RUNS || output.lines().count() != RUNS {
        return Err(Error::Failed(format!("redis-cli: {answers} answers of {RUNS}")));
    }
    Ok(RUNS as f64 / took.as_secs_f64())
}

/// Starts a client that makes [`PACED_RATE`] requests per second for `time`.
pub(crate) fn start_paced_client(
    bench: &Bench,
    case: &Case,
    side: Side,
    time: Duration,
    port: u16,
) -> Result<Collected, Error> {
    let (rate, time) = (PACED_RATE.to_string(), time.as_secs_f64().to_string());
    let args = ["end", "redis-client", "--rate", &rate, "--time", &time, &port.to_string()];
    let mut command = bench.own_command(&args);
    bench.set_environment(&mut command, case, side);
    Collected::spawn("the client", command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_redis_benchmark_is_found() {
        let output = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"112994.34\",\"0.007\"\n";
        assert_eq!(parse_benchmark(output).unwrap(), 112_994.34);
        assert!(parse_benchmark("").is_err());
    }

    #[test]
    fn each_run_of_redis_cli_needs_its_answer() {
        let second = Duration::from_secs(1);
        assert_eq!(parse_command_line(&"PONG\n".repeat(RUNS), second).unwrap(), RUNS as f64);
        assert!(parse_command_line(&"PONG\n".repeat(RUNS - 1), second).is_err());
        let wrong = "PONG\n".repeat(RUNS) + "ERR\n";
        assert!(parse_command_line(&wrong, second).is_err());
    }
}
