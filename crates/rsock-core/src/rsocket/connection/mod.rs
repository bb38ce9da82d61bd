//! A connected stream of the pure mode: the engine's stream, the connection's anchor, and the calls
//! that wait.

mod anchor;
mod waiting;

pub(super) use waiting::Patience;

use crate::engine::{
    CallerMemory, Interest, IomapError, PeerAccess, QpStream, ReadMode, Ready, RecvError,
    SendError, ThreadBell,
};
use crate::interrupt::Watch;
use crate::iov::Rest;
use crate::metrics::{self, Direction, StreamSlot};
use crate::sys;
use rsock_cm::manager::{Connected, ContextOf, Manager};
use rsock_proto::Keepalive;
use rsock_verbs::Backend;
use rsock_verbs::family::{ProcessId, process};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Buffers handed to the engine at once.
const PIECES: usize = 16;

/// A connected stream.
#[derive(Debug)]
pub(super) struct Established<M: Manager> {
    /// Before the connection: the queue pair goes first.
    pub(super) stream: QpStream<M::Backend>,
    connection: M::Connection,
    ctx: ContextOf<M>,
    /// For `rsock stat`.
    path: metrics::Transport,
    owner: ProcessId,
    /// For `rsock stat`.
    stat: StreamSlot,
    /// The anchor has hung up, and the stream knows.
    is_gone: AtomicBool,
    /// The peer reset the connection.
    is_reset: AtomicBool,
    error_told: AtomicBool,
    born: Instant,
    /// When a call that does not wait last looked at the anchor. Nanoseconds since `born`.
    looked_at: AtomicU64,
}

