//! Many streams between two processes search for each other at the same time, and leave TCP within
//! a few messages.

mod epoll_echo;

use rsock_tests::Watchdog;
use std::time::Duration;

/// Streams, as many as there are clients in a common benchmark.
const N: usize = 50;
/// Messages of each in each direction. The search begins with the fourth.
const TRIPS: &str = "14";

#[test]
fn many_streams_between_two_processes_leave_tcp_within_a_few_messages() {
    let _watchdog = Watchdog::new(Duration::from_secs(240));
    let [server, client] = epoll_echo::ends(N, TRIPS, &[]);
    client.finish();
    server.finish();
}
