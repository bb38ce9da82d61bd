//! Event-driven services, unmodified, under the load of well-known benchmarks: redis by
//! redis-benchmark, memcached by memcaslap, and nginx by ab and wrk, also behind haproxy.

use crate::bench::Bench;
use crate::case::{Case, Connections, Service, Side};
use crate::collected::Collected;
use crate::installed::Program;
use crate::server::Server;
use rsock_cli::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, process};

/// Starts what the clients of `service` connect to: that server comes first.
pub(crate) fn start_servers(
    bench: &Bench,
    case: &Case,
    side: Side,
    service: Service,
) -> Result<Vec<Server>, Error> {
    match service {
        Service::Redis { .. } => {
            let redis = found(bench.programs.redis_server.as_ref(), "redis-server")?;
            let server = start(bench, case, side, redis, |command, port| {
                command.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
                Ok(())
            })?;
            Ok(vec![server])
        }
        Service::Memcached { .. } => {
            let memcached = found(bench.programs.memcached.as_ref(), "memcached")?;
            let server = start(bench, case, side, memcached, |command, port| {
                command.args(["-l", "127.0.0.1", "-p", &port.to_string(), "-U", "0", "-t", "1"]);
                // Only needed, and only allowed, with privileges.
                if rustix::process::geteuid().is_root() {
                    command.args(["-u", "root"]);
                }
                Ok(())
            })?;
            Ok(vec![server])
        }
        Service::NginxByAb { .. } => Ok(vec![start_nginx(bench, case, side, Service::PAGE)?]),
        Service::Nginx { size, .. } => Ok(vec![start_nginx(bench, case, side, size)?]),
        Service::Haproxy { .. } => {
            let nginx = start_nginx(bench, case, side, Service::PAGE)?;
            let haproxy = found(bench.programs.haproxy.as_ref(), "haproxy")?;
            let behind = nginx.port;
            let front = start(bench, case, side, haproxy, |command, port| {
                let dir = directory(port)?;
                let path = dir.join("haproxy.cfg");
                write(&path, &haproxy_configuration(port, behind))?;
                command.arg("-f").arg(path);
                Ok(())
            })?;
            Ok(vec![front, nginx])
        }
    }
}

fn start(
    bench: &Bench,
    case: &Case,
    side: Side,
    program: &Program,
    arguments: impl Fn(&mut Command, u16) -> Result<(), Error>,
) -> Result<Server, Error> {
    Server::start("the service", bench.listening(case), |port| {
        let mut command = program.command();
        arguments(&mut command, port)?;
        bench.set_environment(&mut command, case, side);
        Ok(command)
    })
}

fn start_nginx(bench: &Bench, case: &Case, side: Side, size: usize) -> Result<Server, Error> {
    let nginx = found(bench.programs.nginx.as_ref(), "nginx")?;
    start(bench, case, side, nginx, |command, port| {
        let dir = directory(port)?;
        write(&dir.join("page"), &"x".repeat(size))?;
        let path = dir.join("nginx.conf");
        write(&path, &nginx_configuration(&dir, port))?;
        command.arg("-p").arg(&dir).arg("-c").arg(path).arg("-e").arg(dir.join("errors"));
        Ok(())
    })
}

/// Starts a client of the server at `port`.
pub(crate) fn start_client(
    bench: &Bench,
    case: &Case,
    side: Side,
    service: Service,
    port: u16,
) -> Result<Collected, Error> {
    let programs = &bench.programs;
    let (name, mut command) = match service {
        Service::Redis { command, clients, pipeline } => {
            let program = found(programs.redis_benchmark.as_ref(), "redis-benchmark")?;
            // It takes a number of requests, not a time: some that take about that time.
            let per_second = if clients == 1 { 60_000 } else { 150_000 } * u64::from(pipeline);
            let n = per_second.saturating_mul(bench.time.as_secs());
            let mut run = program.command();
            run.args(["--csv", "-p", &port.to_string(), "-t", command.name(), "-r", "10000"]);
            run.args(["-c", &clients.to_string(), "-P", &pipeline.to_string()]);
            run.args(["-n", &n.to_string()]);
            ("redis-benchmark", run)
        }
        Service::Memcached { connections } => {
            let program = found(programs.memcaslap.as_ref(), "memcaslap")?;
            let mut run = program.command();
            run.arg(format!("--servers=127.0.0.1:{port}"));
            run.args(["-T", "1", "-c", &connections.to_string()]);
            run.args(["-t", &format!("{}s", bench.time.as_secs())]);
            ("memcaslap", run)
        }
        Service::NginxByAb { clients } => {
            let program = found(programs.ab.as_ref(), "ab")?;
            let mut run = program.command();
            run.args(["-q", "-c", &clients.to_string(), "-t", &bench.time.as_secs().to_string()]);
            run.args(["-n", "100000000", &format!("http://127.0.0.1:{port}/page")]);
            ("ab", run)
        }
        Service::Nginx { connections, reuse, .. } => ("wrk", wrk(bench, connections, reuse, port)?),
        Service::Haproxy { connections } => {
            ("wrk", wrk(bench, connections, Connections::Kept, port)?)
        }
    };
    bench.set_environment(&mut command, case, side);
    Collected::spawn(name, command)
}

