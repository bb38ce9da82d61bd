//! Tests of streams of the pure mode, in runtimes of both kinds, on any device; the other end is one
//! of them, or a blocking socket of the core.

pub(crate) mod bytes;
pub(crate) mod death;
pub(crate) mod dropped;
pub(crate) mod ends;

use crate::common::{is_rdma, pattern};
use rsock_tokio::Stream;
use rsock_tokio::rsockets::{Listener, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Makes each of them a test, which `$run` runs, given its name and what it does.
macro_rules! pure_tests {
    ($run:path) => {
        crate::pure::pure_tests! {
            $run: dropped {
                a_dropped_write_has_written_all_or_nothing
                a_dropped_send_leaves_what_it_has_not_sent
                dropped_waits_of_streams_and_halves_take_nothing
                a_connect_in_time_may_be_dropped_or_late
            }
            death { what_waits_ends_with_a_killed_peer }
            bytes {
                small_messages_go_to_and_fro
                both_directions_carry_every_byte_at_once
                a_writer_waits_for_its_reader
                a_half_closed_stream_still_answers
                the_methods_of_tokios_stream_work
                many_tasks_wait_for_one_stream_and_it_moves_between_them
                what_is_put_is_there_before_what_is_sent_later
                a_read_that_is_dropped_takes_nothing
            }
            ends {
                a_peer_that_goes_away_ends_reads_and_writes_that_wait
                a_blocking_peer_is_as_good_and_its_reset_arrives
                a_blocking_listener_accepts_as_well
                nobody_there_is_a_refusal
                handshakes_that_are_given_up_leave_nothing_behind
                a_runtime_that_shuts_down_drops_its_streams
                polling_for_connections_is_the_same
                a_blocking_stream_takes_over_and_back
                a_stream_outlives_the_runtime_that_its_peer_is_in
            }
        }
    };
    ($run:path: $($module:ident { $($name:ident)* })*) => {
        $($(
            #[test]
            fn $name() {
                $run(stringify!($name), crate::pure::$module::$name);
            }
        )*)*
    };
}

pub(crate) use pure_tests;

/// A free port of an address that the device reaches: the lab has one for its own.
pub(crate) fn any() -> &'static str {
    if is_rdma() { "10.9.0.1:0" } else { "127.0.0.1:0" }
}

async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(any()).await.expect("bind");
    let to = listener.local_addr().expect("address");
    let (client, server) = tokio::join!(connect(to), listener.accept());
    let (client, (server, from)) = (client.expect("connect"), server.expect("accept"));
    assert_eq!(from, client.local_addr().expect("its address"));
    assert_eq!(server.local_addr().expect("its address"), client.peer_addr().expect("its peer"));
    (client, server)
}

async fn send(to: &mut (impl AsyncWriteExt + Unpin), total: usize) {
    let (mut at, mut size) = (0, 1);
    while at < total {
        size = (size * 7 + 13) % 90_000 + 1;
        let len = size.min(total - at);
        to.write_all(&pattern(at, len)).await.expect("write");
        at += len;
    }
}

async fn receive(from: &mut (impl AsyncReadExt + Unpin), total: usize) {
    let mut buf = vec![0; 70_000];
    let mut at = 0;
    while at < total {
        let n = from.read(&mut buf).await.expect("read");
        assert_ne!(n, 0, "early end at {at}");
        assert!(buf[..n] == pattern(at, n)[..], "wrong bytes near {at}");
        at += n;
    }
    assert_eq!(at, total);
}
