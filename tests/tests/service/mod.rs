//! What the tests of services share: programs, services, and clients of these until a connection
//! has left TCP.

#![allow(dead_code, reason = "each file of tests uses some")]

use rsock_tests::{
    Running, Watchdog, assert_worked, await_tcp_listener, has_left_tcp, has_used_ring,
    preload_library, tools,
};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

/// Which ends have the library: services, client.
pub(crate) const MIXED: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

pub(crate) fn free_port() -> u16 {
    rsock_tests::free_port(Ipv4Addr::LOCALHOST.into())
}

/// A program of one end.
pub(crate) fn program(name: &str, with_library: bool) -> Command {
    end(tools::require(name).command(), with_library)
}

/// A command of one end.
pub(crate) fn end(mut command: Command, with_library: bool) -> Command {
    command.env_remove("LD_PRELOAD");
    if with_library {
        command.env("LD_PRELOAD", preload_library());
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// As [`program`], for one that refuses to run as root. Its files are those of the user that the
/// test runs as.
pub(crate) fn program_of_user(name: &str, with_library: bool) -> Command {
    let plain = program(name, with_library);
    if !geteuid().is_root() {
        return plain;
    }
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-user=1000", "--map-group=1000"]).arg(plain.get_program());
    for (key, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The script, in one of its parts.
pub(crate) fn script(part: &str, port: u16, last: &str, with_library: bool) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/services.py");
    let mut command = program("python3", with_library);
    command.arg(path).args([part, &port.to_string(), last]);
    command
}

/// A directory of one test.
pub(crate) fn directory(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("services_{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory");
    dir
}

pub(crate) fn start(command: &mut Command, port: u16) -> Running {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Running::spawn_group(command).expect("the service starts");
    await_tcp_listener(port, &mut server);
    server
}

/// Whether `process` has moved more bytes over the ring than over TCP on one connection, before it
/// ends.
pub(crate) fn has_moved(process: &mut Running) -> bool {
    loop {
        if has_left_tcp(process.id()) {
            return true;
        }
        if process.try_wait().expect("its state").is_some() {
            return false;
        }
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// The processes that serve a test.
pub(crate) trait Servers {
    /// Their ids, without those of their children.
    fn ids(&self) -> Vec<u32>;
}

impl Servers for Running {
    fn ids(&self) -> Vec<u32> {
        vec![self.id()]
    }
}

impl Servers for Postgres {
    fn ids(&self) -> Vec<u32> {
        vec![self.0.id()]
    }
}

/// A client that checks what it is answered, or whose output tells.
pub(crate) struct Load<'a> {
    pub(crate) name: &'a str,
    /// The client of a port, with the library or without; each step is some times as long as the
    /// one before, from one second or less on.
    pub(crate) client: &'a dyn Fn(u16, u32, bool) -> Command,
    /// What it has printed at this step.
    pub(crate) check: &'a dyn Fn(&str, u32),
}

/// Many times what a load needs: most of them begin with half a second.
const LIMIT: Duration = Duration::from_secs(600);

/// How many steps a client has.
const STEPS: u32 = 4;

impl Load<'_> {
    /// In all mixed pairs; with the library in both ends until a connection of both has left TCP.
    pub(crate) fn leaves_tcp<S: Servers>(&self, mut services: impl FnMut(u16, bool) -> S) {
        let _watchdog = Watchdog::new(LIMIT);
        for (server, client) in MIXED {
            let is_expected = server && client;
            let n_steps = if is_expected { STEPS } else { 1 };
            let has_left = (0..n_steps).any(|step| {
                let port = free_port();
                let running = services(port, server);
                let mut ends = [false, false];
                self.run(port, step, client, |client| {
                    let looked_at = [vec![client], with_children(running.ids())];
                    for (end, ids) in ends.iter_mut().zip(looked_at) {
                        *end = *end || ids.into_iter().any(has_left_tcp);
                    }
                });
                ends == [true, true]
            });
            assert_eq!(has_left, is_expected, "{}, {server} {client}", self.name);
        }
    }

    /// In all mixed pairs, without a byte on the ring: its connections end too soon for that.
    pub(crate) fn stays_on_tcp<S: Servers>(&self, mut services: impl FnMut(u16, bool) -> S) {
        let _watchdog = Watchdog::new(LIMIT);
        for (server, client) in MIXED {
            let port = free_port();
            let running = services(port, server);
            let name = format!("{}, {server} {client}", self.name);
            self.run(port, 0, client, |client| {
                let servers = with_children(running.ids());
                let has_left = [vec![client], servers].concat().into_iter().any(has_used_ring);
                assert!(!has_left, "{name} has left TCP");
            });
        }
    }

    /// Runs the client, and looks at its process again and again, and once more at its end.
    pub(crate) fn run(&self, port: u16, step: u32, with_library: bool, mut look: impl FnMut(u32)) {
        let name = format!("{}, step {step}", self.name);
        let path = directory(&format!("output_{port}")).join("output");
        let output = File::create(&path).expect("a file");
        let mut command = (self.client)(port, step, with_library);
        command.stdout(output.try_clone().expect("the file")).stderr(output);
        let mut client = Running::spawn(&mut command).expect("a client");
        let status = loop {
            look(client.id());
            if let Some(status) = client.try_wait().expect("its state") {
                break status;
            }
            thread::park_timeout(Duration::from_millis(2));
        };
        look(client.id());
        let said = fs::read_to_string(path).expect("its output");
        assert!(status.success(), "{name}: {status}\n{said}");
        (self.check)(&said, step);
    }
}

/// These processes and their children.
fn with_children(mut ids: Vec<u32>) -> Vec<u32> {
    let children = ids.iter().flat_map(|id| {
        // It may have ended.
        let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let list = list.unwrap_or_default();
        list.split_whitespace().filter_map(|id| id.parse().ok()).collect::<Vec<u32>>()
    });
    let children: Vec<u32> = children.collect();
    ids.extend(children);
    ids
}

/// Runs the script's client `part` against services that `start` starts, at a port, in all mixed
/// pairs.
pub(crate) fn serves<S>(part: &str, mut services: impl FnMut(u16, bool) -> S) {
    let _watchdog = Watchdog::new(LIMIT);
    for (server, client) in MIXED {
        // Longer and longer, until a connection leaves TCP.
        for seconds in [0, 2, 8, 32] {
            let port = free_port();
            let running = services(port, server);
            let name = format!("{part} for {seconds} s, {server} {client}");
            let command = &mut script(part, port, &seconds.to_string(), client);
            let mut client_process = Running::spawn(command).expect("a client");
            let is_expected = server && client;
            let moved = is_expected && has_moved(&mut client_process);
            assert_worked(&name, &client_process.output().expect("the client ends"));
            drop(running);
            assert!(!is_expected || moved || seconds < 32, "{part} never left TCP");
            if moved || !is_expected {
                break;
            }
        }
    }
}

/// nginx, with a master and a worker that it forks.
pub(crate) fn nginx(dir: &Path, port: u16, with_library: bool) -> Running {
    let output = script("files", 0, dir.to_str().expect("UTF-8"), false).output();
    assert_worked("the files", &output.expect("python3"));
    let dir = dir.to_str().expect("a path in UTF-8");
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|of| format!("{of}_temp_path {dir};"))
        .join(" ");
    // A worker of another user would not be trusted. Without privileges the line has no effect.
    let configuration = format!(
        "user root; daemon off; worker_processes 1; pid {dir}/pid; error_log {dir}/errors;
         events {{ worker_connections 256; }}
         http {{ access_log off; sendfile off; keepalive_requests 100000000; {temporary}
         server {{ listen 127.0.0.1:{port}; root {dir}; }} }}"
    );
    fs::write(format!("{dir}/nginx.conf"), configuration).expect("the configuration");
    let mut server = program("nginx", with_library);
    server.args(["-p", dir, "-c", &format!("{dir}/nginx.conf"), "-e", &format!("{dir}/errors")]);
    start(&mut server, port)
}

/// PostgreSQL, told to end when it is dropped: its children lead process groups of their own, and
/// it has memory that would outlive it.
pub(crate) struct Postgres(pub(crate) Running);

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("its id");
        let _ = kill_process(pid, Signal::INT);
        let _ = Child::wait(&mut self.0);
    }
}

