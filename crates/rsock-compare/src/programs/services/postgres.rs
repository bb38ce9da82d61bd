//! PostgreSQL, under the load of pgbench.
//!
//! PostgreSQL refuses to run as root, and memory is shared with processes of the same user only: a
//! privileged comparison runs both ends as another user. That user may be unable to read where the
//! preload library lies, so the server's directory has a copy of it.

use super::{directory, no_rate, number};
use crate::bench::Bench;
use crate::case::{Case, Side};
use crate::collected::Collected;
use crate::installed::{Postgres, Program};
use crate::server::Server;
use rsock_cli::child::pause;
use rsock_cli::error::Error;
use rsock_cli::library;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Makes a cluster, starts its server, and fills the tables of pgbench.
pub(super) fn start_server(bench: &Bench, case: &Case, side: Side) -> Result<Server, Error> {
    let postgres = installed(bench)?;
    let server = Server::start("postgres", bench.listening(case, side), |port| {
        let dir = directory(port)?;
        prepare(bench, postgres, &dir)?;
        let data = dir.join("data");
        // A former server at that port may have left one.
        let _ = fs::remove_dir_all(&data);
        let mut initdb = command(bench, case, side, &postgres.initdb, port)?;
        initdb.args(["--no-sync", "--auth", "trust", "--username", USER, "--pgdata"]).arg(&data);
        run(bench, "initdb", initdb)?;
        let mut server = command(bench, case, side, &postgres.postgres, port)?;
        server.arg("-D").arg(&data).args(["-p", &port.to_string()]);
        for setting in SETTINGS {
            server.args(["-c", setting]);
        }
        Ok(server)
    })?;
    await_answer(bench, case, side, server.port)?;
    let mut fill = command(bench, case, side, &postgres.pgbench, server.port)?;
    connect(&mut fill, server.port).args(["-i", "-q", "-s", "1", USER]);
    run(bench, "pgbench -i", fill)?;
    Ok(server)
}

/// Nothing but the requests takes CPU time, and every connection is over TCP.
const SETTINGS: [&str; 4] =
    ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "autovacuum=off"];

/// The administrator in the cluster, and the database of that name.
const USER: &str = "postgres";

pub(super) fn client(
    bench: &Bench,
    case: &Case,
    side: Side,
    clients: u16,
    port: u16,
) -> Result<Command, Error> {
    let mut run = command(bench, case, side, &installed(bench)?.pgbench, port)?;
    connect(&mut run, port).args(["-n", "-S", "-M", "prepared", "-j", "1"]);
    run.args(["-c", &clients.to_string(), "-T", &bench.time.as_secs().to_string(), USER]);
    Ok(run)
}

pub(super) fn parse(output: &str) -> Result<f64, Error> {
    // PostgreSQL before 15 does not print these.
    if let Some(failed) = number(output, "number of failed transactions", ':').filter(|n| *n != 0.0)
    {
        return Err(Error::Failed(format!("pgbench: {failed} failed transactions")));
    }
    number(output, "tps", '=').ok_or_else(|| no_rate("pgbench"))
}

fn installed(bench: &Bench) -> Result<&Postgres, Error> {
    bench.programs.postgres.as_ref().map_err(|why| Error::Failed(why.clone()))
}

/// Hands the directory of a server to the user of both ends, with a copy of the library.
fn prepare(bench: &Bench, postgres: &Postgres, dir: &Path) -> Result<(), Error> {
    let failed = || Error::io("no files for PostgreSQL");
    fs::set_permissions(dir, Permissions::from_mode(0o755)).map_err(failed())?;
    let copy = dir.join(LIBRARY);
    fs::copy(&bench.library, &copy).map_err(failed())?;
    fs::set_permissions(&copy, Permissions::from_mode(0o755)).map_err(failed())?;
    if let Some(user) = postgres.user {
        chown(dir, Some(user.uid), Some(user.gid)).map_err(failed())?;
    }
    Ok(())
}

const LIBRARY: &str = "librsock_preload.so";

/// A program of either end, as the user of both and with the copy of the library.
fn command(
    bench: &Bench,
    case: &Case,
    side: Side,
    program: &Program,
    port: u16,
) -> Result<Command, Error> {
    let dir = directory(port)?;
    let mut command = program.command();
    bench.set_environment(&mut command, case, side);
    if side.has_library() {
        command.env(library::PRELOAD_ENV, dir.join(LIBRARY));
    }
    // It may not enter the directory of this process.
    command.current_dir(dir).env("LC_ALL", "C");
    if let Some(user) = installed(bench)?.user {
        user.run(&mut command);
    }
    Ok(command)
}

fn connect(command: &mut Command, port: u16) -> &mut Command {
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", USER])
}

/// A server listens before it answers.
fn await_answer(bench: &Bench, case: &Case, side: Side, port: u16) -> Result<(), Error> {
    const LIMIT: Duration = Duration::from_secs(20);
    const LOOK_EVERY: Duration = Duration::from_millis(20);
    let deadline = Instant::now() + LIMIT;
    loop {
        let mut ask = command(bench, case, side, &installed(bench)?.pg_isready, port)?;
        connect(&mut ask, port).arg("-q");
        match run(bench, "pg_isready", ask) {
            Ok(()) => return Ok(()),
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => pause(LOOK_EVERY),
        }
    }
}

/// Runs a command to its end. A failure carries the last line of what it said.
fn run(bench: &Bench, name: &str, command: Command) -> Result<(), Error> {
    Collected::spawn(name, command)?.finish(bench.deadline(Duration::ZERO)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_found_unless_transactions_failed() {
        let output = "number of failed transactions: 0 (0.000%)\n\
            latency average = 0.075 ms\ninitial connection time = 2.5 ms\n\
            tps = 13370.123 (without initial connection time)\n";
        assert_eq!(parse(output).unwrap(), 13_370.123);
        let failed = output.replace("transactions: 0", "transactions: 3");
        assert!(parse(&failed).is_err());
        assert!(parse("").is_err());
    }
}
