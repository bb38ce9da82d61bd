//! Which transport the connections of another process use.

use rsock_core::metrics::{self, Transport};

/// Whether a connection of process `pid` has moved more bytes over the ring than over TCP.
#[must_use]
pub fn has_left_tcp(pid: u32) -> bool {
    let Ok(Some(found)) = metrics::read_process(pid) else { return false };
    found.connections.iter().any(|connection| {
        let by = |transport: Transport| {
            let at = transport as usize;
            connection.tx.bytes[at] + connection.rx.bytes[at]
        };
        by(Transport::Soft) > by(Transport::Tcp)
    })
}
