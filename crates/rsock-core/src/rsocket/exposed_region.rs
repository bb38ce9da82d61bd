//! Memory that a socket exposes to its peer's direct writes.

use crate::engine::{ExposedRegion, ExposesMemory};
use crate::rsocket::Socket;
use rsock_verbs::MemoryRegion;
use std::io;
use std::sync::Arc;

impl Socket {
    /// Exposes `len` bytes of fresh zeroed memory to the peer's [`Self::write_remote`] under
    /// `offset`, until the answer is dropped. The peer learns of the region before it receives
    /// what this end sends afterwards.
    ///
    /// # Errors
    /// `ENOTCONN`; `ENOMEM` if the peer has no free iomap entry (`RDMA_IOMAPSIZE` of the peer says
    /// how many it offers).
    pub fn expose(self: &Arc<Self>, len: usize, offset: u64) -> io::Result<ExposedRegion> {
        let connection = self.connection().ok_or(io::ErrorKind::NotConnected)?;
        let region = connection.open_region(len, offset)?;
        Ok(ExposedRegion::new(Arc::<Self>::clone(self), region))
    }
}

impl ExposesMemory for Socket {
    fn unexpose(&self, region: &dyn MemoryRegion) {
        if let Some(connection) = self.connection() {
            connection.close_region(region);
        }
    }
}
