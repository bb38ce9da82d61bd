//! Two hosts on one wire, each with an RDMA device. `cargo xtask test` runs this in two guests of the
//! lab at once.

use rsock_tests::hosts::{Guest, Role};
use rsock_tests::{Running, Watchdog, await_rdma_listener, c_library};
use std::process::{Command, Stdio};
use std::time::Duration;

/// `rstream` of rdmacm-utils: over its own rsockets, or over `librsock.so`.
fn rstream(with_librsock: bool, args: &[&str]) -> Running {
    let mut command = Command::new("rstream");
    if with_librsock {
        command.env("LD_PRELOAD", c_library());
    }
    command.args(args).args(["-T", "b", "-T", "v"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::spawn(&mut command).expect("rstream starts")
}

/// Guest b's client, over C's rsockets or ours, and guest a's server over the other.
fn rstream_between_hosts(name: &'static str, server_is_ours: bool) {
    const PORT: u16 = 7471;
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let guest = Guest::begin(name);
    for (i, [size, count, iterations]) in
        [["1", "10", "20"], ["70000", "5", "4"], ["3000001", "2", "2"]].into_iter().enumerate()
    {
        let size = ["-p", &PORT.to_string(), "-S", size, "-C", count, "-I", iterations];
        let run = match guest.role {
            Role::A => {
                let ip = guest.ip().to_string();
                let mut server =
                    rstream(server_is_ours, &[&size[..], &["-b", ip.as_str()]].concat());
                await_rdma_listener(PORT, &mut server);
                guest.meet(&format!("listening-{i}"));
                server
            }
            Role::B => {
                guest.meet(&format!("listening-{i}"));
                let ip = guest.peer_ip().to_string();
                rstream(!server_is_ours, &[&size[..], &["-s", ip.as_str()]].concat())
            }
        };
        let out = run.output().expect("its end");
        let said = String::from_utf8_lossy(&out.stdout);
        let complained = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{}\n{said}{complained}", out.status);
        assert!(said.lines().any(|line| line.starts_with("custom")), "no result in\n{said}");
        guest.meet(&format!("done-{i}"));
    }
}

#[test]
fn c_rsockets_connect_to_us_on_another_host() {
    rstream_between_hosts("c-connects", true);
}

#[test]
fn we_connect_to_c_rsockets_on_another_host() {
    rstream_between_hosts("we-connect", false);
}
