//! Routes to peers' queues.

use crate::datagram::kernel_udp::header::Bytes;
use rsock_verbs::soft::SoftDestination;
use std::sync::atomic::AtomicU32;

/// A route to a peer's queue.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) to: SoftDestination,
    /// The header in front of each datagram.
    pub(super) header: Bytes,
    /// The kernel count of the port when the last datagram went by this route. Under the lock of
    /// the routes, as is the next field.
    pub(super) kernel_seen: AtomicU32,
    /// Datagrams that go by the kernel before one goes by this route again.
    pub(super) by_kernel: AtomicU32,
}
