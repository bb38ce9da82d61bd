//! What a process's table says of its live connections: how much of them does not use kernel TCP.

use rsock_core::metrics::{self, StreamMetrics, Transport};
use std::collections::BTreeMap;

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
    Some(process.connections.iter().filter(|c| has_moved(c)).count())
}

/// Whether all `n` connections of a process use no kernel TCP any more, as far as its table has
/// room for them; `None` as [`n_connections`].
pub(crate) fn have_all_moved(pid: u32, n: usize) -> Option<bool> {
    let shown = n.min(usize::try_from(metrics::N_SLOTS).unwrap_or(n));
    Some(n_connections(pid)? >= shown)
}

/// Why connections of a process use kernel TCP: "3: the peer does not use rsock", and so on.
pub(crate) fn why_on_tcp(pid: u32) -> String {
    let process = metrics::read_process(pid).ok().flatten();
    let all = process.into_iter().flat_map(|process| process.connections);
    let mut counts = BTreeMap::<String, usize>::new();
    for connection in all.filter(|c| !has_moved(c)) {
        let reason = connection.fallback.map_or("no reason".to_owned(), |why| why.to_string());
        *counts.entry(reason).or_default() += 1;
    }
    let parts: Vec<_> = counts.iter().map(|(reason, n)| format!("{n}: {reason}")).collect();
    parts.join("; ")
}

fn has_moved(connection: &StreamMetrics) -> bool {
    let has_left = |transport| !matches!(transport, None | Some(Transport::Tcp));
    has_left(connection.tx_transport) && has_left(connection.rx_transport)
}
