//! Two processes that sleep between their messages, each in an epoll set, ring one another through
//! doorbell pipes.

mod epoll_echo;

use rsock_core::accelerate::FallbackReason;
use rsock_tests::{Piped, Watchdog, fallback_reasons};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process;
use std::time::Duration;

const N: usize = 3;
/// Enough for each end to sleep often, also where the other one mostly is faster, and fewer than
/// there is room for rings in a pipe.
const FEW_TRIPS: &str = "1200";
/// Enough to fill the pipes.
const MANY_TRIPS: &str = "12000";

/// The pipes that a process has open.
fn pipes(pid: u32) -> BTreeSet<String> {
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("proc").filter_map(|entry| {
        let target = fs::read_link(entry.ok()?.path()).ok()?.to_str()?.to_owned();
        target.starts_with("pipe:").then_some(target)
    });
    open.collect()
}

/// The pipes that a child has made or opened: it shares its standard ones with this process, and
/// what this process has itself inherited.
fn pipes_of(child: &Piped) -> BTreeSet<String> {
    &pipes(child.id()) - &pipes(process::id())
}

/// Whether there are bytes in a pipe that a process has open.
fn has_bytes(pid: u32, pipe: &str) -> bool {
    let is_it = |path: &PathBuf| fs::read_link(path).is_ok_and(|target| target == Path::new(pipe));
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("proc");
    let path = open.filter_map(|entry| Some(entry.ok()?.path())).find(is_it).expect("the pipe");
    rustix::io::ioctl_fionread(File::open(path).expect("open")).expect("FIONREAD") != 0
}

/// Two ends whose waits do not spin.
fn ends(trips: &str) -> [Piped; 2] {
    epoll_echo::ends(N, trips, &[("RSOCK_SPIN_US", "0")])
}

#[test]
fn two_ends_that_sleep_in_epoll_ring_each_other_by_pipes() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let [server, client] = ends(FEW_TRIPS);
    let [servers, clients] = [&server, &client].map(pipes_of);
    assert_eq!(servers.len(), 2, "its own and the client's: {servers:?}");
    assert_eq!(servers, clients);
    for pipe in &servers {
        assert!(has_bytes(server.id(), pipe), "{pipe} was never rung");
    }
    client.finish();
    server.finish();
}

#[test]
fn two_ends_go_on_when_their_pipes_are_full() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let [server, client] = ends(MANY_TRIPS);
    client.finish();
    server.finish();
}

#[test]
fn a_set_with_a_pipe_is_ready_for_poll_and_for_another_set_only_while_a_stream_is() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let [server, mut client] = ends(FEW_TRIPS);
    assert_eq!(pipes_of(&client).len(), 2);
    assert_eq!(client.ask("look"), "done");
    client.finish();
    server.finish();
}

#[test]
fn streams_of_a_set_with_a_pipe_go_on_over_tcp_after_a_fork() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let [server, mut client] = ends(FEW_TRIPS);
    assert_eq!(pipes_of(&client).len(), 2);
    assert_eq!(client.ask("fork"), "done");
    assert_eq!(fallback_reasons(client.id()), [FallbackReason::Fork; N]);
    client.finish();
    server.finish();
}