/// Makes a cluster of PostgreSQL for one test.
pub(crate) fn cluster(name: &str) -> PathBuf {
    let dir = directory(name).join("data");
    let mut init = program_of_user("initdb", false);
    init.args(["-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8", "-D"]);
    assert_worked("initdb", &init.arg(&dir).output().expect("initdb"));
    dir
}

pub(crate) fn postgres(cluster: &Path, port: u16, with_library: bool) -> Postgres {
    let mut server = program_of_user("postgres", with_library);
    server.args(["-h", "127.0.0.1", "-k", "", "-F", "-p", &port.to_string(), "-D"]).arg(cluster);
    let server = Postgres(start(&mut server, port));
    // It listens before it answers.
    let _watchdog = Watchdog::new(LIMIT);
    let is_ready = || {
        let mut ask = program_of_user("pg_isready", false);
        ask.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
        ask.status().expect("pg_isready").success()
    };
    while !is_ready() {
        thread::yield_now();
    }
    server
}

pub(crate) fn redis(port: u16, with_library: bool) -> Running {
    let mut server = program("redis-server", with_library);
    server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
    start(&mut server, port)
}

pub(crate) fn memcached(port: u16, with_library: bool) -> Running {
    let mut server = program("memcached", with_library);
    server.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
    start(&mut server, port)
}
