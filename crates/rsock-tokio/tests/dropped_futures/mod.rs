//! Cancel safety: futures are dropped while they wait, and what their documentation promises of a
//! dropped one holds.
//!
//! The rows of the table are functions of these modules. Those of [`at_every_await_rows`] drop each
//! future at every await and name the functions that they cover; those of [`repeated_rows`] drop
//! futures after some polls, again and again; those of [`device_rows`] do so on an RDMA device,
//! too.

#![allow(dead_code, unused_macros, unused_imports, reason = "the test of RDMA runs some rows")]

pub(crate) mod at_every_await;
pub(crate) mod connections;
pub(crate) mod datagrams;
pub(crate) mod memory;
pub(crate) mod repeated;
pub(crate) mod repeated_datagrams;
pub(crate) mod streams;

use rsock_tokio::rsockets;

/// Two ends of an rsockets connection, over the device that the process uses.
pub(crate) async fn rsockets_pair() -> (rsockets::Stream, rsockets::Stream) {
    crate::rsockets_streams::pair().await
}

/// Passes the rows to `$make`: `module { test [functions that it drops] }`.
macro_rules! at_every_await_rows {
    ($make:path) => {
        $make! {
            streams {
                a_dropped_read_has_taken_nothing ["Stream::recv"]
                a_dropped_peek_or_wait_for_input_has_taken_nothing [
                    "Stream::peek" "Stream::readable" "Stream::ready"
                    "ReadHalf::peek" "ReadHalf::readable" "ReadHalf::ready"
                    "OwnedReadHalf::peek" "OwnedReadHalf::readable" "OwnedReadHalf::ready"
                ]
                a_dropped_write_has_sent_nothing ["Stream::send"]
                a_dropped_wait_for_room_has_sent_nothing [
                    "Stream::writable"
                    "WriteHalf::writable" "WriteHalf::ready"
                    "OwnedWriteHalf::writable" "OwnedWriteHalf::ready"
                ]
                a_dropped_shutdown_has_ended_the_direction_or_not []
            }
            connections {
                a_dropped_connect_leaves_no_connection_behind [
                    "Stream::connect" "Stream::connect_timeout" "Builder::connect"
                ]
                a_dropped_rsockets_connect_leaves_no_connection_behind [
                    "rsockets::connect" "rsockets::connect_timeout" "rsockets::Builder::connect"
                ]
                a_dropped_accept_loses_no_connection ["Listener::accept"]
                a_dropped_rsockets_accept_loses_no_connection ["rsockets::Listener::accept"]
                a_dropped_bind_leaves_its_port_free [
                    "Listener::bind" "Builder::bind"
                    "rsockets::Listener::bind" "rsockets::Builder::bind"
                ]
                #[cfg(feature = "hyper")]
                a_dropped_connector_leaves_no_connection_behind []
                #[cfg(feature = "axum")]
                a_dropped_accept_of_axum_loses_no_connection []
            }
            memory {
                a_dropped_search_continues_at_the_next_call ["Stream::accelerated"]
                a_dropped_exposure_is_withdrawn ["Stream::expose"]
                a_dropped_remote_write_has_written_a_prefix ["Stream::write_remote"]
            }
            datagrams {
                a_dropped_receive_has_taken_nothing [
                    "Datagram::recv" "Datagram::recv_from" "Datagram::recv_batch"
                ]
                a_dropped_peek_or_wait_has_taken_no_datagram [
                    "Datagram::peek" "Datagram::peek_from" "Datagram::readable" "Datagram::ready"
                ]
                a_dropped_send_has_sent_no_datagram [
                    "Datagram::send" "Datagram::send_to" "Datagram::send_batch"
                    "Datagram::writable"
                ]
                a_dropped_connect_has_connected_the_socket_or_not ["Datagram::connect"]
                a_dropped_datagram_bind_leaves_its_port_free ["Datagram::bind"]
            }
        }
    };
}

/// Makes a test of each row that only the embedded device runs; `$run` runs it.
macro_rules! repeated_rows {
    ($run:path) => {
        crate::dropped_futures::tests! {
            $run: repeated {
                repeatedly_dropped_reads_take_nothing
                repeatedly_dropped_writes_write_all_or_nothing
                repeatedly_dropped_sends_leave_what_they_have_not_sent
                repeatedly_dropped_waits_of_halves_take_nothing
                repeatedly_dropped_waits_for_readiness_leave_the_next_one_working
                the_waker_of_a_dropped_read_is_woken_and_the_next_read_works
                repeatedly_dropped_connects_and_accepts_lose_no_connection
                repeatedly_dropped_searches_exposures_and_remote_writes_begin_anew
                a_connect_with_a_timeout_may_be_dropped_or_time_out
            }
        }
    };
}

/// Makes a test of each row that runs on every device; `$run` runs it.
macro_rules! device_rows {
    ($run:path) => {
        crate::dropped_futures::tests! {
            $run: repeated {
                repeatedly_dropped_rsockets_reads_take_nothing
                repeatedly_dropped_rsockets_writes_write_all_or_nothing
                repeatedly_dropped_rsockets_sends_leave_what_they_have_not_sent
                repeatedly_dropped_waits_of_rsockets_halves_take_nothing
                repeatedly_dropped_waits_for_rsockets_readiness_leave_the_next_one_working
                the_waker_of_a_dropped_rsockets_read_is_woken_and_the_next_read_works
                an_rsockets_connect_with_a_timeout_may_be_dropped_or_time_out
            }
            repeated_datagrams {
                repeatedly_dropped_receives_take_no_datagram
                repeatedly_dropped_sends_send_each_datagram_once_or_not_at_all
                the_waker_of_a_dropped_receive_does_not_disturb_the_task_that_polls
                a_runtime_that_ends_drops_the_sockets_of_its_tasks
            }
        }
    };
}

/// A test of each function, which `$run` runs, given its name and what it does.
macro_rules! tests {
    ($run:path: $($module:ident { $($name:ident)* })*) => {
        $($(
            #[test]
            fn $name() {
                $run(stringify!($name), crate::dropped_futures::$module::$name);
            }
        )*)*
    };
}

pub(crate) use {at_every_await_rows, device_rows, repeated_rows, tests};
