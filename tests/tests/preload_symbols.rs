//! What the preload library exports, and which of its own exports it calls.

use rsock_tests::{c_library, preload_library};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

fn listed() -> BTreeSet<String> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/rsock-preload/symbols.txt");
    let list = fs::read_to_string(list).expect("the reviewed list");
    list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn output(program: &str, args: &[&str], library: &Path) -> String {
    let out = Command::new(program).args(args).arg(library).output().expect(program);
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("symbol names are ASCII")
}

#[test]
fn the_library_exports_what_is_on_the_reviewed_list() {
    let names =
        output("nm", &["--dynamic", "--defined-only", "--format=posix"], &preload_library());
    let exported: BTreeSet<String> =
        names.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    assert_eq!(exported, listed());
}

/// Hooks call each other, as `syscall` calls most of them. What lies below them would be entered
/// from inside, and may not reach for any: rustix and `rsock_verbs::raw` make system calls without
/// libc. The C library is what lies below, without the hooks.
#[test]
fn nothing_below_the_hooks_calls_them() {
    /// Called by the standard library, for descriptors of its own and to wait; and to load the
    /// libraries of RDMA devices, which bind to libc as this one does.
    const STANDARD: &[&str] =
        &["close", "dlopen", "fcntl", "poll", "read", "syscall", "write", "writev"];
    let names = output("nm", &["--dynamic", "--undefined-only", "--format=posix"], &c_library());
    let called = names.lines().filter_map(|line| line.split(['@', ' ']).next());
    let hooks = listed();
    let unexpected: Vec<&str> =
        called.filter(|name| hooks.contains(*name) && !STANDARD.contains(name)).collect();
    assert!(unexpected.is_empty(), "called from inside: {unexpected:?}");
}

/// The loader searches what a preloaded library needs before the program's own libraries, for each
/// of their symbols: short programs would take longer (decision 21).
#[test]
fn the_library_needs_libc_alone() {
    let entries = output("readelf", &["--wide", "--dynamic"], &preload_library());
    let needed: Vec<&str> = entries
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| line.split(['[', ']']).nth(1))
        .collect();
    assert_eq!(needed, ["libc.so.6"]);
}

/// The exported functions lie together, so that a program that starts touches few pages of the
/// library (decision 34).
#[test]
fn the_exported_functions_lie_in_one_section() {
    let sections = output("readelf", &["--wide", "--sections"], &preload_library());
    let hooks = sections
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix('[')?.split_once(']'))
        .find(|(_, rest)| rest.split_whitespace().next() == Some("rsock_hooks"))
        .map(|(number, _)| number.trim())
        .expect("the section");
    let symbols = output("readelf", &["--wide", "--dyn-syms"], &preload_library());
    // Number, value, size, type, binding, visibility, section, name.
    let elsewhere: Vec<&str> = symbols
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|columns| columns.get(3) == Some(&"FUNC") && columns[6] != "UND")
        .filter(|columns| columns[6] != hooks)
        .map(|columns| columns[7])
        .collect();
    assert!(elsewhere.is_empty(), "elsewhere: {elsewhere:?}");
}
