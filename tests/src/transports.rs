//! Which transport the connections of another process use.

use rsock_core::metrics::{self, FallbackReason, Transport};

/// Whether a connection of process `pid` has moved more bytes over the ring than over TCP.
#[must_use]
pub fn has_left_tcp(pid: u32) -> bool {
    bytes_of_connections(pid).iter().any(|by| by.ring > by.tcp)
}

/// Whether a connection of process `pid` has moved a byte over the ring.
#[must_use]
pub fn has_used_ring(pid: u32) -> bool {
    n_that_used_ring(pid) != 0
}

/// How many connections of process `pid` have moved a byte over the ring.
#[must_use]
pub fn n_that_used_ring(pid: u32) -> usize {
    bytes_of_connections(pid).iter().filter(|by| by.ring > 0).count()
}

/// Why connections of process `pid` are on TCP, as `rsock stat` shows it; nothing of those that are
/// not.
#[must_use]
pub fn fallback_reasons(pid: u32) -> Vec<FallbackReason> {
    let Ok(Some(found)) = metrics::read_process(pid) else { return Vec::new() };
    let reasons = found.connections.iter().filter_map(|connection| connection.fallback);
    reasons.filter(|reason| *reason != FallbackReason::None).collect()
}

/// Bytes of one connection, of both directions.
struct Bytes {
    tcp: u64,
    ring: u64,
}

/// The bytes of each connection of process `pid` that is in its table; none without a table.
fn bytes_of_connections(pid: u32) -> Vec<Bytes> {
    let Ok(Some(found)) = metrics::read_process(pid) else { return Vec::new() };
    let connections = found.connections.iter();
    connections
        .map(|connection| {
            let by = |transport: Transport| {
                let at = transport as usize;
                connection.tx.bytes[at] + connection.rx.bytes[at]
            };
            Bytes { tcp: by(Transport::Tcp), ring: by(Transport::Soft) }
        })
        .collect()
}
