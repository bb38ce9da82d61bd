//! Routes past UDP: through shared memory to a peer on this host, or over an RDMA device.

use crate::datagram::header::{HeaderBytes, MAX_QUEUE_HEADER};
use crate::datagram::remote::RemoteRoute;
use crate::datagram::table;
use rsock_verbs::soft::{SoftDestination, SoftUd};
use rsock_verbs::{DatagramError, DatagramQueue, Posted};
use std::io::IoSlice;
use std::sync::Arc;

/// A route to a peer's queue.
#[derive(Debug)]
pub(super) struct Route {
    pub(super) medium: Medium,
    /// The header in front of each datagram.
    pub(super) header: HeaderBytes<MAX_QUEUE_HEADER>,
}

#[derive(Debug)]
pub(super) enum Medium {
    SharedMemory(SoftDestination),
    Rdma(RemoteRoute),
}

impl Route {
    /// Sends the pieces as one datagram. The caller wakes the receiver with [`Self::ring`].
    pub(super) fn post(
        &self,
        local: Option<&SoftUd>,
        bufs: &[IoSlice<'_>],
    ) -> Result<Posted, DatagramError> {
        let header = IoSlice::new(self.header.as_bytes());
        if let [buf] = bufs {
            return self.post_pieces(local, &[header, *buf]);
        }
        let mut pieces = vec![header];
        pieces.extend_from_slice(bufs);
        self.post_pieces(local, &pieces)
    }

    fn post_pieces(
        &self,
        local: Option<&SoftUd>,
        pieces: &[IoSlice<'_>],
    ) -> Result<Posted, DatagramError> {
        match (&self.medium, local) {
            (Medium::SharedMemory(to), Some(local)) => local.post(to, pieces),
            (Medium::SharedMemory(_), None) => Err(DatagramError::Gone),
            (Medium::Rdma(RemoteRoute { to, queue }), _) => queue.post(to, pieces),
        }
    }

    /// Wakes the receiver if it waits for what was posted.
    pub(super) fn ring(&self, local: Option<&SoftUd>) {
        // A device wakes its receiver by itself.
        if let (Medium::SharedMemory(to), Some(local)) = (&self.medium, local) {
            local.ring(to);
        }
    }

    /// Length of the longest datagram that this route carries.
    pub(super) fn max_payload(&self, local: Option<&SoftUd>) -> usize {
        let most = match &self.medium {
            Medium::SharedMemory(_) => local.map_or(0, SoftUd::max_len),
            Medium::Rdma(route) => route.queue.max_len(),
        };
        most.saturating_sub(self.header.as_bytes().len())
    }
}

impl table::PeerRoute for Arc<Route> {
    fn detects_peer_exit(&self) -> bool {
        matches!(self.medium, Medium::SharedMemory(_))
    }
}
