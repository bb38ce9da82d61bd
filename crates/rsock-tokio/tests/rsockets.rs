//! Streams of the pure mode on the embedded device.

mod common;
mod pure;

pure::pure_tests!(run);

fn run(_: &str, test: fn()) {
    test();
}
