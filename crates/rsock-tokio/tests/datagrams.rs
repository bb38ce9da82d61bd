//! Datagram sockets in tasks, through shared memory.

mod common;
mod datagram;

datagram::datagram_tests!(run);

fn run(_: &str, test: fn()) {
    test();
}
