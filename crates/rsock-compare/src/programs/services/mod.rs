//! Services that wait for events, and the load of each: programs of others without changes, and
//! small echo programs for the runtimes of other languages.

mod echo;
mod memcached;
mod pages;
mod postgres;
mod redis;

use crate::bench::Bench;
use crate::case::{Case, Echo, Service, Side};
use crate::collected::Collected;
use crate::hold;
use crate::installed::Program;
use crate::server::Server;
use rsock_cli::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use std::{env, process};

pub(crate) use echo::start_epoll_server;
pub(crate) use redis::{start_paced_client, start_server as start_redis};

/// Starts what the clients of `service` connect to: that server comes first.
pub(crate) fn start_servers(
    bench: &Bench,
    case: &Case,
    side: Side,
    service: Service,
) -> Result<Vec<Server>, Error> {
    let server = match service {
        Service::Redis { .. } | Service::RedisCli => redis::start_server(bench, case, side),
        Service::Memcached { .. } => memcached::start_server(bench, case, side),
        Service::Postgres { .. } => postgres::start_server(bench, case, side),
        Service::NginxByAb { .. } => pages::start_nginx(bench, case, side, Service::PAGE),
        Service::Nginx { size, .. } => pages::start_nginx(bench, case, side, size),
        Service::Haproxy { .. } => {
            let nginx = pages::start_nginx(bench, case, side, Service::PAGE)?;
            let haproxy = pages::start_haproxy(bench, case, side, nginx.port)?;
            return Ok(vec![haproxy, nginx]);
        }
        Service::Node => pages::start_node(bench, case, side),
        Service::Echo(with) => echo::start_server(bench, case, side, with),
        Service::EchoBesideIdle { .. } => start_epoll_server(bench, case, side),
        Service::EchoInPoll { .. } => echo::start_poll_server(bench, case, side),
    };
    Ok(vec![server?])
}

/// Starts a client of the server at `port`.
pub(crate) fn start_client(
    bench: &Bench,
    case: &Case,
    side: Side,
    service: Service,
    port: u16,
) -> Result<Collected, Error> {
    let (name, mut command) = match service {
        Service::Redis { command, clients, pipeline } => {
            ("redis-benchmark", redis::benchmark(bench, command, clients, pipeline, port)?)
        }
        Service::RedisCli => ("redis-cli", redis::command_line(bench, port)?),
        Service::Memcached { connections } => {
            ("memcaslap", memcached::client(bench, connections, port)?)
        }
        Service::Postgres { clients } => {
            let command = postgres::client(bench, case, side, clients, port)?;
            return Collected::spawn("pgbench", command);
        }
        Service::NginxByAb { clients } => ("ab", pages::ab(bench, clients, port)?),
        Service::Nginx { connections, reuse, size } => {
            ("wrk", pages::wrk(bench, connections, reuse, size, port)?)
        }
        Service::Haproxy { connections } => ("wrk", pages::wrk_kept(bench, connections, port)?),
        Service::Node => ("wrk", pages::wrk_kept(bench, 1, port)?),
        Service::Echo(with) => (echo::name(with), echo::client(bench, with, port)?),
        Service::EchoBesideIdle { idle } | Service::EchoInPoll { idle } => {
            ("the client", echo::epoll_client(bench, idle, port))
        }
    };
    bench.set_environment(&mut command, case, side);
    Collected::spawn(name, command)
}

/// Parses the requests per second. `took` is the time that the client ran.
pub(crate) fn parse(output: &str, service: Service, took: Duration) -> Result<f64, Error> {
    match service {
        Service::Redis { .. } => redis::parse_benchmark(output),
        Service::RedisCli => redis::parse_command_line(output, took),
        Service::Memcached { .. } => memcached::parse(output),
        Service::Postgres { .. } => postgres::parse(output),
        Service::NginxByAb { .. } => pages::parse_ab(output),
        Service::Nginx { .. } | Service::Haproxy { .. } | Service::Node => pages::parse_wrk(output),
        Service::Echo(with) => echo::parse(output, echo::name(with)),
        Service::EchoBesideIdle { .. } | Service::EchoInPoll { .. } => {
            echo::parse(output, "the client")
        }
    }
}

/// The program without which a row about `service` cannot be measured, or why else it cannot.
pub(crate) fn lacks(bench: &Bench, service: Service) -> Option<String> {
    let programs = &bench.programs;
    let redis = ("redis-server", programs.redis_server.is_some());
    let nginx = ("nginx", programs.nginx.is_some());
    let wrk = ("wrk", programs.wrk.is_some());
    let needed = match service {
        Service::Postgres { .. } => return programs.postgres.as_ref().err().cloned(),
        Service::Redis { .. } => {
            vec![redis, ("redis-benchmark", programs.redis_benchmark.is_some())]
        }
        Service::RedisCli => vec![redis, ("redis-cli", programs.redis_cli.is_some())],
        Service::Memcached { .. } => vec![
            ("memcached", programs.memcached.is_some()),
            ("memcaslap", programs.memcaslap.is_some()),
        ],
        Service::NginxByAb { .. } => vec![nginx, ("ab", programs.ab.is_some())],
        Service::Nginx { .. } => vec![nginx, wrk],
        Service::Haproxy { .. } => vec![("haproxy", programs.haproxy.is_some()), nginx, wrk],
        Service::Node => vec![("node", programs.node.is_some()), wrk],
        Service::Echo(Echo::Asyncio) => vec![("python3", programs.python3.is_some())],
        Service::Echo(Echo::Nio) => vec![("java", programs.java.is_some())],
        Service::EchoBesideIdle { idle } | Service::EchoInPoll { idle } => {
            return hold::lacks_descriptors(idle.into());
        }
        Service::Echo(Echo::Tokio) => vec![],
    };
    let missing = needed.into_iter().find(|(_, is_found)| !is_found);
    missing.map(|(name, _)| format!("{name} was not found"))
}

/// Starts a server whose command gets its `arguments` for a port.
fn start(
    bench: &Bench,
    case: &Case,
    side: Side,
    program: &Program,
    arguments: impl Fn(&mut Command, u16) -> Result<(), Error>,
) -> Result<Server, Error> {
    Server::start("the service", bench.listening(case, side), |port| {
        let mut command = program.command();
        arguments(&mut command, port)?;
        bench.set_environment(&mut command, case, side);
        Ok(command)
    })
}

fn found<'a>(program: Option<&'a Program>, name: &str) -> Result<&'a Program, Error> {
    program.ok_or_else(|| Error::Failed(format!("{name} was not found")))
}

/// A directory for the files of the server at `port`; the next server at that port takes it over.
fn directory(port: u16) -> Result<PathBuf, Error> {
    let dir = directory_of(port);
    fs::create_dir_all(&dir).map_err(Error::io("no directory for a service"))?;
    Ok(dir)
}

fn directory_of(port: u16) -> PathBuf {
    env::temp_dir().join(format!("rsock-compare-{}-{port}", process::id()))
}

/// Removes the files of the server at `port`.
pub(crate) fn remove_files(port: u16) {
    // There are none, of a service without files.
    let _ = fs::remove_dir_all(directory_of(port));
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(Error::io("no file for a service"))
}

/// The number behind the first line that begins with `name` and `separator`.
fn number(output: &str, name: &str, separator: char) -> Option<f64> {
    let line = output.lines().map(str::trim_start).find(|line| line.starts_with(name))?;
    line.split_once(separator)?.1.split_whitespace().next()?.parse().ok()
}

/// A program printed no rate.
fn no_rate(program: &str) -> Error {
    Error::Failed(format!("{program}: no rate"))
}
