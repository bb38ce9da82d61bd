//! Ways past UDP: through shared memory to a peer on this host, or over an RDMA device.

use crate::datagram::header::{HeaderBytes, MAX_QUEUE_HEADER};
use crate::datagram::local::Local;
use crate::datagram::remote::FarWay;
use crate::datagram::table;
use rsock_verbs::soft::SoftDestination;
use rsock_verbs::{DatagramError, DatagramQueue, Posted};
use std::io::IoSlice;
use std::sync::Arc;

/// A way to a peer's queue.
#[derive(Debug)]
pub(super) struct Way {
    pub(super) over: Over,
    /// What goes before each datagram.
    pub(super) header: HeaderBytes<MAX_QUEUE_HEADER>,
}

#[derive(Debug)]
pub(super) enum Over {
    Memory(SoftDestination),
    Fabric(FarWay),
}

impl Way {
    /// Sends the pieces as one datagram; who waits for it learns of it by [`Self::ring`].
    pub(super) fn post(
        &self,
        local: Option<&Local>,
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
        local: Option<&Local>,
        pieces: &[IoSlice<'_>],
    ) -> Result<Posted, DatagramError> {
        match (&self.over, local) {
            (Over::Memory(to), Some(local)) => local.ud.post(to, pieces),
            (Over::Memory(_), None) => Err(DatagramError::Gone),
            (Over::Fabric(FarWay { to, queue }), _) => queue.post(to, pieces),
        }
    }

    /// Wakes whoever waits for what was posted.
    pub(super) fn ring(&self, local: Option<&Local>) {
        // A device tells by itself.
        if let (Over::Memory(to), Some(local)) = (&self.over, local) {
            local.ud.ring(to);
        }
    }

    /// Bytes of the longest datagram that goes this way.
    pub(super) fn max_payload(&self, local: Option<&Local>) -> usize {
        let most = match &self.over {
            Over::Memory(_) => local.map_or(0, |local| local.ud.max_len()),
            Over::Fabric(way) => way.queue.max_len(),
        };
        most.saturating_sub(self.header.as_bytes().len())
    }
}

impl table::Way for Arc<Way> {
    fn notices_its_end(&self) -> bool {
        matches!(self.over, Over::Memory(_))
    }
}
