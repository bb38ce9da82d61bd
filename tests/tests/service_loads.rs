//! The loads that services are measured with, unmodified, over the preload library: they report no
//! error in any mixed pair, their long connections leave TCP, and the short ones stay there.

mod service;

use rsock_tests::{assert_worked, rsock_command, tools};
use service::{
    Load, cluster, directory, end, memcached, nginx, postgres, program, program_of_user, redis,
    start,
};
use std::process::{Command, Stdio};

/// Times that a client of this step asks, where it counts: the same for each of 8 connections.
fn n_requests(step: u32) -> u32 {
    800 * 10_u32.pow(step)
}

/// Seconds of a client of this step, where it looks at a clock.
fn seconds(step: u32) -> String {
    4_u32.pow(step).to_string()
}

/// The number behind `name` in its line.
fn number(output: &str, name: &str) -> f64 {
    let rest = output.split_once(name).unwrap_or_else(|| panic!("no {name}: {output}")).1;
    let digits = rest.trim_start_matches([':', '=', ' ']).split([' ', '\n', ';', '/']).next();
    let digits = digits.unwrap_or_default();
    digits.parse().unwrap_or_else(|e| panic!("{name} is {digits}, {e}: {output}"))
}

fn check_redis_benchmark(output: &str, _step: u32) {
    let lines: Vec<&str> = output.split(['\r', '\n']).map(str::trim).collect();
    for test in ["SET: ", "GET: "] {
        let has_rate = |line: &&str| line.starts_with(test) && line.contains("per second");
        assert!(lines.iter().any(has_rate), "no {test}: {output}");
    }
    assert!(!output.to_lowercase().contains("error"), "{output}");
}

fn redis_benchmark(mut command: Command, port: u16, step: u32) -> Command {
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", "8", "-t", "get,set", "-q"]);
    command.args(["-n", &n_requests(step).to_string()]);
    command
}

#[test]
fn redis_benchmark_leaves_tcp() {
    let load = Load {
        name: "redis-benchmark",
        client: &|port, step, with_library| {
            redis_benchmark(program("redis-benchmark", with_library), port, step)
        },
        check: &check_redis_benchmark,
    };
    load.leaves_tcp(redis);
}

