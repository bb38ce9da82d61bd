//! The C interface: C programs compiled against `rsock.h` and linked to `librsock.so`, and the
//! symbols that it exports.

use rsock_tests::{Running, Watchdog, c_library, c_library_dir, free_port};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Compiles `tests/capi_c/NAME.c`, warnings being errors. Each time into a file of its own: another
/// test may run the same program meanwhile.
fn compile(name: &str) -> PathBuf {
    static N_COMPILED: AtomicU32 = AtomicU32::new(0);
    let n = N_COMPILED.fetch_add(1, Ordering::Relaxed);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("capi-{name}-{n}"));
    let out = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(here().join("capi_c").join(name).with_extension("c"))
        .arg("-I")
        .arg(here().join("../crates/rsock-capi/include"))
        .arg("-L")
        .arg(c_library_dir())
        .arg("-lrsock")
        .output()
        .expect("a C compiler named cc");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

fn run(name: &str) {
    run_with(name, &[]);
}

fn run_with(name: &str, env: &[(&str, &str)]) {
    let _watchdog = Watchdog::new(Duration::from_secs(300));
    let program = compile(name);
    let child = Running::spawn(
        Command::new(program)
            // Not what cargo put there, which may be a stale library of another profile.
            .env("LD_LIBRARY_PATH", c_library_dir())
            .env("OWN_PORT", free_port(Ipv4Addr::LOCALHOST.into()).to_string())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    )
    .expect("the program starts");
    let out = child.output().expect("the program ends");
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{name}: {}\n{said}", out.status);
}

#[test]
fn every_function_has_the_type_of_the_original_header() {
    run("signatures");
}

#[test]
fn every_way_to_send_and_receive_carries_the_same_bytes() {
    run("transfer");
}

#[test]
fn failures_are_minus_one_and_an_errno() {
    run("errors");
}

#[test]
fn waiting_works_for_sockets_and_descriptors() {
    run("waiting");
}

#[test]
fn options_are_stored_returned_and_refused() {
    run("options");
}

#[test]
fn streams_end_as_they_should() {
    run("endings");
}

#[test]
fn direct_writes_reach_memory_of_every_kind() {
    run("iomap");
}

#[test]
fn datagrams_arrive_and_processes_that_restart_are_reached_again() {
    run("datagrams");
    run_with("datagrams", &[("RSOCK_SPIN_US", "0")]);
}

/// As on adapters without write-with-immediate, and without any spinning.
#[test]
fn signalling_by_send_and_no_spinning_change_nothing() {
    for name in ["transfer", "waiting", "endings", "iomap"] {
        run_with(name, &[("RSOCK_WIRE", "send")]);
        run_with(name, &[("RSOCK_SPIN_US", "0")]);
    }
}

#[test]
fn the_library_exports_what_is_on_the_reviewed_list() {
    let list = here().join("../crates/rsock-capi/symbols.txt");
    let list = fs::read_to_string(list).expect("the reviewed list");
    let listed: BTreeSet<&str> = list.lines().filter(|line| !line.starts_with('#')).collect();
    let out = Command::new("nm")
        .args(["--dynamic", "--defined-only", "--format=posix"])
        .arg(c_library())
        .output()
        .expect("nm");
    assert!(out.status.success(), "nm: {}", String::from_utf8_lossy(&out.stderr));
    let names = String::from_utf8(out.stdout).expect("symbol names are ASCII");
    let exported: BTreeSet<&str> =
        names.lines().filter_map(|line| line.split(' ').next()).collect();
    assert_eq!(exported, listed);
}
