//! Pages over HTTP: nginx, nginx behind haproxy, and Node, under the loads of wrk and ab.

use super::{directory, found, no_rate, number, start, write};
use crate::bench::Bench;
use crate::case::{Case, Connections, Service, Side};
use crate::server::Server;
use rsock_cli::error::Error;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Starts nginx with one page of `size` bytes.
pub(super) fn start_nginx(
    bench: &Bench,
    case: &Case,
    side: Side,
    size: usize,
) -> Result<Server, Error> {
    let nginx = found(bench.programs.nginx.as_ref(), "nginx")?;
    start(bench, case, side, nginx, |command, port| {
        let dir = directory(port)?;
        write(&dir.join("page"), &page(size))?;
        let path = dir.join("nginx.conf");
        write(&path, &nginx_configuration(&dir, port))?;
        command.arg("-p").arg(&dir).arg("-c").arg(path).arg("-e").arg(dir.join("errors"));
        Ok(())
    })
}

/// Starts haproxy before the server at the port `behind`.
pub(super) fn start_haproxy(
    bench: &Bench,
    case: &Case,
    side: Side,
    behind: u16,
) -> Result<Server, Error> {
    let haproxy = found(bench.programs.haproxy.as_ref(), "haproxy")?;
    start(bench, case, side, haproxy, |command, port| {
        let path = directory(port)?.join("haproxy.cfg");
        write(&path, &haproxy_configuration(port, behind))?;
        command.arg("-f").arg(path);
        Ok(())
    })
}

/// Starts a server of Node's `http` module.
pub(super) fn start_node(bench: &Bench, case: &Case, side: Side) -> Result<Server, Error> {
    let node = found(bench.programs.node.as_ref(), "node")?;
    start(bench, case, side, node, |command, port| {
        let path = directory(port)?.join("page.js");
        write(&path, include_str!("../../../scripts/page.js"))?;
        command.arg(path).args([port.to_string(), Service::PAGE.to_string()]);
        Ok(())
    })
}

pub(super) fn ab(bench: &Bench, clients: u16, port: u16) -> Result<Command, Error> {
    check_page(port, Service::PAGE)?;
    let mut run = found(bench.programs.ab.as_ref(), "ab")?.command();
    run.args(["-q", "-c", &clients.to_string(), "-t", &bench.time.as_secs().to_string()]);
    run.args(["-n", "100000000", &format!("http://127.0.0.1:{port}/page")]);
    Ok(run)
}

/// wrk with pages of [`Service::PAGE`] bytes and connections that are kept.
pub(super) fn wrk_kept(bench: &Bench, connections: u16, port: u16) -> Result<Command, Error> {
    wrk(bench, connections, Connections::Kept, Service::PAGE, port)
}

pub(super) fn wrk(
    bench: &Bench,
    connections: u16,
    reuse: Connections,
    size: usize,
    port: u16,
) -> Result<Command, Error> {
    check_page(port, size)?;
    let mut command = found(bench.programs.wrk.as_ref(), "wrk")?.command();
    command.args(["-t1", "-c", &connections.to_string()]);
    command.args(["-d", &bench.time.as_secs().to_string()]);
    if reuse == Connections::Closed {
        command.args(["-H", "Connection: close"]);
    }
    command.arg(format!("http://127.0.0.1:{port}/page"));
    Ok(command)
}

pub(super) fn parse_ab(output: &str) -> Result<f64, Error> {
    if let Some(failed) = number(output, "Failed requests", ':').filter(|&n| n != 0.0) {
        return Err(Error::Failed(format!("ab: {failed} failed requests")));
    }
    number(output, "Requests per second", ':').ok_or_else(|| no_rate("ab"))
}

pub(super) fn parse_wrk(output: &str) -> Result<f64, Error> {
    let mut lines = output.lines().map(str::trim);
    let is_error = |line: &&str| line.starts_with("Socket errors") || line.starts_with("Non-2xx");
    if let Some(errors) = lines.find(is_error) {
        return Err(Error::Failed(format!("wrk: {errors}")));
    }
    number(output, "Requests/sec", ':').ok_or_else(|| no_rate("wrk"))
}

fn page(size: usize) -> String {
    "x".repeat(size)
}

/// Gets the page once and compares it, since the loads only look at the status of the answers.
fn check_page(port: u16, size: usize) -> Result<(), Error> {
    let answer = get_page(port).map_err(Error::io("no answer of the service"))?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    if body != Some(&page(size)) {
        return Err(Error::Failed("the service answers with another page".to_owned()));
    }
    Ok(())
}

fn get_page(port: u16) -> io::Result<String> {
    const LIMIT: Duration = Duration::from_secs(20);
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.write_all(b"GET /page HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
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

    #[test]
    fn the_rates_of_both_loads_are_found() {
        let ab = "Failed requests:        0\nRequests per second:    21.50 [#/sec] (mean)\n";
        assert_eq!(parse_ab(ab).unwrap(), 21.5);
        let wrk = "Running 2s test\n  1 threads\nRequests/sec:  97251.65\nTransfer/sec: 1MB\n";
        assert_eq!(parse_wrk(wrk).unwrap(), 97_251.65);
    }

    #[test]
    fn errors_of_the_load_are_no_rate() {
        assert!(parse_ab("Failed requests: 3\nRequests per second: 2 [#/sec]\n").is_err());
        let output = "  Socket errors: connect 0, read 3, write 0, timeout 0\nRequests/sec: 5.0\n";
        let message = parse_wrk(output).unwrap_err().to_string();
        assert!(message.contains("read 3"), "{message}");
        assert!(parse_wrk("").is_err());
    }
}
