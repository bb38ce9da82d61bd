//! The comparison as a user meets it: what it refuses, and what it writes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

fn compare(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rsock-compare"));
    command.args(args).env_remove("LD_PRELOAD").env_remove("RSOCK_PRELOAD");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// One line on standard error that holds `part`, nothing on standard output, status 2.
fn assert_refused(mut command: Command, part: &str) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let stderr = text(&stderr);
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert_eq!(text(&stdout), "");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("rsock: ") && stderr.contains(part), "{stderr}");
}

/// A directory that goes away with the test.
struct Dir(PathBuf);

impl Dir {
    fn new(name: &str) -> Self {
        let path =
            std::env::temp_dir().join(format!("rsock-compare-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// An empty file in the library's place, which the linker skips with a warning.
    fn library(&self) -> PathBuf {
        let path = self.0.join("librsock_preload.so");
        fs::write(&path, "").unwrap();
        path.canonicalize().unwrap()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn help_is_not_a_mistake_and_names_the_command_as_users_call_it() {
    for args in [&["--help"][..], &["incast", "--help"], &["sweep", "--help"], &["--version"]] {
        let output = compare(args).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(text(&output.stdout).contains("rsock"), "{args:?}");
    }
    let help = compare(&["--help"]).output().unwrap();
    assert!(text(&help.stdout).contains("Usage: rsock compare [OPTIONS]"), "{help:?}");
}

#[test]
fn the_list_of_rows_needs_no_device_and_no_library() {
    let output = compare(&["--list"]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let list = text(&output.stdout);
    for row in ["rr ", "crr.pinned ", "perf.stream.1M ", "dgram.batch ", "memory ", "rdma.rr "] {
        assert!(list.lines().any(|line| line.starts_with(row)), "{row}: {list}");
    }
}

#[test]
fn both_ends_of_streams_at_rest_say_when_they_are_ready() {
    let args = ["hold", "--streams", "3", "--size", "100K"];
    let mut server = compare(&args).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let addr = line.trim().strip_prefix("listening on ").unwrap();
    let output = compare(&args).args(["--connect", addr]).stdin(Stdio::null()).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "ready\n");
}

#[test]
fn mistakes_are_refused_before_anything_runs() {
    let dir = Dir::new("compare");
    let library = dir.library();
    let compare = |args: &[&str]| {
        let mut command = compare(args);
        command.env("RSOCK_PRELOAD", &library);
        command
    };
    assert_refused(compare(&["--json", "/no/such/dir/x"]), "cannot write /no/such/dir/x");
    let directory = dir.0.to_str().unwrap();
    assert_refused(compare(&["--svg", directory]), "is a directory");
    assert_refused(compare(&["--runs", "0"]), "--runs");
    assert_refused(compare(&["--only", "pigeons"]), "pigeons");
    assert_refused(compare(&["sweep", "--sizes", "1,0"]), "--sizes");
    assert_refused(compare(&["sweep", "--read", "0"]), "--read");
    assert_refused(compare(&["sweep", "--wait", "epoll"]), "epoll");
    assert_refused(compare(&["--only", "rr", "--sides", "client"]), "--only services");
    assert_refused(compare(&["--only", "services", "--sides", "neither"]), "neither");
    let json = dir.0.join("left.json");
    let mut no_library = compare(&["--json", json.to_str().unwrap()]);
    no_library.env("RSOCK_PRELOAD", "/nonexistent.so");
    assert_refused(no_library, "/nonexistent.so");
    assert!(!json.exists());
}

#[test]
fn rows_that_could_not_run_are_marked_and_have_no_figures() {
    let dir = Dir::new("absent");
    let (json, svg) = (dir.0.join("c.json"), dir.0.join("c.svg"));
    let mut command = compare(&["--quick", "--runs", "1", "--only", "iperf3,perf.connect"]);
    let markdown = dir.0.join("c.md");
    command.arg("--json").arg(&json).arg("--svg").arg(&svg).arg("--markdown").arg(&markdown);
    // No program is found.
    command.env("PATH", "").env_remove("RSOCK_TOOLS").env("RSOCK_PRELOAD", dir.library());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("Not found in RSOCK_TOOLS or PATH: netperf, netserver, iperf3."));
    let line = table.lines().find(|line| line.starts_with("iperf3")).unwrap();
    assert!(line.contains("not run") && !line.contains("Gb/s"), "{line}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    let rows = json["rows"].as_array().unwrap();
    let row = |id: &str| rows.iter().find(|row| row["id"] == id).unwrap();
    assert_eq!(row("iperf3")["verdict"], "not_run");
    assert_eq!(row("iperf3")["samples"].as_array().unwrap().len(), 0);
    let measured = row("perf.connect")["samples"].as_array().unwrap();
    assert_eq!(measured.len(), 3);
    assert!(measured.iter().all(|s| s["value"].as_f64().unwrap() > 0.0), "{measured:?}");
    assert!(fs::read_to_string(svg).unwrap().starts_with("<svg"));
    let page = fs::read_to_string(markdown).unwrap();
    assert!(page.starts_with("### Unpinned\n"), "{page}");
    let cells =
        |label: &str| page.lines().find(|l| l.contains(label)).unwrap().matches('|').count();
    assert_eq!(cells("iperf3"), cells("---"));
}

/// The lines of a table and what is said below it, of rows that no program is found for.
fn without_programs(dir: &Dir, rows: &str, options: &[&str]) -> String {
    let mut command = compare(&["--runs", "1", "--pin", "no", "--only", rows]);
    command.args(options);
    command.env("PATH", "").env_remove("RSOCK_TOOLS").env("RSOCK_PRELOAD", dir.library());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[test]
fn a_service_that_is_missing_is_not_measured_and_the_reason_is_given() {
    let dir = Dir::new("services");
    let table = without_programs(&dir, "services.echo.nio,services.redis.cli,services.node", &[]);
    for (row, program) in [("echo.nio", "java"), ("redis.cli", "redis-server"), ("node", "node")] {
        let note = format!("services.{row}: not measured: {program} was not found");
        assert!(table.contains(&note), "{note}: {table}");
    }
}

/// The library is an empty file, so both sides use kernel TCP: nothing may pass for rsock.
#[test]
fn connections_that_stay_on_tcp_are_no_sample_of_rsock() {
    let dir = Dir::new("stay");
    let table = without_programs(&dir, "services.echo.tokio", &["--judge"]);
    let line = table.lines().find(|line| line.starts_with("Tokio echo")).unwrap();
    assert!(line.contains("FAIL") && line.contains("/s"), "{line}");
    assert!(table.contains("no connection of the library was seen"), "{table}");
}

#[test]
fn sides_on_tcp_are_measured_and_shown_where_they_are_asked_for() {
    let dir = Dir::new("sides");
    let (json, markdown) = (dir.0.join("c.json"), dir.0.join("c.md"));
    let mut command = compare(&["--runs", "1", "--pin", "no", "--only", "services.echo"]);
    command.args(["--sides", "tcp,client", "--beside", "1"]);
    command.arg("--json").arg(&json).arg("--markdown").arg(&markdown);
    command.env("PATH", "").env_remove("RSOCK_TOOLS").env("RSOCK_PRELOAD", dir.library());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(said.contains("Endless loops on the same CPUs: 1."), "{said}");
    assert!(said.contains("client alone") && !said.contains("server alone"), "{said}");
    let json: serde_json::Value = serde_json::from_slice(&fs::read(json).unwrap()).unwrap();
    assert_eq!(json["environment"]["endless_loops"], 1);
    let rows = json["rows"].as_array().unwrap();
    let row = rows.iter().find(|row| row["id"] == "services.echo.tokio").unwrap();
    for side in ["kernel", "client_alone", "on_tcp"] {
        assert!(row["medians"][side].as_f64().unwrap() > 0.0, "{side}: {row}");
    }
    // The library is an empty file, so that nothing leaves TCP.
    assert_eq!(row["need"]["ratio_at_least"]["least"], 0.97);
    let page = fs::read_to_string(markdown).unwrap();
    let head = page.lines().find(|line| line.contains("kernel")).unwrap();
    assert!(head.ends_with("| result | client alone | RSOCK_DEVICE=tcp |"), "{page}");
    let n_cells = |line: &str| line.matches('|').count();
    let lines: Vec<&str> = page.lines().filter(|line| line.starts_with('|')).collect();
    assert!(lines.iter().all(|line| n_cells(line) == n_cells(head)), "{page}");
}

/// The number of a process that this one has started as `end loop`.
fn loop_of(pid: u32) -> Option<u32> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let children = list.split_whitespace().map(|child| child.parse::<u32>().unwrap());
    let is_loop = |child: &u32| {
        let args = fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        args.ends_with(b"\0end\0loop\0")
    };
    children.into_iter().find(is_loop)
}

#[test]
fn an_endless_loop_does_not_outlive_the_command() {
    let dir = Dir::new("loops");
    let args = ["--runs", "1000", "--pin", "no", "--only", "services.echo.tokio", "--beside", "1"];
    let mut command = compare(&args);
    command.env("PATH", "").env_remove("RSOCK_TOOLS").env("RSOCK_PRELOAD", dir.library());
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut running = command.spawn().unwrap();
    let child = loop {
        if let Some(child) = loop_of(running.id()) {
            break child;
        }
        assert!(running.try_wait().unwrap().is_none());
        std::thread::yield_now();
    };
    running.kill().unwrap();
    running.wait().unwrap();
    // It may wait to be reaped by its new parent.
    let is_running = || {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
    };
    while is_running() {
        std::thread::yield_now();
    }
}

#[test]
fn services_alone_have_a_picture_of_their_own() {
    let dir = Dir::new("picture");
    let svg = dir.0.join("services.svg");
    let mut command = compare(&["--runs", "1", "--pin", "no", "--only", "services.node"]);
    command.arg("--svg").arg(&svg);
    command.env("PATH", "").env_remove("RSOCK_TOOLS").env("RSOCK_PRELOAD", dir.library());
    assert!(command.output().unwrap().status.success());
    let svg = fs::read_to_string(svg).unwrap();
    assert!(svg.contains("Node http 1K, 1 connection") && svg.contains("not measured"), "{svg}");
}

/// With an empty library, so over TCP on both sides.
#[test]
fn a_sweep_measures_every_size_with_every_way_to_wait() {
    let dir = Dir::new("sweep");
    let sweep = |more: &[&str]| {
        let mut command = compare(&["sweep", "--sizes", "1,5000,300K", "--read", "777"]);
        command.args(["--runs", "1", "--time", "0.02"]).args(more);
        let output = command.env("RSOCK_PRELOAD", dir.library()).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let rows: Vec<serde_json::Value> = serde_json::from_str(&sweep(&["--json"])).unwrap();
    let ways = ["blocking", "select", "poll", "nonblocking"];
    let expected = ways.iter().flat_map(|way| [1, 5000, 300 << 10].map(|size| (*way, size)));
    let found = rows.iter().map(|row| (row["wait"].as_str(), row["size"].as_u64()));
    assert!(found.eq(expected.map(|(way, size)| (Some(way), Some(size)))), "{rows:?}");
    for row in &rows {
        for rate in ["kernel_gbit_per_second", "rsock_gbit_per_second", "ratio"] {
            assert!(row[rate].as_f64().is_some_and(|rate| rate > 0.0), "{row}");
        }
    }
    let table = sweep(&["--wait", "select,blocking"]);
    assert!(table.contains("of 6 below 1.1\nlowest: "), "{table}");
    assert!(!table.contains("poll"), "{table}");
}

#[test]
fn every_answer_of_the_epoll_server_comes_back_to_its_connection() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    drop(listener);
    let mut server = compare(&["end", "epoll-server", &port]).spawn().unwrap();
    let args = ["end", "epoll-client", "--busy", "3", "--idle", "150", "--time", "0.2", &port];
    // Until the server listens.
    let attempts = std::iter::repeat_with(|| compare(&args).output().unwrap()).take(200);
    let output = attempts.into_iter().find(|output| output.status.success());
    server.kill().unwrap();
    server.wait().unwrap();
    let output = text(&output.unwrap().stdout);
    let rate = output.trim().strip_prefix("rate: ").unwrap().parse::<f64>().unwrap();
    assert!(rate > 0.0, "{output}");
}
