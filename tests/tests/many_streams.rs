//! Many streams between two processes find each other at the same time: they share one link, and
//! leave TCP within a few messages.

use rsock_tests::{Running, Watchdog, n_that_used_ring, preload_library, tools};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{ChildStdout, Stdio};
use std::time::Duration;

/// Streams, as many as there are clients in a common benchmark.
const N: usize = 50;
/// Messages of each in each direction. The search begins with the sixth.
const TRIPS: &str = "14";

/// A process of the script, and what it prints.
struct End(Running, BufReader<ChildStdout>);

impl End {
    fn start(args: &[&str]) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/many_streams.py");
        let mut command = tools::require("python3").command();
        command.arg(script).args(args).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("LD_PRELOAD", preload_library());
        let mut process = Running::spawn(&mut command).expect("an end starts");
        let out = BufReader::new(process.stdout.take().expect("piped"));
        Self(process, out)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.1.read_line(&mut line).expect("its output");
        line.trim_end().to_owned()
    }

    fn finish(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("its end").success());
    }
}

#[test]
fn many_streams_between_two_processes_leave_tcp_within_a_few_messages() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let mut server = End::start(&["server"]);
    let line = server.line();
    let port = line.strip_prefix("port ").expect("the port");
    let mut client = End::start(&["client", port, &N.to_string(), TRIPS]);
    assert_eq!(client.line(), "trips");
    assert_eq!([&server, &client].map(|end| n_that_used_ring(end.0.id())), [N; 2]);
    client.finish();
    server.finish();
}
