//! The echo, axum and RPC examples over rsockets on an RDMA device. `cargo xtask test` runs
//! this in the lab.

use rsock_tests::{Watchdog, assert_worked};
use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Runs both ends of a built example in one process; what it says after where it listens.
fn run(name: &str) -> String {
    let _watchdog = Watchdog::new(Duration::from_secs(120));
    let me = env::current_exe().expect("a test has an executable");
    let dir: PathBuf = me.ancestors().nth(2).expect("it lies in PROFILE/deps").join("examples");
    let out = Command::new(dir.join(name))
        .args(["--rsockets", "both", "10.9.0.1:0"])
        .env("RSOCK_DEVICE", "rdma")
        .output()
        .expect("it runs");
    let said = assert_worked(name, &out);
    let (first, said) = said.split_once('\n').expect("lines");
    assert!(first.starts_with("listening on 10.9.0.1:"), "{first}");
    said.to_owned()
}

#[test]
fn an_echo_over_the_device_returns_its_bytes() {
    assert_eq!(run("tokio_echo"), "10000 echoes; past TCP at the end: true\n");
}

#[test]
fn an_axum_service_answers() {
    assert_eq!(run("tokio_axum"), "hello, axum\nhello, hyper\nhello, rsock\n");
}

#[test]
fn calls_are_answered() {
    let said = run("tokio_rpc");
    let rate = said.strip_prefix("32 clients: ").and_then(|said| said.split_once(' '));
    assert!(rate.expect("a rate").0.parse::<u64>().expect("a number") > 0, "{said}");
}