impl<M: Manager> Established<M>
where
    M::Backend: ThreadBell,
{
    pub(super) fn new(
        ctx: &ContextOf<M>,
        stream: QpStream<M::Backend>,
        connection: M::Connection,
        path: metrics::Transport,
    ) -> Self {
        let inode = rustix::fs::fstat(connection.as_fd()).map_or(0, |s| s.st_ino);
        let stat = StreamSlot::open(connection.local_addr(), connection.peer_addr(), inode);
        stat.set_transport(Direction::Send, path);
        stat.set_transport(Direction::Recv, path);
        stat.set_peer_pid(connection.peer_pid());
        Self {
            stream,
            connection,
            ctx: ctx.clone(),
            path,
            owner: process(),
            stat,
            is_gone: AtomicBool::new(false),
            is_reset: AtomicBool::new(false),
            error_told: AtomicBool::new(false),
            born: sys::now(),
            looked_at: AtomicU64::new(0),
        }
    }

    /// Sends all of `bufs`, or what there is room for within `patience`.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`, `ECONNRESET`, or the error that broke the connection, if nothing was
    /// sent.
    pub(super) fn send(&self, bufs: &[IoSlice<'_>], patience: Patience) -> io::Result<usize> {
        let watch = Watch::begin();
        let mut rest = Rest::new(bufs);
        let total = rest.len;
        self.send_iomaps(patience, watch)?;
        while rest.len != 0 {
            let mark = self.stream.mark();
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let (n, _) = rest.pieces(usize::MAX, &mut pieces);
            let end = match self.stream.try_send(&pieces[..n]) {
                Ok(n) => {
                    self.stat.add_bytes(Direction::Send, self.path, n as u64);
                    rest.advance(n);
                    continue;
                }
                Err(SendError::WouldBlock) => self.wait(Interest::Write, mark, patience, watch),
                Err(e) => Err(send_error(e)),
            };
            match end {
                Ok(()) => {}
                Err(_) if rest.len < total => break,
                Err(e) => return Err(e),
            }
        }
        Ok(total - rest.len)
    }

    /// Receives what there is, waiting within `patience` for the first byte, or for all of `bufs`
    /// with `all`. 0 is the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`, or the error that broke the connection, if nothing was received.
    pub(super) fn recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        peek: bool,
        all: bool,
        patience: Patience,
    ) -> io::Result<usize> {
        let watch = Watch::begin();
        let mut rest = bufs;
        let mut total = 0;
        loop {
            let mark = self.stream.mark();
            let received = self.stream.try_recv(rest, ReadMode::of(peek));
            if let (Ok(n), false) = (&received, peek) {
                self.stat.add_bytes(Direction::Recv, self.path, *n as u64);
            }
            match received {
                Ok(0) if total == 0 && self.is_reset.load(Ordering::Acquire) => {
                    return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
                }
                Ok(0) => return Ok(total),
                // Peeking never waits for more than the first byte.
                Ok(n) if !all || peek => return Ok(total + n),
                Ok(n) => {
                    total += n;
                    rest = skip(rest, n);
                    if len(rest) == 0 {
                        return Ok(total);
                    }
                    continue;
                }
                Err(RecvError::WouldBlock) => {}
                Err(RecvError::Failed(_) | RecvError::Fault) if total > 0 => return Ok(total),
                Err(RecvError::Fault) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                Err(RecvError::Failed(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            }
            if let Err(e) = self.wait(Interest::Read, mark, patience, watch) {
                return if total > 0 { Ok(total) } else { Err(e) };
            }
        }
    }

    /// Sends the iomap entries that are owed: they go before what is sent later.
    fn send_iomaps(&self, patience: Patience, watch: Watch) -> io::Result<()> {
        while self.stream.owes_iomaps() {
            let mark = self.stream.mark();
            match self.stream.flush_iomaps() {
                Ok(()) => {}
                Err(SendError::WouldBlock) => self.wait(Interest::Write, mark, patience, watch)?,
                Err(e) => return Err(send_error(e)),
            }
        }
        Ok(())
    }

    /// Opens the caller's memory to the peer; see [`QpStream::iomap`].
    ///
    /// # Errors
    /// `ENOMEM` if the peer has no entry for it; `EINVAL`; `EOPNOTSUPP` where the device cannot open
    /// this memory.
    pub(super) fn iomap(
        &self,
        memory: &CallerMemory,
        offset: Option<u64>,
        open: bool,
    ) -> io::Result<u64> {
        self.stream.iomap(memory, offset, PeerAccess::of(open)).map_err(iomap_error)
    }

    /// Memory of the device's own, opened to the peer.
    ///
    /// # Errors
    /// As [`Self::iomap`].
    pub(super) fn open_region(
        &self,
        len: usize,
        offset: Option<u64>,
    ) -> io::Result<(Arc<<M::Backend as Backend>::Mr>, u64)> {
        self.stream.expose(len, offset).map_err(iomap_error)
    }

    /// Writes `bytes` into the memory that the peer opened under `offset`: all of them, or up to
    /// the end of what is open, or as much as `patience` allows.
    ///
    /// # Errors
    /// `EFAULT` if nothing is open there; as [`Self::send`].
    pub(super) fn put(&self, bytes: &[u8], offset: u64, patience: Patience) -> io::Result<usize> {
        let watch = Watch::begin();
        self.send_iomaps(patience, watch)?;
        let mut done = 0;
        while done < bytes.len() {
            let mark = self.stream.mark();
            let at = offset.wrapping_add(done as u64);
            let end = match self.stream.try_write_remote(&bytes[done..], at) {
                Ok(0) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
                Ok(n) => {
                    self.stat.add_bytes(Direction::Send, self.path, n as u64);
                    done += n;
                    continue;
                }
                Err(SendError::WouldBlock) => self.wait(Interest::Write, mark, patience, watch),
                Err(e) => Err(send_error(e)),
            };
            match end {
                Ok(()) => {}
                Err(_) if done > 0 => break,
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// What could be done now. COMPAT: the hang-up shows once everything that arrived is read; C
    /// shows it as soon as it knows, and programs then drop the rest.
    pub(super) fn readiness(&self) -> Ready {
        if self.stream.owes_iomaps() {
            // What cannot go now goes with the next call.
            let _ = self.stream.flush_iomaps();
        }
        // A program that only ever polls without waiting asks after the peer, too.
        let _ = self.stream.keep_alive();
        let mut ready = self.stream.readiness();
        ready.failed |= self.is_reset.load(Ordering::Acquire);
        if ready.hung_up && !ready.failed && self.stream.bytes_readable() != 0 {
            ready.hung_up = false;
        }
        ready
    }

    /// The error that broke the connection; told once.
    pub(super) fn take_error(&self) -> Option<i32> {
        let error = if self.is_reset.load(Ordering::Acquire) {
            Some(libc::ECONNRESET)
        } else {
            self.stream.take_error().and_then(|e| e.raw_os_error())
        };
        error.filter(|_| !self.error_told.swap(true, Ordering::Relaxed))
    }

    /// `SO_KEEPALIVE` and its times.
    pub(super) fn set_keepalive(&self, settings: Option<Keepalive>) {
        self.stream.set_keepalive(settings, self.stat.probes());
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        self.stream.shutdown(how);
    }

    /// Ends the connection: in good order, or with a reset. What was sent and is not at the peer yet
    /// gets as long as `linger` for its way.
    pub(super) fn close(&self, reset: bool, linger: Duration) {
        if process() != self.owner {
            // A forked child lets go of what is its parent's; the parent may go on.
            return;
        }
        if reset {
            // WIRE: no end of the stream in the stream itself; the anchor brings the reset.
            self.connection.reset();
            self.stream.peer_gone();
        } else {
            self.stream.shutdown(Shutdown::Both);
            self.drain(linger);
            self.connection.disconnect();
        }
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.connection.local_addr()
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.connection.peer_addr()
    }

    pub(super) fn context(&self) -> &ContextOf<M> {
        &self.ctx
    }
}

impl<M: Manager> AsFd for Established<M> {
    /// The anchor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// Why memory could not be opened, as an errno.
fn iomap_error(e: IomapError) -> io::Error {
    match e {
        IomapError::NoEntry => io::Error::from_raw_os_error(libc::ENOMEM),
        IomapError::TooLong => io::Error::from_raw_os_error(libc::EINVAL),
        IomapError::Device(e) => e.into(),
    }
}

/// COMPAT: writing after the sending half has ended is `ECONNRESET`, as `rsend` says, not `EPIPE`.
fn send_error(e: SendError) -> io::Error {
    io::Error::from_raw_os_error(match e {
        SendError::WouldBlock => libc::EAGAIN,
        SendError::Fault => libc::EFAULT,
        SendError::Closed => libc::ECONNRESET,
        SendError::Failed(errno) => errno,
    })
}

fn len(bufs: &[IoSliceMut<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

/// The buffers behind their first `n` bytes.
fn skip<'a, 'b>(mut bufs: &'a mut [IoSliceMut<'b>], n: usize) -> &'a mut [IoSliceMut<'b>] {
    IoSliceMut::advance_slices(&mut bufs, n);
    bufs
}
