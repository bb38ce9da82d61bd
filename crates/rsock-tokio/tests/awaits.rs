//! Every future of this crate, dropped at every await: what its documentation promises of a dropped one
//! holds, and no descriptor stays behind.
//!
//! The tests take turns, because they count the descriptors of the process. That no `async fn` is missing
//! here, or says nothing of its cancel safety, is a test, too.

mod common;
mod dropped;

use common::{Watchdog, current_thread, multi_thread};
use dropped::{connections, datagrams, memory, streams};
use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::future::Future;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

/// Makes each of them a test; what comes after a test's name are the functions that it drops.
macro_rules! awaits {
    ($($module:ident { $($(#[$if:meta])* $name:ident [$($function:literal)*])* })*) => {
        $($(
            $(#[$if])*
            #[test]
            fn $name() {
                run(|| $module::$name());
            }
        )*)*

        const DROPPED: &[&str] = &[$($($($function,)*)*)*];
    };
}

awaits! {
    streams {
        a_read_takes_what_it_answers_or_nothing [
            "Stream::recv"
        ]
        a_look_takes_nothing [
            "Stream::peek" "Stream::readable" "Stream::ready"
            "$half::peek" "$half::readable" "$half::ready"
        ]
        a_write_sends_what_it_answers_or_nothing [
            "Stream::send"
        ]
        a_wait_for_room_sends_nothing [
            "Stream::writable" "$half::writable"
        ]
        a_shutdown_ends_the_direction_or_does_not []
    }
    connections {
        a_connect_leaves_no_connection_behind [
            "Stream::connect" "Stream::connect_timeout" "Builder::connect"
        ]
        a_pure_connect_leaves_no_connection_behind [
            "rsockets::connect" "rsockets::connect_timeout" "rsockets::Builder::connect"
        ]
        an_accept_loses_no_connection [
            "Listener::accept"
        ]
        a_pure_accept_loses_no_connection [
            "rsockets::Listener::accept"
        ]
        a_bind_leaves_its_port_free [
            "Listener::bind" "Builder::bind" "rsockets::Listener::bind" "rsockets::Builder::bind"
        ]
        #[cfg(feature = "hyper")]
        a_connector_leaves_no_connection_behind []
        #[cfg(feature = "axum")]
        a_listener_of_axums_loses_no_connection []
    }
    memory {
        a_search_goes_on_where_it_was [
            "Stream::paired"
        ]
        an_opening_closes_what_it_opened [
            "Stream::open"
        ]
        a_put_has_written_the_first_bytes_or_none [
            "Stream::put"
        ]
    }
    datagrams {
        a_receive_takes_what_it_answers_or_nothing [
            "Datagram::recv" "Datagram::recv_from" "Datagram::recv_batch"
        ]
        a_look_at_a_datagram_takes_nothing [
            "Datagram::peek" "Datagram::peek_from" "Datagram::readable" "Datagram::ready"
        ]
        a_datagram_is_sent_once_or_not_at_all [
            "Datagram::send" "Datagram::send_to" "Datagram::send_batch" "Datagram::writable"
        ]
        a_socket_is_connected_or_is_not [
            "Datagram::connect"
        ]
        a_bind_of_datagrams_leaves_its_port_free [
            "Datagram::bind"
        ]
    }
}

/// Runs a case in runtimes of both kinds, several times: what each time leaves behind shows.
fn run<F: Future<Output = ()>>(case: impl Fn() -> F) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let _watchdog = Watchdog::new();
    for make in [current_thread, multi_thread] {
        let open = [(); 4].map(|()| {
            make().block_on(case());
            descriptors()
        });
        // What is made once stays, whenever that was: the link of this process to itself, and the like.
        assert!(open.windows(2).any(|pair| pair[1] <= pair[0]), "{open:?}");
    }
}

fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").expect("proc").count()
}

/// Streams that can never leave TCP wait for nothing but the kernel's socket.
#[test]
fn streams_that_stay_on_tcp_promise_the_same() {
    let _watchdog = Watchdog::new();
    let all = [
        "a_read_takes_what_it_answers_or_nothing",
        "a_look_takes_nothing",
        "a_write_sends_what_it_answers_or_nothing",
        "a_wait_for_room_sends_nothing",
        "a_shutdown_ends_the_direction_or_does_not",
    ];
    let me = env::current_exe().expect("a test has an executable");
    let out = Command::new(me).args(all).arg("--exact").env("RSOCK_DEVICE", "tcp").output();
    let out = out.expect("it runs");
    let said = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{said}{}", String::from_utf8_lossy(&out.stderr));
    assert!(said.contains(&format!("{} passed", all.len())), "{said}");
}

#[test]
fn no_function_is_missing_and_each_says_what_becomes_of_a_dropped_future() {
    let dropped: BTreeSet<String> = DROPPED.iter().map(|&name| name.to_owned()).collect();
    let mut functions = BTreeSet::new();
    let mut left = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    while let Some(path) = left.pop() {
        match fs::read_dir(&path) {
            Ok(entries) => left.extend(entries.map(|entry| entry.expect("a source").path())),
            Err(_) => functions.extend(async_functions(&path)),
        }
    }
    assert_eq!(dropped, functions);
}

/// The public ones of a source file, by their type. Each says what a dropped future has done.
fn async_functions(file: &Path) -> Vec<String> {
    let is_pure = file.ends_with("rsockets.rs");
    let (mut of_type, mut is_said, mut found) = (String::new(), false, Vec::new());
    for line in fs::read_to_string(file).expect("a source").lines() {
        let code = line.trim_start();
        if let Some(rest) = line.trim_start().strip_prefix("impl ") {
            let name = rest.rsplit(" for ").next().and_then(|name| name.split(['<', ' ']).next());
            of_type = format!("{}::", name.expect("a type"));
        } else if let Some(rest) = code.strip_prefix("pub async fn ") {
            let name = rest.split(['(', '<']).next().expect("a name");
            // Functions of no type stand at the margin.
            let of_type = if line == code { "" } else { &of_type };
            let module = if is_pure { "rsockets::" } else { "" };
            let name = format!("{module}{of_type}{name}");
            assert!(is_said, "{name} has no section `Cancel safety`");
            found.push(name);
        }
        // Attributes may stand between.
        is_said = code == "/// # Cancel safety"
            || is_said && (code.starts_with("///") || code.starts_with("#["));
    }
    found
}