/// A program that `rsock run` becomes, or one without the library.
fn run(name: &str, with_library: bool) -> Command {
    if !with_library {
        return program(name, false);
    }
    let tool = tools::require(name);
    let mut command = Command::new(rsock_command());
    command.arg("run").arg(&tool.path).env_remove("LD_PRELOAD");
    if let Some(libraries) = tool.lib_path {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    command.stdin(Stdio::null());
    command
}

#[test]
fn redis_and_its_load_leave_tcp_by_rsock_run() {
    let load = Load {
        name: "rsock run redis-benchmark",
        client: &|port, step, with_library| {
            redis_benchmark(run("redis-benchmark", with_library), port, step)
        },
        check: &check_redis_benchmark,
    };
    load.leaves_tcp(|port, with_library| {
        let mut server = run("redis-server", with_library);
        server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        start(&mut server, port)
    });
}

/// Pings on one connection.
fn redis_cli(port: u16, n: u32, with_library: bool) -> Command {
    let mut command = program("redis-cli", with_library);
    command.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-r", &n.to_string(), "ping"]);
    command
}

#[test]
fn redis_cli_with_many_requests_leaves_tcp() {
    let load = Load {
        name: "redis-cli",
        client: &|port, step, with_library| redis_cli(port, n_requests(step), with_library),
        check: &|output, step| {
            assert!(output.lines().all(|line| line == "PONG"), "an answer is no PONG");
            assert_eq!(output.lines().count(), n_requests(step) as usize);
        },
    };
    load.leaves_tcp(redis);
}

#[test]
fn redis_cli_with_one_request_stays_on_tcp() {
    let load = Load {
        name: "redis-cli ping",
        client: &|port, _, with_library| redis_cli(port, 1, with_library),
        check: &|output, _| assert_eq!(output, "PONG\n"),
    };
    load.stays_on_tcp(redis);
}

#[test]
fn memcaslap_leaves_tcp() {
    let load = Load {
        name: "memcaslap",
        client: &|port, step, with_library| {
            let mut command = program("memcaslap", with_library);
            command.arg(format!("--servers=127.0.0.1:{port}"));
            // All values are compared with what was stored.
            command.args(["-T", "1", "-c", "8", "-v", "1.0"]);
            command.args(["-x", &n_requests(step).to_string()]);
            command
        },
        check: &|output, step| {
            assert_eq!(number(output, "Ops"), f64::from(n_requests(step)));
            for mistakes in ["get_misses", "verify_misses", "verify_failed"] {
                assert_eq!(number(output, mistakes), 0.0, "{mistakes}: {output}");
            }
        },
    };
    load.leaves_tcp(memcached);
}

/// wrk on a page of 1 KiB.
fn wrk(port: u16, step: u32, header: Option<&str>, with_library: bool) -> Command {
    let mut command = program("wrk", with_library);
    command.args(["-t1", "-c4", "-d", &seconds(step)]);
    if let Some(header) = header {
        command.args(["-H", header]);
    }
    command.arg(format!("http://127.0.0.1:{port}/1024"));
    command
}

fn check_wrk(output: &str, _step: u32) {
    assert!(number(output, "Requests/sec") > 0.0, "{output}");
    assert!(!output.contains("Socket errors") && !output.contains("Non-2xx"), "{output}");
}

#[test]
fn wrk_with_connections_that_are_kept_leaves_tcp() {
    let dir = directory("wrk");
    let load = Load {
        name: "wrk",
        client: &|port, step, with_library| wrk(port, step, None, with_library),
        check: &check_wrk,
    };
    load.leaves_tcp(|port, with_library| nginx(&dir, port, with_library));
}

#[test]
fn wrk_with_connections_that_are_closed_stays_on_tcp() {
    let dir = directory("wrk_closed");
    let load = Load {
        name: "wrk, closed",
        client: &|port, step, with_library| {
            wrk(port, step, Some("Connection: close"), with_library)
        },
        check: &check_wrk,
    };
    load.stays_on_tcp(|port, with_library| nginx(&dir, port, with_library));
}

/// ab on a page of 1 KiB.
fn ab(port: u16, step: u32, more: &[&str], with_library: bool) -> Command {
    let mut command = program("ab", with_library);
    command.args(["-q", "-c", "4", "-n", &n_requests(step).to_string()]).args(more);
    command.arg(format!("http://127.0.0.1:{port}/1024"));
    command
}

fn check_ab(output: &str, step: u32) {
    assert_eq!(number(output, "Complete requests"), f64::from(n_requests(step)), "{output}");
    assert_eq!(number(output, "Failed requests"), 0.0, "{output}");
    assert!(!output.contains("Non-2xx"), "{output}");
}

#[test]
fn ab_with_connections_that_are_kept_leaves_tcp() {
    let dir = directory("ab");
    let load = Load {
        name: "ab -k",
        client: &|port, step, with_library| ab(port, step, &["-k"], with_library),
        check: &check_ab,
    };
    load.leaves_tcp(|port, with_library| nginx(&dir, port, with_library));
}

#[test]
fn ab_with_a_connection_for_each_request_stays_on_tcp() {
    let dir = directory("ab_closed");
    let load = Load {
        name: "ab",
        client: &|port, step, with_library| ab(port, step, &[], with_library),
        check: &check_ab,
    };
    load.stays_on_tcp(|port, with_library| nginx(&dir, port, with_library));
}

/// pgbench on the administrator's database.
fn pgbench(command: &mut Command, port: u16) -> &mut Command {
    command.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &port.to_string()]);
    command.env("PGDATABASE", "postgres")
}

#[test]
fn pgbench_leaves_tcp() {
    let cluster = cluster("pgbench");
    let load = Load {
        name: "pgbench -S",
        client: &|port, step, with_library| {
            let mut command = program_of_user("pgbench", with_library);
            pgbench(&mut command, port).args(["-S", "-M", "prepared", "-n", "-c", "2", "-T"]);
            command.arg(seconds(step));
            command
        },
        check: &|output, _| {
            assert!(number(output, "transactions actually processed") > 0.0, "{output}");
            assert_eq!(number(output, "failed transactions"), 0.0, "{output}");
            assert!(!output.contains("error"), "{output}");
        },
    };
    let mut is_filled = false;
    load.leaves_tcp(|port, with_library| {
        let server = postgres(&cluster, port, with_library);
        if !is_filled {
            let mut fill = program_of_user("pgbench", false);
            pgbench(&mut fill, port).args(["-i", "-q"]);
            fill_until_it_answers(&mut fill);
            is_filled = true;
        }
        server
    });
}

/// PostgreSQL listens a moment before it answers.
fn fill_until_it_answers(fill: &mut Command) {
    loop {
        let output = fill.output().expect("pgbench");
        if !String::from_utf8_lossy(&output.stderr).contains("starting up") {
            assert_worked("pgbench -i", &output);
            return;
        }
    }
}

/// Both ends are `rsock-compare`'s, which know nothing of rsock below Tokio's TCP streams.
#[test]
fn an_echo_over_tokio_leaves_tcp() {
    let own = |name: &str, with_library| {
        let mut command = Command::new(rsock_command().with_file_name("rsock-compare"));
        command.args(["end", name]);
        end(command, with_library)
    };
    let load = Load {
        name: "Tokio",
        client: &|port, step, with_library| {
            let mut client = own("tokio-client", with_library);
            client.args(["--time", &seconds(step), &port.to_string()]);
            client
        },
        check: &|output, _| assert!(number(output, "rate") > 0.0, "{output}"),
    };
    load.leaves_tcp(|port, with_library| {
        start(own("tokio-server", with_library).arg(port.to_string()), port)
    });
}
