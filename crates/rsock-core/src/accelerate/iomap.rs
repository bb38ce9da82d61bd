//! iomaps beside an accelerated stream: memory that one end exposes and the other writes into
//! directly.
//!
//! They need a path to the peer's process and nothing else: it does not matter which way the bytes
//! of the stream take at the time. A remote write lies in the peer's memory before the call
//! returns, and an exposed region is announced in the peer's queue. So both come before any byte
//! that is sent later, on the ring or on TCP.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::path::Path;
use crate::engine::{ExposedRegion, ExposesMemory, IomapError, QpStream, SendError};
use crate::metrics::{self, Direction};
use rsock_verbs::MemoryRegion;
use rsock_verbs::soft::Soft;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

impl AcceleratedStream {
    /// Searches for the peer now, however few calls the connection has seen. Returns `true` once it
    /// is found; until then call it again now and then. The peer must search, too.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the peer will never be found: [`Self::pin_reason`] says why.
    pub fn find_peer(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        if !self.has_path() && !self.has(crate::accelerate::FLAG_PINNED) {
            self.step_uncounted(fd);
        }
        match self.has_path() {
            false if self.has(crate::accelerate::FLAG_PINNED) => Err(Errno::OPNOTSUPP.into()),
            found => Ok(found),
        }
    }

    fn soft_stream(&self) -> io::Result<&QpStream<Soft>> {
        self.path().and_then(Path::soft).ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Exposes `len` bytes of fresh zeroed memory to the peer under `offset`, until the returned
    /// value is dropped. [`Self::try_announce`] tells the peer.
    ///
    /// # Errors
    /// `ENOTCONN` before the peer is found; `ENOMEM` if the peer's iomap has no free entry;
    /// `EINVAL` for more than 4 GiB.
    pub fn expose(self: &Arc<Self>, len: usize, offset: u64) -> io::Result<ExposedRegion> {
        let (region, _) = self.soft_stream()?.expose(len, Some(offset)).map_err(|e| match e {
            IomapError::NoEntry => io::Error::from(Errno::NOMEM),
            IomapError::TooLong => Errno::INVAL.into(),
            IomapError::Device(e) => e.into(),
        })?;
        Ok(ExposedRegion::new(Arc::<Self>::clone(self), region))
    }

    /// Tells the peer which regions were exposed and closed since the last call. The peer learns of
    /// them before it receives anything that is sent after this succeeded.
    ///
    /// # Errors
    /// `EAGAIN` if the peer takes no message now; `ENOTCONN` before it is found.
    pub fn try_announce(&self) -> io::Result<()> {
        let path = self.soft_stream()?;
        if path.owes_iomaps() { path.flush_iomaps().map_err(errno) } else { Ok(()) }
    }

    /// Writes as much of `bytes` as fits into the memory that the peer exposed under `offset`.
    ///
    /// # Errors
    /// `EFAULT` if nothing is exposed there; `EAGAIN` while the peer keeps writers out; `ENOTCONN`
    /// before the peer is found; `ECONNRESET` and others once the connection has failed.
    pub fn try_write_remote(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.soft_stream()?.try_write_remote(bytes, offset).map_err(errno)? {
            0 if !bytes.is_empty() => Err(Errno::FAULT.into()),
            n => {
                self.count_bytes(Direction::Send, metrics::Transport::Soft, n);
                Ok(n)
            }
        }
    }
}

impl ExposesMemory for AcceleratedStream {
    fn unexpose(&self, region: &dyn MemoryRegion) {
        if let Some(path) = self.path().and_then(Path::soft) {
            path.unexpose(region);
        }
    }
}

fn errno(e: SendError) -> io::Error {
    match e {
        SendError::WouldBlock => Errno::AGAIN.into(),
        SendError::Fault => Errno::FAULT.into(),
        SendError::Closed => Errno::PIPE.into(),
        SendError::Failed(errno) => io::Error::from_raw_os_error(errno),
    }
}
