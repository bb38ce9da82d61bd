//! Many streams between two processes search for each other at the same time, and leave TCP within
//! a few messages.

use rsock_tests::{Piped, Watchdog, n_that_used_ring, preload_library, tools};
use std::path::Path;
use std::time::Duration;

/// Streams, as many as there are clients in a common benchmark.
const N: usize = 50;
/// Messages of each in each direction. The search begins with the sixth.
const TRIPS: &str = "14";

/// A process of the script.
fn start(args: &[&str]) -> Piped {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/many_streams.py");
    let mut command = tools::require("python3").command();
    Piped::start(command.arg(script).args(args).env("LD_PRELOAD", preload_library()))
}

#[test]
fn many_streams_between_two_processes_leave_tcp_within_a_few_messages() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let mut server = start(&["server"]);
    let line = server.line();
    let port = line.strip_prefix("port ").expect("the port");
    let mut client = start(&["client", port, &N.to_string(), TRIPS]);
    assert_eq!(client.line(), "trips");
    assert_eq!([&server, &client].map(|end| n_that_used_ring(end.id())), [N; 2]);
    client.finish();
    server.finish();
}
