//! Every future of this crate is dropped while it waits: what its documentation promises of a
//! dropped one holds, and no descriptor is leaked. The table is in `dropped_futures`.
//!
//! The tests take turns, because they count the descriptors of the process. One test checks that
//! the table covers each public `async fn`, and that each documents its cancel safety.

mod common;
mod datagram;
mod dropped_futures;
mod rsockets_streams;

use common::{Watchdog, current_thread, multi_thread};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A test of each row, and the list of the functions that the rows drop.
macro_rules! at_every_await_tests {
    ($($module:ident { $($(#[$if:meta])* $name:ident [$($function:literal)*])* })*) => {
        $($(
            $(#[$if])*
            #[test]
            fn $name() {
                run_at_every_await(|| dropped_futures::$module::$name());
            }
        )*)*

        const DROPPED: &[&str] = &[$($($($function,)*)*)*];
    };
}

dropped_futures::at_every_await_rows!(at_every_await_tests);
dropped_futures::repeated_rows!(run_repeated);
dropped_futures::device_rows!(run_repeated);

/// The turn of a test.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn run_repeated(_: &str, test: fn()) {
    let _turn = turn();
    test();
}

/// Runs a case in runtimes of both kinds, several times, so that descriptors leaked each time show.
fn run_at_every_await<F: Future<Output = ()>>(case: impl Fn() -> F) {
    let _turn = turn();
    let _watchdog = Watchdog::new();
    for make in [current_thread, multi_thread] {
        let open = [(); 4].map(|()| {
            make().block_on(case());
            descriptors()
        });
        // What a process makes once stays open, such as its link to itself.
        assert!(open.windows(2).any(|pair| pair[1] <= pair[0]), "{open:?}");
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Streams that can never leave TCP wait for the kernel's socket alone.
#[test]
fn streams_that_stay_on_tcp_are_as_cancel_safe() {
    let _turn = turn();
    let _watchdog = Watchdog::new();
    let all = [
        "a_dropped_read_has_taken_nothing",
        "a_dropped_peek_or_wait_for_input_has_taken_nothing",
        "a_dropped_write_has_sent_nothing",
        "a_dropped_wait_for_room_has_sent_nothing",
        "a_dropped_shutdown_has_ended_the_direction_or_not",
    ];
    let me = env::current_exe().expect("a test has an executable");
    let out = Command::new(me).args(all).arg("--exact").env("RSOCK_DEVICE", "tcp").output();
    let out = out.expect("it runs");
    let output = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{output}{}", String::from_utf8_lossy(&out.stderr));
    assert!(output.contains(&format!("{} passed", all.len())), "{output}");
}

#[test]
fn the_table_covers_every_async_function() {
    let dropped: BTreeSet<String> = DROPPED.iter().map(|&name| name.to_owned()).collect();
    let api = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("api.txt"));
    assert_eq!(dropped, async_functions(&api.expect("the snapshot of the API")));
}

#[test]
fn every_async_function_documents_its_cancel_safety() {
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(path) = left.pop() {
        match fs::read_dir(&path) {
            Ok(entries) => left.extend(entries.map(|entry| entry.expect("a source").path())),
            Err(_) => assert_documented(&path),
        }
    }
}

/// The `async` functions of the snapshot of the API, with their modules and types.
fn async_functions(api: &str) -> BTreeSet<String> {
    let mut module = "";
    let mut found = BTreeSet::new();
    for line in api.lines() {
        let (head, of) = match line.strip_prefix("    ") {
            // `impl<T: Transport> Stream<T>: pub async fn peek(...)`
            Some(member) => match member.split_once(": pub async fn ") {
                Some((of, head)) => (head, of),
                None => continue,
            },
            // `rsockets::async fn connect(...)`, `struct Stream<T>`
            None => {
                let path = line.split(' ').next().unwrap_or_default();
                module = path.rfind("::").map_or("", |at| &path[..at + 2]);
                match line[module.len()..].strip_prefix("async fn ") {
                    Some(head) => (head, ""),
                    None => continue,
                }
            }
        };
        let name = head.split(['(', '<']).next().expect("a name");
        let of = of.trim_start_matches("impl<T: Transport>").trim_start_matches("impl").trim();
        let of = of.split('<').next().filter(|of| !of.is_empty());
        let of = of.map_or(String::new(), |of| format!("{of}::"));
        found.insert(format!("{module}{of}{name}"));
    }
    found
}

/// Checks that each public `async` function of a source file documents its cancel safety.
fn assert_documented(file: &Path) {
    let mut is_documented = false;
    for line in fs::read_to_string(file).expect("a source").lines() {
        let code = line.trim_start();
        if let Some(rest) = code.strip_prefix("pub async fn ") {
            let file = file.display();
            assert!(is_documented, "{file}: no section `Cancel safety`: {rest}");
        }
        // Attributes may stand between.
        is_documented = code == "/// # Cancel safety"
            || is_documented && (code.starts_with("///") || code.starts_with("#["));
    }
}
