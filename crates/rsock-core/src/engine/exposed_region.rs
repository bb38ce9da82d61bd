//! Memory that a stream exposes to its peer's direct writes.

use rsock_verbs::MemoryRegion;
use std::fmt::Debug;
use std::sync::Arc;

/// A stream that exposes memory.
pub(crate) trait ExposesMemory: Debug + Send + Sync {
    /// Takes `region` back from the peer.
    fn unexpose(&self, region: &dyn MemoryRegion);
}

/// Memory that the peer may write at any time. Dropping it takes it back from the peer. It keeps
/// the stream's path, and so what the peer wrote, beyond the end of the connection.
#[derive(Debug)]
pub struct ExposedRegion {
    stream: Arc<dyn ExposesMemory>,
    region: Arc<dyn MemoryRegion>,
}

impl ExposedRegion {
    pub(crate) fn new(stream: Arc<dyn ExposesMemory>, region: Arc<dyn MemoryRegion>) -> Self {
        Self { stream, region }
    }

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
        self.stream.unexpose(&*self.region);
    }
}
