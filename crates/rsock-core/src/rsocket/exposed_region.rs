//! Memory that a socket exposes to its peer's direct writes.

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
        Ok(ExposedRegion { socket: Arc::clone(self), region })
    }
}

/// Memory that the peer may write at any time. Dropping it takes it back from the peer.
#[derive(Debug)]
pub struct ExposedRegion {
    socket: Arc<Socket>,
    region: Arc<dyn MemoryRegion>,
}

impl ExposedRegion {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Copies the bytes from `at` on out to `dst`. If the peer writes them at this moment, `dst`
    /// may hold some old and some new bytes.
    ///
    /// # Panics
    /// If `at..at + dst.len()` is not inside the region.
    pub fn read_at(&self, at: usize, dst: &mut [u8]) {
        self.region.copy_out(at, dst);
    }

    /// Copies `src` in, from `at` on.
    ///
    /// # Panics
    /// If `at..at + src.len()` is not inside the region.
    pub fn write_at(&self, at: usize, src: &[u8]) {
        self.region.copy_in(at, src);
    }
}

impl Drop for ExposedRegion {
    fn drop(&mut self) {
        if let Some(connection) = self.socket.connection() {
            connection.close_region(&*self.region);
        }
    }
}
