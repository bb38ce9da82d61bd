//! Descriptors that are closed while other threads are in calls on them, and writers that are far
//! ahead of their readers: no byte reaches another connection, or another place in its own.

mod c_program;
mod pair;

use c_program::compiled;
use pair::{MIXED, Outcome, Shim, command, pair, watched};
use rsock_tests::{Running, preload_library};
use std::process::{Command, Stdio};

/// Runs `part` with connections that have made no calls yet (`warm` 0), have left TCP (1) or look
/// for their peer (2).
fn run(part: &'static str, warm: &'static str, shim: Shim) -> Outcome {
    let program = compiled("closing");
    watched(format!("{part}, warm {warm}, {shim:?}"), move || {
        let end = |with_shim, role| command(&program, with_shim, &[role, part, warm]);
        pair(end(shim.server, "server"), end(shim.client, "client"))
    })
}

fn assert_same_in_all_pairs(part: &'static str) {
    for warm in ["0", "1", "2"] {
        let plain = run(part, warm, Shim { server: false, client: false });
        assert!(plain.server.status.ends_with(": 0"), "without the library: {plain:?}");
        for shim in MIXED {
            assert_eq!(run(part, warm, shim), plain, "{shim:?} at the left, warm {warm}");
        }
    }
}

macro_rules! parts {
    ($($name:ident: $part:literal,)*) => {
        $(
            #[test]
            fn $name() {
                assert_same_in_all_pairs($part);
            }
        )*
    };
}

parts! {
    a_receive_goes_on_with_its_connection: "recv",
    a_receive_of_all_goes_on_after_its_first_bytes: "recv_all",
    a_receive_of_messages_reaches_no_other_connection: "recv_messages",
    a_send_goes_on_with_its_connection: "send",
    a_poll_goes_on_with_its_connection: "poll",
    a_select_goes_on_with_its_connection: "select",
    a_receive_goes_on_when_its_number_is_replaced: "replaced",
    a_receive_goes_on_when_both_of_two_numbers_are_closed: "two_names",
    a_child_closes_what_a_thread_of_its_parent_receives_from: "forked",
    a_receive_that_a_shutdown_ends_takes_no_bytes_of_its_successor: "shut",
    a_transfer_goes_on_with_its_file: "send_file",
    a_transfer_ends_with_its_file: "send_short_file",
}

/// More bytes lie between the ends than the low bits of an offset can tell apart.
#[test]
fn a_connection_leaves_tcp_at_the_right_byte_however_far_its_writer_is_ahead() {
    let program = compiled("ahead");
    let library = preload_library();
    let library = library.to_str().expect("a path in UTF-8");
    for mib in ["40", "56", "64", "100", "150"] {
        for ends in [[library, library], [library, "-"], ["-", library]] {
            let mut command = Command::new(&program);
            command.args(ends).arg(mib).env_remove("LD_PRELOAD");
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let output = watched(format!("{mib} MiB ahead, {ends:?}"), move || {
                Running::spawn(&mut command).expect("it starts").output().expect("its output")
            });
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(text, "server 0, client 0\n", "{mib} MiB, {ends:?}: {output:?}");
        }
    }
}
