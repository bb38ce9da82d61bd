//! Services of Debian over the preload library, unmodified: what they answer is right in all mixed
//! pairs, and with the library in both ends their connections leave TCP, although an end waits in
//! epoll, or a child that the server has forked goes on with what its parent has accepted.

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
const MIXED: [(bool, bool); 3] = [(true, true), (true, false), (false, true)];

fn free_port() -> u16 {
    rsock_tests::free_port(Ipv4Addr::LOCALHOST.into())
}

/// A program of one end.
fn program(name: &str, with_library: bool) -> Command {
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
fn program_of_user(name: &str, with_library: bool) -> Command {
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
fn script(part: &str, port: u16, last: &str, with_library: bool) -> Command {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/services.py");
    let mut command = program("python3", with_library);
    command.arg(path).args([part, &port.to_string(), last]);
    command
}

/// A directory of one test.
fn directory(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("services_{name}"));
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory");
    dir
}

fn start(command: &mut Command, port: u16) -> Running {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Running::spawn_group(command).expect("the service starts");
    await_tcp_listener(port, &mut server);
    server
}

/// Whether `process` has moved more bytes over the ring than over TCP on one connection, before it
/// ends.
fn has_moved(process: &mut Running) -> bool {
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
fn serves<S>(part: &str, mut services: impl FnMut(u16, bool) -> S) {
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

#[test]
fn redis() {
    serves("redis", |port, with_library| {
        let mut server = program("redis-server", with_library);
        server.args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        vec![start(&mut server, port)]
    });
}

#[test]
fn memcached() {
    serves("memcached", |port, with_library| {
        let mut server = program("memcached", with_library);
        server.args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-p", &port.to_string()]);
        vec![start(&mut server, port)]
    });
}

/// nginx, with a master and a worker that it forks.
fn nginx(dir: &Path, port: u16, with_library: bool) -> Running {
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

#[test]
fn nginx_with_a_forked_worker() {
    let dir = directory("nginx");
    serves("http", |port, with_library| vec![nginx(&dir, port, with_library)]);
}

#[test]
fn haproxy_before_nginx() {
    let dir = directory("haproxy");
    serves("http", |port, with_library| {
        let behind = free_port();
        let nginx = nginx(&dir, behind, with_library);
        let configuration = format!(
            "global\n  maxconn 200\ndefaults\n  mode http\n  timeout connect 60s\n  timeout client \
             60s\n  timeout server 60s\nfrontend front\n  bind 127.0.0.1:{port}\n  \
             default_backend back\nbackend back\n  server one 127.0.0.1:{behind}\n"
        );
        let path = dir.join("haproxy.cfg");
        fs::write(&path, configuration).expect("the configuration");
        let mut server = program("haproxy", with_library);
        server.arg("-f").arg(path);
        vec![start(&mut server, port), nginx]
    });
}

#[test]
fn asyncio() {
    serves("echo", |port, with_library| {
        vec![start(&mut script("server", port, "", with_library), port)]
    });
}

/// socat, which forks a child for each connection, and closes it itself.
fn socat(to: &str) {
    serves("echo", |port, with_library| {
        let mut server = program("socat", with_library);
        server.arg(format!("TCP-LISTEN:{port},bind=127.0.0.1,fork,reuseaddr")).arg(to);
        start(&mut server, port)
    });
}

#[test]
fn socat_with_a_child_for_each_connection() {
    socat("PIPE");
}

/// The child forks another process, which has the connection until it becomes `cat`.
#[test]
fn socat_with_a_program_for_each_connection() {
    socat("EXEC:cat");
}

/// Each child accepts connections, one after the other.
#[test]
fn apache_with_children_of_one_connection_each() {
    let dir = directory("apache");
    let dir = dir.to_str().expect("a path in UTF-8");
    let output = script("files", 0, dir, false).output();
    assert_worked("the files", &output.expect("python3"));
    let program_file = fs::canonicalize(tools::require("apache2").path).expect("apache2");
    let modules = program_file.parent().expect("its directory").join("../lib/apache2/modules");
    let modules = modules.display();
    serves("http", |port, with_library| {
        let configuration = format!(
            "ServerRoot {dir}\nServerName localhost\nListen 127.0.0.1:{port}\nUser #1000\n\
             Group #1000\nPidFile {dir}/pid.{port}\nErrorLog {dir}/errors\nMutex pthread\n\
             LoadModule mpm_prefork_module {modules}/mod_mpm_prefork.so\n\
             LoadModule authz_core_module {modules}/mod_authz_core.so\n\
             StartServers 10\nMaxKeepAliveRequests 0\nKeepAliveTimeout 240\nTimeout 240\n\
             DocumentRoot {dir}\n"
        );
        let path = format!("{dir}/apache.conf");
        fs::write(&path, configuration).expect("the configuration");
        let mut server = program_of_user("apache2", with_library);
        server.args(["-f", &path, "-DFOREGROUND"]);
        start(&mut server, port)
    });
}

/// PostgreSQL, told to end when it is dropped: its children lead process groups of their own, and
/// it has memory that would outlive it.
struct Postgres(Running);

impl Drop for Postgres {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw).expect("its id");
        let _ = kill_process(pid, Signal::INT);
        let _ = Child::wait(&mut self.0);
    }
}

/// A child for each connection, which its parent has accepted.
#[test]
fn postgresql() {
    let dir = directory("postgresql").join("data");
    let mut init = program_of_user("initdb", false);
    init.args(["-U", "postgres", "-A", "trust", "--no-sync", "--locale=C", "-E", "UTF8", "-D"]);
    assert_worked("initdb", &init.arg(&dir).output().expect("initdb"));
    serves("postgresql", |port, with_library| {
        let mut server = program_of_user("postgres", with_library);
        server.args(["-h", "127.0.0.1", "-k", "", "-F", "-p", &port.to_string(), "-D"]).arg(&dir);
        Postgres(start(&mut server, port))
    });
}
