//! iomaps beside a twin: memory that one end opens and the other writes into directly.
//!
//! They need the path to the peer's process and nothing else: it does not matter where the streams'
//! bytes travel at the time. What is put lies in the peer's memory before the call returns, and
//! what is opened is announced in its queue, so both come before any byte that is sent later, on
//! the ring or on TCP.

use crate::accelerate::path::Path;
use crate::accelerate::{AcceleratedStream, FIRST_LOOK};
use crate::engine::{IomapError, QpStream, SendError};
use crate::interrupt::Section;
use crate::metrics::{self, Direction};
use rsock_verbs::soft::Soft;
use rsock_verbs::{Backend, MemoryRegion};
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use std::sync::Arc;

impl AcceleratedStream {
    /// Looks for the peer now, however few calls the connection has seen. True once it is found;
    /// until then call it again now and then. The peer must look, too.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if it will never be: [`Self::pin_reason`] says why.
    pub fn seek(&self, fd: BorrowedFd<'_>) -> io::Result<bool> {
        if !self.is_paired() && !self.has(crate::accelerate::FLAG_PINNED) {
            let _section = Section::enter();
            self.look(fd, FIRST_LOOK);
        }
        match self.is_paired() {
            false if self.has(crate::accelerate::FLAG_PINNED) => Err(Errno::OPNOTSUPP.into()),
            found => Ok(found),
        }
    }

    fn found(&self) -> io::Result<&QpStream<Soft>> {
        self.path().and_then(Path::soft).ok_or_else(|| Errno::NOTCONN.into())
    }

    /// Opens `len` bytes of fresh zeroed memory to the peer under `offset`, for as long as the
    /// answer lives. [`Self::try_announce`] tells the peer.
    ///
    /// # Errors
    /// `ENOTCONN` before the peer is found; `ENOMEM` if it has no entry left for us; `EINVAL` for
    /// more than 4 GiB.
    pub fn open(self: &Arc<Self>, len: usize, offset: u64) -> io::Result<Opened> {
        let (region, _) = self.found()?.expose(len, Some(offset)).map_err(|e| match e {
            IomapError::NoEntry => io::Error::from(Errno::NOMEM),
            IomapError::TooLong => Errno::INVAL.into(),
            IomapError::Device(e) => e.into(),
        })?;
        Ok(Opened { twin: Arc::clone(self), region })
    }

    /// Tells the peer what was opened and closed since; it knows before it sees anything that is
    /// sent after this succeeded.
    ///
    /// # Errors
    /// `EAGAIN` if the peer takes no message now; `ENOTCONN` before it is found.
    pub fn try_announce(&self) -> io::Result<()> {
        let path = self.found()?;
        if path.owes_iomaps() { path.flush_iomaps().map_err(errno) } else { Ok(()) }
    }

    /// Writes as much of `bytes` as goes into the memory that the peer opened under `offset`.
    ///
    /// # Errors
    /// `EFAULT` if nothing is open there; `EAGAIN` if the peer keeps writers out now; `ENOTCONN` before it is
    /// found; `ECONNRESET` and others once the connection has failed.
    pub fn try_put(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        match self.found()?.try_write_remote(bytes, offset).map_err(errno)? {
            0 if !bytes.is_empty() => Err(Errno::FAULT.into()),
            n => {
                self.count_bytes(Direction::Send, metrics::Transport::Soft, n);
                Ok(n)
            }
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

/// Memory that the peer may write at any time. Closed when dropped; keeps the path, and so what was
/// put, beyond the end of the connection.
#[derive(Debug)]
pub struct Opened {
    twin: Arc<AcceleratedStream>,
    region: Arc<<Soft as Backend>::Mr>,
}

impl Opened {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it is empty; never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Copies out what is there now. Bytes that the peer is writing at this moment arrive torn.
    ///
    /// # Panics
    /// If `at..at + dst.len()` is not inside.
    pub fn read_at(&self, at: usize, dst: &mut [u8]) {
        self.region.copy_out(at, dst);
    }

    /// Copies `src` in.
    ///
    /// # Panics
    /// If `at..at + src.len()` is not inside.
    pub fn write_at(&self, at: usize, src: &[u8]) {
        self.region.copy_in(at, src);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(path) = self.twin.path().and_then(Path::soft) {
            path.unexpose(&self.region);
        }
    }
}
