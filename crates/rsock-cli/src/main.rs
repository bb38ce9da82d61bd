//! The rsock command.
fn main() {}
