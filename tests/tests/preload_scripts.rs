//! Interpreters behave the same with and without the preload library, in all pairs. They go by
//! their own I/O layers, make subprocesses by `vfork` and install handlers that raise.

mod pair;

use pair::{MIXED, Shim, command, pair, watched};
use rsock_tests::tools;
use std::path::Path;

/// Runs one part of a script in all pairs.
fn assert_same(interpreter: &tools::Tool, script: &str, part: &'static str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script);
    let script = script.to_str().expect("a path in UTF-8").to_owned();
    let run = |shim: Shim| {
        let (interpreter, script) = (interpreter.clone(), script.clone());
        watched(format!("{script} {part} {shim:?}"), move || {
            let server = command(interpreter.clone(), shim.server, &[&script, "server", part, "0"]);
            let client = command(interpreter, shim.client, &[&script, "client", part, "0"]);
            pair(server, client)
        })
    };
    let plain = run(Shim { server: false, client: false });
    assert!(plain.server.status.ends_with(": 0"), "without the library: {plain:?}");
    for shim in MIXED {
        assert_eq!(run(shim), plain, "left: {shim:?}, right: without, {part}");
    }
}

#[test]
fn perl() {
    assert_same(&tools::require("perl"), "transfer.pl", "layers");
}

#[test]
fn python() {
    let python = tools::require("python3");
    for part in ["recv_into", "recv_polled", "recv_selected", "recv_by_selector"] {
        assert_same(&python, "transfer.py", part);
    }
}
