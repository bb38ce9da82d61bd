//! Unmodified C programs behave the same with and without the preload library, in all pairs.

mod pair;

use pair::{MIXED, Shim, command, pair, watched};
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// One test for each part of each program.
macro_rules! parts {
    ($($program:ident: $($part:ident)*;)*) => {
        $(
            mod $program {
                $(
                    #[test]
                    fn $part() {
                        super::assert_same_in_all_pairs(
                            stringify!($program),
                            stringify!($part),
                        );
                    }
                )*
            }
        )*
    };
}

parts! {
    transfer: threads turns polled selected dontwait both_write_first peek_all;
    ends: half_close both_half_close closed_peer late_writer late_writer_killed late_half_close
        killed_by_sigpipe unread linger exit killed blocked_writer shut_read edges state timeouts files options;
    signals: interrupt interrupt_poll restart restart_timeout longjmp longjmp_write storm
        writing_handler actions fault fork cancel;
    descriptors: dup replace reuse raw_close close_range fork_server fork_both prefork vfork exec
        exec_unread exec_child exec_vfork spawn exec_system exec_self exec_late exec_half_close
        exec_killed exec_reset exec_fails exec_leak stdio print pass epoll nonblocking many;
}

/// Runs `part` of the C program `program` without the library, and then in every mixed pair.
///
/// # Panics
/// If a pair behaves otherwise than without the library, or hangs.
fn assert_same_in_all_pairs(program: &str, part: &str) {
    let program = compiled(program);
    for warm in ["0", "1"] {
        let run = |shim: Shim| {
            let name = format!("{} {part}, warm {warm}, {shim:?}", program.display());
            let server = command(&program, shim.server, &["server", part, warm]);
            let client = command(&program, shim.client, &["client", part, warm]);
            watched(name, move || pair(server, client))
        };
        let plain = run(Shim { server: false, client: false });
        for shim in MIXED {
            let mixed = run(shim);
            assert_eq!(mixed, plain, "left: {shim:?}, right: without, warm {warm}");
        }
    }
}

/// The C program `name`, compiled once for each test executable.
fn compiled(name: &str) -> PathBuf {
    static DONE: Mutex<Option<HashMap<String, PathBuf>>> = Mutex::new(None);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let done = done.get_or_insert_default();
    done.entry(name.to_owned()).or_insert_with(|| compile(name)).clone()
}

fn compile(name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("c").join(name).with_extension("c");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
    fs::create_dir_all(&dir).expect("a directory in the target directory");
    // Under a name of its own first: other tests may be running the old one.
    let fresh = dir.join(format!("{name}.{}", std::process::id()));
    let status = Command::new("cc")
        .args(["-std=gnu11", "-O2", "-D_FORTIFY_SOURCE=2", "-pthread"])
        .args(["-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations"])
        .arg(source)
        .arg("-o")
        .arg(&fresh)
        .status()
        .expect("`cc` runs");
    assert!(status.success(), "compiling {name}.c failed");
    let program = dir.join(name);
    fs::rename(&fresh, &program).expect("renaming within a directory");
    program
}
