//! Two Python programs with streams between them, each waiting in one epoll set.

use rsock_tests::{Piped, n_that_used_ring, preload_library, tools};
use std::path::Path;

/// A process of the script.
fn start(args: &[&str], env: &[(&str, &str)]) -> Piped {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/many_streams.py");
    let mut command = tools::require("python3").command();
    let command = command.arg(script).args(args).env("LD_PRELOAD", preload_library());
    Piped::start(command.envs(env.iter().copied()))
}

/// A server, and a client that has sent so many messages (`trips`) on each of `n` streams and has
/// got them back. All streams have used the ring.
pub(crate) fn ends(n: usize, trips: &str, env: &[(&str, &str)]) -> [Piped; 2] {
    let mut server = start(&["server"], env);
    let line = server.line();
    let port = line.strip_prefix("port ").expect("the port");
    let mut client = start(&["client", port, &n.to_string(), trips], env);
    assert_eq!(client.line(), "trips");
    assert_eq!([&server, &client].map(|end| n_that_used_ring(end.id())), [n; 2]);
    [server, client]
}
