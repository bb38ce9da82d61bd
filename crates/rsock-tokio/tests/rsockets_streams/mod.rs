//! Tests of rsockets streams, in runtimes of both kinds, on any device; the peer is another one, or
//! a blocking socket of the core.

#![allow(
    dead_code,
    unused_macros,
    unused_imports,
    reason = "the test of dropped futures uses a part"
)]

pub(crate) mod bytes;
pub(crate) mod death;
pub(crate) mod ends;

use crate::common::{is_rdma, pattern};
use rsock_tokio::rsockets::{Listener, Stream, connect};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Makes each of them a test, which `$run` runs, given its name and what it does.
macro_rules! rsockets_tests {
    ($run:path) => {
        crate::rsockets_streams::rsockets_tests! {
            $run: death { pending_reads_and_writes_end_when_the_peer_is_killed }
            bytes {
                small_messages_go_to_and_fro
                both_directions_carry_every_byte_at_once
                a_writer_waits_for_its_reader
                a_half_closed_stream_still_answers
                the_methods_of_tokios_stream_work
                many_tasks_wait_for_one_stream_and_it_moves_between_them
                a_remote_write_is_seen_before_what_is_sent_later
                a_read_that_is_dropped_takes_nothing
            }
            ends {
                a_peer_that_goes_away_ends_reads_and_writes_that_wait
                a_blocking_peer_exchanges_bytes_and_its_reset_arrives
                a_blocking_listener_accepts_a_task
                a_connect_without_a_listener_is_refused
                abandoned_handshakes_leave_nothing_behind
                a_runtime_that_shuts_down_drops_its_streams
                poll_accept_returns_what_accept_does
                a_stream_becomes_blocking_and_back
                a_stream_whose_runtime_has_ended_reads_the_end
            }
        }
    };
    ($run:path: $($module:ident { $($name:ident)* })*) => {
        $($(
            #[test]
            fn $name() {
                $run(stringify!($name), crate::rsockets_streams::$module::$name);
            }
        )*)*
    };
}

pub(crate) use rsockets_tests;

/// A free port of an address that the device reaches: the lab has one for its own.
pub(crate) fn any() -> &'static str {
    if is_rdma() { "10.9.0.1:0" } else { "127.0.0.1:0" }
}

pub(crate) async fn pair() -> (Stream, Stream) {
    let listener = Listener::bind(any()).await.expect("bind");
    let to = listener.local_addr().expect("address");
    let (client, server) = tokio::join!(connect(to), listener.accept());
    let (client, (server, from)) = (client.expect("connect"), server.expect("accept"));
    assert_eq!(from, client.local_addr().expect("its address"));
    assert_eq!(server.local_addr().expect("its address"), client.peer_addr().expect("its peer"));
    (client, server)
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
