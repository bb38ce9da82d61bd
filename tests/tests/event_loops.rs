//! C programs over liburing and libuv, as Debian ships these: every byte of an echo is compared in
//! all mixed pairs. What io_uring reads or writes is on TCP; what libuv does leaves TCP.

mod c_program;

use c_program::compiled;
use rsock_tests::{Piped, Watchdog, has_left_tcp, has_used_ring, preload_library};
use std::process::Command;
use std::thread;
use std::time::Duration;

/// Which ends have the library: server, client.
const MIXED: [(bool, bool); 4] = [(true, true), (true, false), (false, true), (false, false)];

/// Round trips that the client makes at least.
const ROUNDS: &str = "2000";

/// One end.
fn start(name: &str, args: &[&str], with_library: bool) -> Piped {
    let mut command = Command::new(compiled(name));
    // Of no effect before version 1.45.
    command.args(args).env_remove("LD_PRELOAD").env("UV_USE_IO_URING", "1");
    if with_library {
        command.env("LD_PRELOAD", preload_library());
    }
    Piped::start(&mut command)
}

/// A server, and a client that has made its round trips and goes on with more.
fn ends(
    (server_name, server_args): (&str, &[&str]),
    (client_name, client_args): (&str, &[&str]),
    (server, client): (bool, bool),
) -> [Piped; 2] {
    let server_args = &[&["server"], server_args].concat();
    let mut server = start(server_name, server_args, server);
    let line = server.line();
    let port = line.strip_prefix("port ").expect("the port");
    let client_args = &[&["client"], client_args, &[port]].concat();
    let mut client = start(client_name, client_args, client);
    assert_eq!(client.line(), "asked", "{server_args:?} {client_args:?}");
    [server, client]
}

/// Until a connection of both ends has moved more bytes over the ring than over TCP.
fn await_move(ends: &[Piped; 2]) {
    while !ends.iter().all(|end| has_left_tcp(end.id())) {
        thread::park_timeout(Duration::from_millis(2));
    }
}

/// An echo whose server and client use these calls. With the library in both ends, its connection
/// moves to the ring and stays there only if no end has an io_uring.
fn echo(server: (&str, &str), client: (&str, &str)) {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    for mixed in MIXED {
        let [server_args, client_args] = [server, client].map(|(_, calls)| [calls, ROUNDS]);
        let ends = ends((server.0, &server_args), (client.0, &client_args), mixed);
        let has_io_uring = [server.1, client.1].iter().any(|&calls| calls != "libc");
        let is_late = [server.1, client.1].contains(&"late");
        if mixed == (true, true) && !has_io_uring {
            await_move(&ends);
        }
        if !is_late && has_io_uring {
            for end in &ends {
                assert!(!has_used_ring(end.id()), "{server:?} {client:?} {mixed:?}");
            }
        }
        let [server_end, client_end] = ends;
        let asked = client_end.finish();
        assert_eq!(server_end.finish(), asked, "{server:?} {client:?} {mixed:?}");
    }
}

const SHARED: &str = "uring";
const CONTAINED: &str = "uring.static";

#[test]
fn without_io_uring_the_echo_leaves_tcp() {
    echo((SHARED, "libc"), (CONTAINED, "libc"));
}

#[test]
fn a_server_over_liburing_stays_on_tcp() {
    echo((SHARED, "ring"), (SHARED, "libc"));
}

#[test]
fn a_client_over_liburing_stays_on_tcp() {
    echo((SHARED, "libc"), (SHARED, "ring"));
}

#[test]
fn two_ends_over_liburing_stay_on_tcp() {
    echo((SHARED, "ring"), (SHARED, "ring"));
}

/// No hook sees its system calls, so no end has the stream adopted that has io_uring alone.
#[test]
fn programs_that_contain_liburing_stay_on_tcp() {
    echo((CONTAINED, "ring"), (CONTAINED, "libc"));
    echo((CONTAINED, "libc"), (CONTAINED, "ring"));
    echo((CONTAINED, "ring"), (CONTAINED, "ring"));
}

/// The stream is used by libc's functions first, by which it would leave TCP.
#[test]
fn a_process_with_an_io_uring_of_liburing_stays_on_tcp() {
    echo((SHARED, "early"), (SHARED, "libc"));
    echo((SHARED, "libc"), (SHARED, "early"));
    echo((SHARED, "early"), (SHARED, "early"));
}

/// The stream has left TCP when the io_uring is made, and goes back before that is used.
#[test]
fn a_stream_goes_back_to_tcp_when_liburing_makes_an_io_uring() {
    echo((SHARED, "late"), (SHARED, "libc"));
    echo((SHARED, "libc"), (SHARED, "late"));
    echo((SHARED, "late"), (SHARED, "late"));
}

/// The io_uring is noticed by its descriptor alone, when the first stream is about to be adopted.
#[test]
fn a_process_that_contains_liburing_and_has_an_io_uring_stays_on_tcp() {
    echo((CONTAINED, "early"), (CONTAINED, "libc"));
    echo((CONTAINED, "libc"), (CONTAINED, "early"));
    echo((CONTAINED, "early"), (CONTAINED, "early"));
}

/// libuv adds a descriptor to its set again where it means to change it.
#[test]
fn libuv_leaves_tcp() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    for mixed in MIXED {
        let ends = ends(("uv_echo", &[]), ("uv_echo", &["300"]), mixed);
        if mixed == (true, true) {
            await_move(&ends);
        }
        let [_server, client] = ends;
        assert_eq!(client.finish(), "done\n");
    }
}
