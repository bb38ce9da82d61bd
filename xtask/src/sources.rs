//! Rules over source files that no compiler lint expresses: where unsafe code may live, and which
//! modules promise, by attribute, to hold none ever.

use crate::steps::{self, Done, Failure};
use std::fs;
use std::path::PathBuf;

/// Checks that every listed module forbids unsafe code, and that it is in the listed places only.
pub(crate) fn check() -> Done {
    let mut wrong = Vec::new();
    for file in files("crates")? {
        let shown = file.strip_prefix(steps::root()).unwrap_or(&file).display().to_string();
        if TESTS.iter().any(|tests| shown.contains(tests))
            || UNSAFE_HERE.iter().any(|place| shown.starts_with(place))
        {
            continue;
        }
        let text = fs::read_to_string(&file).map_err(|e| Failure::io(&shown, &e))?;
        if let Some(line) = text.lines().position(is_unsafe) {
            let line = line + 1;
            wrong.push(format!("{shown}:{line}: unsafe code outside the places in {LIST}"));
        }
    }
    for file in FORBID_UNSAFE {
        match fs::read_to_string(steps::root().join(file)) {
            Ok(text) if text.lines().any(|line| line == "#![forbid(unsafe_code)]") => {}
            Ok(_) => wrong.push(format!("{file}: `#![forbid(unsafe_code)]` is missing")),
            Err(e) => wrong.push(format!("{file}: listed in {LIST}, but {e}")),
        }
    }
    verdict("sources", &wrong)
}

/// Whether a line opens unsafe code, comments and prose aside.
fn is_unsafe(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern", "unsafe("]
        .iter()
        .any(|opening| code.contains(opening))
}

/// Every Rust file below `dir`, which is named from the workspace's root.
pub(crate) fn files(dir: &str) -> Done<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut todo = vec![steps::root().join(dir)];
    while let Some(dir) = todo.pop() {
        let entries = fs::read_dir(&dir).map_err(|e| Failure::io(dir.display(), &e))?;
        for entry in entries {
            let path = entry.map_err(|e| Failure::io(dir.display(), &e))?.path();
            if path.is_dir() {
                todo.push(path);
            } else if path.extension().is_some_and(|ext| ext == "rs") {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Prints what is wrong; nothing wrong is success.
pub(crate) fn verdict(check: &str, wrong: &[String]) -> Done {
    for line in wrong {
        eprintln!("{line}");
    }
    match wrong.len() {
        0 => Ok(()),
        n => Err(Failure::new(format!("{check}: {n} broken rules"))),
    }
}

const LIST: &str = "xtask/src/sources.rs";

/// Modules that hold no unsafe code, they and everything below them.
const FORBID_UNSAFE: &[&str] =
    &["crates/rsock-proto/src/lib.rs", "tests/src/lib.rs", "xtask/src/main.rs"];

/// Tests may do what programs do.
const TESTS: &[&str] =
    &["/tests/", "/tests.rs", "/plain_tests.rs", "/conformance/", "/loom_models"];

/// Where unsafe code may live: where memory is shared, C is called, or a descriptor is taken at
/// its word. A new place belongs here only if no safe type can carry what it does.
const UNSAFE_HERE: &[&str] = &[
    // rdma-core's C interface.
    "crates/rsock-rdma-sys/src/",
    "crates/rsock-verbs/src/rdma/",
    "crates/rsock-cm/src/rdma/",
    // Registered and shared memory.
    "crates/rsock-verbs/src/clock.rs",
    "crates/rsock-verbs/src/cpu_cache.rs",
    "crates/rsock-verbs/src/copy.rs",
    "crates/rsock-verbs/src/cred.rs",
    "crates/rsock-verbs/src/device.rs",
    "crates/rsock-verbs/src/family/",
    "crates/rsock-verbs/src/high_fd.rs",
    "crates/rsock-verbs/src/own_fd.rs",
    "crates/rsock-verbs/src/fault",
    "crates/rsock-verbs/src/per_thread.rs",
    "crates/rsock-verbs/src/raw.rs",
    "crates/rsock-verbs/src/untrusted",
    "crates/rsock-verbs/src/sparse.rs",
    "crates/rsock-verbs/src/soft/",
    // Marks of what may lie in family memory, and posts and registrations of memory.
    "crates/rsock-core/src/closing/",
    "crates/rsock-core/src/fork.rs",
    "crates/rsock-core/src/engine/remote_memory.rs",
    "crates/rsock-core/src/engine/resources.rs",
    "crates/rsock-core/src/engine/shared.rs",
    "crates/rsock-core/src/metrics/writer.rs",
    "crates/rsock-core/src/accelerate/holders.rs",
    "crates/rsock-core/src/accelerate/native_peer/state.rs",
    "crates/rsock-core/src/accelerate/state.rs",
    // System calls that no crate wraps, and the program's descriptors.
    "crates/rsock-core/src/interrupt.rs",
    "crates/rsock-core/src/sys/descriptors.rs",
    "crates/rsock-core/src/sys/forking.rs",
    "crates/rsock-core/src/sys/poll.rs",
    "crates/rsock-core/src/sys/signals.rs",
    "crates/rsock-core/src/sys/socket_options.rs",
    "crates/rsock-core/src/sys/stack.rs",
    "crates/rsock-core/src/accelerate/handoff/detached_process.rs",
    "crates/rsock-core/src/accelerate/offsets.rs",
    "crates/rsock-core/src/accelerate/poll/entry.rs",
    "crates/rsock-core/src/accelerate/handoff/relay.rs",
    "crates/rsock-core/src/accelerate/verify.rs",
    // Descriptors that an async runtime takes at their word.
    "crates/rsock-tokio/src/async_fd.rs",
    // C symbols.
    "crates/rsock-capi/src/",
    "crates/rsock-preload/src/",
    // Children that die with us, system calls without a wrapper, and the bare ring that shows the
    // machine's limit.
    "crates/rsock-cli/src/child.rs",
    "crates/rsock-cli/src/perf/datagrams/recvmmsg.rs",
    "crates/rsock-compare/src/ends/epoll.rs",
    "crates/rsock-compare/src/hold.rs",
    "crates/rsock-compare/src/limit",
    "crates/rsock-compare/src/process.rs",
    "crates/rsock-compare/src/sweep/ends.rs",
];
