//! Unmodified C programs behave the same with and without the preload library, in all pairs.

mod c_program;
mod pair;

use c_program::compiled;
use pair::{MIXED, Shim, command, pair, watched};

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
    transfer: threads turns polled selected dontwait both_write_first peek_all
        file_flags newer_flags;
    flags: between_calls during_receive during_send;
    ends: half_close both_half_close closed_peer late_writer late_writer_killed late_half_close
        killed_by_sigpipe unread linger exit killed blocked_writer shut_read edges state timeouts
        files file_pieces options;
    cancels: first;
    arguments: ranges vectors control nowhere addresses nothing;
    batches: partial reset unread late limits;
    discards: discards interrupted reset peek_all;
    first_calls: rest_of_send poll_beside_sender select_beside_sender connecting_beside_sender;
    forks: making;
    splices: refused filled reset no_reader full no_number cancelled;
    sendfiles: unsent most locked offset small_stack;
    polled: many selected here forked handlers limits;
    moves: first_byte mid_write both_directions blocked_recv unread half_close;
    signals: interrupt interrupt_poll restart restart_timeout restart_timeout_send longjmp
        longjmp_write storm writing_handler actions fault fork cancel cancel_exchange sigio
        sigio_early;
    past: poll old_poll select epoll transfer descriptors connect aio aio_write
        ring_poll ring_epoll ring_late;
    allocator: exchange close;
    stacks: read poll select epoll;
    room: small large polled watched edges;
    sandbox: kill kill_by_syscall refuse short_connections;
    missing: write read handled killed flip;
    ktls: unread talk records;
    resets: receive_next small_buffer send_next ask_next;
    kernel_use: peek_offset given fetched backtrace standard native_aio deep_library;
    sets: control loops waits page_edge at_limit first_at_limit exclusive_at_limit turns
        ends_of_first_watches added_meanwhile;
    shared_sets: exec_set exec_set_alone exec_deleted exec_set_in_set exec_renamed spawn_set
        spawn_passed pass_set pass_set_alone pass_set_in_set pass_deleted pass_inner
        deep_from_inside deep_from_outside deep_late changed_inside in_unknown in_inherited
        fork_changes fork_nested fork_beside_waits child_polls child_polls_at_once child_closes
        child_closes_set polled_first ppolled_first selected_first selected_first_most
        pselected_first fork_beside_wait fork_beside_poll pass_beside_wait pass_beside_poll;
    descriptors: dup replace reuse raw_close raw_close_idle close_range limited limited_few
        fork_server bare_fork clone clone_number clone3_number fork_both prefork vfork vfork_epoll
        exec exec_unread
        exec_child exec_vfork spawn exec_system exec_self exec_late exec_half_close exec_killed
        exec_reset exec_fails exec_leak spawn_number vfork_number vfork_chosen system_number
        vfork_leak system_leak stdio stdio_unread stdin_unread stdio_full stdio_idle stdio_stopped
        stdio_shut stdio_ended stdio_threads print pass pass_unread pass_epoll pass_idle epoll
        epoll_full poll_most select_most nonblocking many;
}

/// On the ring, where the library waits itself. Where the kernel alone serves a stream, some
/// instructions before the system call a cancellation is missed: see `docs/limits.md`.
#[test]
fn a_cancellation_just_before_a_wait_is_not_missed() {
    let program = compiled("signals");
    let run = |with_library: bool| {
        let server = command(&program, with_library, &["server", "cancel_early", "1"]);
        let client = command(&program, with_library, &["client", "cancel_early", "1"]);
        watched(format!("cancel_early, {with_library}"), move || pair(server, client))
    };
    assert_eq!(run(true), run(false));
}

/// Where no connection is adopted, the rest of a first send is the kernel's.
#[test]
fn a_first_send_is_whole_where_rsock_is_switched_off() {
    let program = compiled("first_calls");
    let run = |with_library: bool| {
        let end = |end| {
            let mut command = command(&program, with_library, &[end, "rest_of_send", "0"]);
            command.env("RSOCK_DEVICE", "tcp");
            command
        };
        let (server, client) = (end("server"), end("client"));
        watched(format!("rest_of_send, {with_library}"), move || pair(server, client))
    };
    assert_eq!(run(true), run(false));
}

/// Programs, and the libraries that they load while they run.
const LOADED: &[(&str, &str)] = &[("kernel_use", "deep.so")];

/// Runs `part` of the C program `program` without the library, and then in every mixed pair.
///
/// # Panics
/// If a pair behaves otherwise than without the library, or hangs.
fn assert_same_in_all_pairs(program: &str, part: &str) {
    for (_, library) in LOADED.iter().filter(|(of, _)| *of == program) {
        compiled(library);
    }
    let program = compiled(program);
    for warm in ["0", "1"] {
        let run = |shim: Shim| {
            let name = format!("{} {part}, warm {warm}, {shim:?}", program.display());
            let server = command(&program, shim.server, &["server", part, warm]);
            let client = command(&program, shim.client, &["client", part, warm]);
            watched(name, move || pair(server, client))
        };
        let plain = run(Shim { server: false, client: false });
        // The status with which a program ends that finds something wrong.
        assert!(!format!("{plain:?}").contains("exit status: 99"), "{part}: {plain:?}");
        for shim in MIXED {
            let mixed = run(shim);
            assert_eq!(mixed, plain, "left: {shim:?}, right: without, warm {warm}");
        }
    }
}
