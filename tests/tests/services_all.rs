//! Services of larger programs, Node and Java, unmodified: `cargo xtask test --all` runs them, and
//! fetches the programs where the machine has none.

mod service;

use rsock_tests::{Running, assert_worked, has_used_ring, tools};
use service::{Load, MIXED, directory, end, free_port, script, start};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A command for a script of these tests.
fn node(node: &tools::Tool, part: &str, port: u16, last: &str, with_library: bool) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/http.js");
    let mut command = end(node.command(), with_library);
    command.arg(path).args([part, &port.to_string(), last]);
    command
}

/// Node's HTTP server for the files that [`script`]'s client gets.
fn node_server(tool: &tools::Tool, dir: &Path, port: u16, with_library: bool) -> Running {
    let dir = dir.to_str().expect("a path in UTF-8");
    start(&mut node(tool, "server", port, dir, with_library), port)
}

/// A directory with the files that a server serves.
fn files(name: &str) -> PathBuf {
    let dir = directory(name);
    let output = script("files", 0, dir.to_str().expect("a path in UTF-8"), false).output();
    assert_worked("the files", &output.expect("python3"));
    dir
}

/// Seconds of a client of this step, after a number of rounds.
fn seconds(step: u32) -> String {
    [0, 2, 8, 32][step as usize].to_string()
}

#[test]
#[ignore = "needs Node: cargo xtask test --all"]
fn node_serves_on_connections_that_are_kept() {
    let tool = tools::require("node");
    let dir = files("node");
    let load = Load {
        name: "Node",
        client: &|port, step, with_library| script("http", port, &seconds(step), with_library),
        check: &|_, _| {},
    };
    load.leaves_tcp(|port, with_library| node_server(&tool, &dir, port, with_library));
}

#[test]
#[ignore = "needs Node: cargo xtask test --all"]
fn node_asks_node_on_connections_that_are_kept() {
    let tool = tools::require("node");
    let dir = files("node_asks");
    let load = Load {
        name: "Node and Node",
        client: &|port, step, with_library| {
            node(&tool, "client", port, &seconds(step), with_library)
        },
        check: &|_, _| {},
    };
    load.leaves_tcp(|port, with_library| node_server(&tool, &dir, port, with_library));
}

/// libuv makes an `io_uring` with the loop if the variable asks for it, from version 1.45 on. So no
/// stream is ever looked at, `rsock stat` does not know the process, and only the log says why.
#[test]
#[ignore = "needs Node 20 or later: cargo xtask test --all"]
fn node_with_an_io_uring_stays_on_tcp() {
    let tool = tools::all("node").find(|node| major(node) >= 20);
    let tool = tool.expect("Node 20 or later is needed, and Debian 12 has an older one");
    let dir = files("node_io_uring");
    for (server, client) in MIXED {
        let port = free_port();
        let log = dir.join(format!("log.{port}"));
        let pages = dir.to_str().expect("a path in UTF-8");
        let mut command = node(&tool, "server", port, pages, server);
        command.env("UV_USE_IO_URING", "1").env("RSOCK_LOG", &log);
        let running = start(&mut command, port);
        let load = Load {
            name: "Node with an io_uring",
            client: &|port, step, with_library| script("http", port, &seconds(step), with_library),
            check: &|_, _| {},
        };
        load.run(port, 1, client, |client| {
            assert!(![client, running.id()].into_iter().any(has_used_ring), "on the ring");
        });
        let log = fs::read_to_string(log).unwrap_or_default();
        let is_noticed = |line: &str| line.contains("io_uring") && line.contains("stays on TCP");
        assert_eq!(log.lines().any(is_noticed), server, "{log}");
    }
}

/// The first number of a Node's version.
fn major(node: &tools::Tool) -> u32 {
    let output = node.command().arg("--version").output().expect("node");
    let version = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = version.strip_prefix('v').and_then(|version| version.split('.').next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// An end of the NIO echo that `rsock compare` measures, with a buffer of so many bytes.
fn java(part: &str, port: u16, size: usize, with_library: bool) -> Command {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = source.with_file_name("crates").join("rsock-compare/scripts/Echo.java");
    let mut command = end(tools::require("java").command(), with_library);
    command.arg(source).args([part, &port.to_string(), &size.to_string()]);
    command
}

/// The client compares messages of up to 70,000 bytes.
#[test]
#[ignore = "needs Java: cargo xtask test --all"]
fn java_nio_answers_the_script() {
    let load = Load {
        name: "Java NIO",
        client: &|port, step, with_library| script("echo", port, &seconds(step), with_library),
        check: &|_, _| {},
    };
    load.leaves_tcp(|port, with_library| {
        start(&mut java("server", port, 4096, with_library), port)
    });
}

/// The client compares each message that comes back.
#[test]
#[ignore = "needs Java: cargo xtask test --all"]
fn java_nio_asks_java_nio() {
    let load = Load {
        name: "Java NIO and Java NIO",
        client: &|port, step, with_library| {
            let mut client = java("client", port, 64, with_library);
            client.arg(seconds(step));
            client
        },
        check: &|output, _| assert!(output.contains("rate: "), "{output}"),
    };
    load.leaves_tcp(|port, with_library| start(&mut java("server", port, 64, with_library), port));
}
