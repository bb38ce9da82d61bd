//! Streams and datagram sockets in tasks, on one host: accelerated streams; and rsockets streams
//! and datagram sockets, through shared memory.
//!
//! One program for all, because each would compile Tokio's and rsock's generic code again.

mod accelerated;
mod common;
mod datagram;
mod rsockets_streams;

datagram::datagram_tests!(run);
rsockets_streams::rsockets_tests!(run);

fn run(_: &str, test: fn()) {
    test();
}
