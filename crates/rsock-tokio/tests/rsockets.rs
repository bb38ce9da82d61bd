//! Rsockets streams on the embedded device.

mod common;
mod rsockets_streams;

rsockets_streams::rsockets_tests!(run);

fn run(_: &str, test: fn()) {
    test();
}
