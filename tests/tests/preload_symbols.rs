//! What the preload library exports, and which of its own exports it calls.

use rsock_tests::preload_library;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

fn listed() -> BTreeSet<String> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/rsock-preload/symbols.txt");
    let list = fs::read_to_string(list).expect("the reviewed list");
    list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn output(program: &str, args: &[&str]) -> String {
    let out = Command::new(program).args(args).arg(preload_library()).output().expect(program);
    assert!(out.status.success(), "{program}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("symbol names are ASCII")
}

#[test]
fn the_library_exports_what_is_on_the_reviewed_list() {
    let names = output("nm", &["--dynamic", "--defined-only", "--format=posix"]);
    let exported: BTreeSet<String> =
        names.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    assert_eq!(exported, listed());
}

/// A hook that another hook or the standard library calls is entered from inside, and passes
/// through. Nothing below us may reach for any other: rustix makes raw system calls.
#[test]
fn nothing_below_the_hooks_calls_them() {
    /// Called by the standard library, for descriptors of its own.
    const STANDARD: &[&str] = &["close", "fcntl", "poll", "read", "write", "writev"];
    /// Called by another hook that is an alias or a checked form of it.
    const HOOKS: &[&str] = &[
        "connect",
        "dup2",
        "fclose",
        "fdopen",
        "ppoll",
        "preadv2",
        "pwritev2",
        "recv",
        "recvfrom",
        "recvmsg",
        "select",
        "send",
        "sendfile",
        "sendmsg",
        "sigaction",
        "signal",
        "sysv_signal",
    ];
    let relocations = output("readelf", &["--relocs", "--wide"]);
    let hooks = listed();
    let called: BTreeSet<&str> = relocations
        .split_whitespace()
        .map(|word| word.split('@').next().unwrap_or(word))
        .filter(|word| hooks.contains(*word))
        .collect();
    let unexpected: Vec<&str> =
        called.into_iter().filter(|n| !STANDARD.contains(n) && !HOOKS.contains(n)).collect();
    assert!(unexpected.is_empty(), "called from inside: {unexpected:?}");
}
