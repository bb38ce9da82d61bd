//! What a process's table says of its live connections: how much of them does not use kernel TCP.

use rsock_core::metrics::{self, Transport};

/// Part of the process's bytes that did not use kernel TCP, in its live connections so far.
pub(crate) fn share(pid: u32) -> Option<f64> {
    let process = metrics::read_process(pid).ok()??;
    let counters = process.connections.iter().flat_map(|c| [c.tx, c.rx]);
    let (fast, all) = counters.fold((0.0, 0.0), |(fast, all), counters| {
        let sum: f64 = counters.bytes.iter().map(|n| *n as f64).sum();
        (fast + sum - counters.bytes[Transport::Tcp as usize] as f64, all + sum)
    });
    (all > 0.0).then(|| fast / all)
}

/// How many connections of a process use no kernel TCP any more, in either direction; `None` of a
/// process without the library.
pub(crate) fn n_connections(pid: u32) -> Option<usize> {
    let process = metrics::read_process(pid).ok()??;
    let has_left = |transport| !matches!(transport, None | Some(Transport::Tcp));
    let all = process.connections.iter();
    Some(all.filter(|c| has_left(c.tx_transport) && has_left(c.rx_transport)).count())
}