fn wrk(bench: &Bench, connections: u16, reuse: Connections, port: u16) -> Result<Command, Error> {
    let mut command = found(bench.programs.wrk.as_ref(), "wrk")?.command();
    command.args(["-t1", "-c", &connections.to_string()]);
    command.args(["-d", &bench.time.as_secs().to_string()]);
    if reuse == Connections::Closed {
        command.args(["-H", "Connection: close"]);
    }
    command.arg(format!("http://127.0.0.1:{port}/page"));
    Ok(command)
}

/// Parses the requests per second.
pub(crate) fn parse(output: &str, service: Service) -> Result<f64, Error> {
    match service {
        Service::Redis { .. } => {
            let last = output
                .lines()
                .rfind(|line| line.starts_with("\"GET\"") || line.starts_with("\"SET\""));
            let rate = last.and_then(|line| line.split(',').nth(1)?.trim_matches('"').parse().ok());
            rate.ok_or_else(|| Error::Failed("redis-benchmark: no rate".to_owned()))
        }
        Service::Memcached { .. } => {
            let rate = output.split_once("TPS: ").map(|(_, rest)| rest);
            let rate = rate.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            rate.ok_or_else(|| Error::Failed("memcaslap: no rate".to_owned()))
        }
        Service::NginxByAb { .. } => {
            let of = |name: &str| {
                let line = output.lines().find(|line| line.starts_with(name))?;
                line.split_once(':')?.1.split_whitespace().next()?.parse::<f64>().ok()
            };
            if let Some(failed) = of("Failed requests").filter(|&n| n != 0.0) {
                return Err(Error::Failed(format!("ab: {failed} failed requests")));
            }
            of("Requests per second").ok_or_else(|| Error::Failed("ab: no rate".to_owned()))
        }
        Service::Nginx { .. } | Service::Haproxy { .. } => {
            let of = |name: &str| {
                let line = output.lines().find(|line| line.trim_start().starts_with(name))?;
                Some(line.split_once(':')?.1.trim().to_owned())
            };
            if let Some(errors) = of("Socket errors").or_else(|| of("Non-2xx")) {
                return Err(Error::Failed(format!("wrk: errors: {errors}")));
            }
            let rate = of("Requests/sec").and_then(|rate| rate.parse().ok());
            rate.ok_or_else(|| Error::Failed("wrk: no rate".to_owned()))
        }
    }
}

fn found<'a>(program: Option<&'a Program>, name: &str) -> Result<&'a Program, Error> {
    program.ok_or_else(|| Error::Failed(format!("{name} was not found")))
}

/// A directory for the files of the server at `port`; the next server at that port takes it over.
fn directory(port: u16) -> Result<PathBuf, Error> {
    let dir = env::temp_dir().join(format!("rsock-compare-{}-{port}", process::id()));
    fs::create_dir_all(&dir).map_err(Error::io("no directory for a service"))?;
    Ok(dir)
}

/// Removes the files of the server at `port`.
pub(crate) fn remove_files(port: u16) {
    let dir = env::temp_dir().join(format!("rsock-compare-{}-{port}", process::id()));
    // There are none, of a service without files.
    let _ = fs::remove_dir_all(dir);
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::io("no file for a service"))
}

fn nginx_configuration(dir: &Path, port: u16) -> String {
    let dir = dir.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|of| format!("{of}_temp_path {dir};"))
        .join(" ");
    // Memory is shared with processes of the same user only. Without privileges the first line has
    // no effect.
    format!(
        "user root; daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/errors;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000000; {temporary}\n\
         server {{ listen 127.0.0.1:{port}; root {dir}; }} }}\n"
    )
}

fn haproxy_configuration(port: u16, behind: u16) -> String {
    format!(
        "global\n  maxconn 1000\n  nbthread 1\ndefaults\n  mode http\n  timeout connect 60s\n  \
         timeout client 60s\n  timeout server 60s\nfrontend front\n  bind 127.0.0.1:{port}\n  \
         default_backend back\nbackend back\n  server one 127.0.0.1:{behind}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::case::RedisCommand;

    #[test]
    fn the_rates_of_both_benchmarks_are_found() {
        let redis = Service::Redis { command: RedisCommand::Get, clients: 1, pipeline: 1 };
        let output = "\"test\",\"rps\",\"avg_latency_ms\"\n\"GET\",\"112994.34\",\"0.007\"\n";
        assert_eq!(parse(output, redis).unwrap(), 112_994.34);
        let memcached = Service::Memcached { connections: 1 };
        let output = "Run time: 2.0s Ops: 110240 TPS: 55102 Net_rate: 56.1M/s\n";
        assert_eq!(parse(output, memcached).unwrap(), 55_102.0);
        let ab = Service::NginxByAb { clients: 8 };
        let output = "Failed requests:        0\nRequests per second:    21.50 [#/sec] (mean)\n";
        assert_eq!(parse(output, ab).unwrap(), 21.5);
        assert!(parse("Failed requests: 3\nRequests per second: 2 [#/sec]\n", ab).is_err());
        let proxy = Service::Haproxy { connections: 1 };
        let output = "Running 2s test\n  1 threads\nRequests/sec:  97251.65\nTransfer/sec: 1MB\n";
        assert_eq!(parse(output, proxy).unwrap(), 97_251.65);
    }

    #[test]
    fn errors_of_the_load_are_no_rate() {
        let proxy = Service::Haproxy { connections: 1 };
        let output = "  Socket errors: connect 0, read 3, write 0, timeout 0\nRequests/sec: 5.0\n";
        let message = parse(output, proxy).unwrap_err().to_string();
        assert!(message.contains("read 3"), "{message}");
        assert!(parse("", proxy).is_err());
    }
}
