//! What the tests of services share: programs, services, and clients of these until a connection
//! has left TCP.

#![allow(dead_code, reason = "each file of tests uses some")]

use rsock_tests::{
    Running, Watchdog, assert_worked, await_tcp_listener, has_left_tcp, preload_library, tools,
};
use rustix::process::{Pid, Signal, geteuid, kill_process};
use std::fs;
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
    let mut command = tools::require(name).command();
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

/// Runs the script's client `part` against services that `start` starts, at a port, in all mixed
/// pairs.
pub(crate) fn serves<S>(part: &str, mut services: impl FnMut(u16, bool) -> S) {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
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
pub(crate) struct Postgres(Running);

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("its id");
        let _ = kill_process(pid, Signal::INT);
        let _ = Child::wait(&mut self.0);
    }
}
