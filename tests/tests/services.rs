//! Services of Debian over the preload library, unmodified: what they answer is right in all mixed
//! pairs, and with the library in both ends their connections leave TCP, although an end waits in
//! epoll, or a child that the server has forked goes on with what its parent has accepted.

mod service;

use rsock_tests::{assert_worked, tools};
use service::{
    cluster, directory, free_port, nginx, postgres, program, program_of_user, script, serves, start,
};
use std::fs;

#[test]
fn redis() {
    serves("redis", service::redis);
}

#[test]
fn memcached() {
    serves("memcached", service::memcached);
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

/// A child for each connection, which its parent has accepted.
#[test]
fn postgresql() {
    let cluster = cluster("postgresql");
    serves("postgresql", |port, with_library| postgres(&cluster, port, with_library));
}
