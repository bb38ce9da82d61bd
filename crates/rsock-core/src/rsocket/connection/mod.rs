//! A connected rsockets stream on one device.
//!
//! It joins the engine's stream, which carries the bytes, with the connection manager's connection,
//! whose descriptor hangs up when the peer ends the connection or dies (`hang_up.rs`). Sending and
//! receiving try the stream and then wait as long as a [`WaitPolicy`] allows (`wait.rs`).

mod hang_up;
mod wait;

pub(super) use wait::WaitPolicy;

use crate::engine::{
    CallerMemory, Interest, IomapError, QpStream, ReadMode, Ready, RecvError, RemoteAccess,
    SendError, ThreadBell,
};
use crate::interrupt::Section;
use crate::iov::Rest;
use crate::metrics::{self, Direction, StreamSlot};
use crate::sys;
use rsock_cm::manager::{Connected, ContextOf, Manager};
use rsock_proto::Keepalive;
use rsock_verbs::Backend;
use rsock_verbs::family::{ProcessId, process};
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use wait::Waits;

/// How many buffers one call into the engine takes.
const PIECES: usize = 16;

/// A connected stream on the device of `M`.
#[derive(Debug)]
pub(super) struct Connection<M: Manager> {
    /// Declared before `manager_connection`: the queue pair must be dropped first.
    pub(super) stream: QpStream<M::Backend>,
    manager_connection: M::Connection,
    ctx: ContextOf<M>,
    /// What `rsock stat` shows as the path of the bytes.
    path: metrics::Transport,
    /// The process that made the connection. A forked child must not end it.
    owner: ProcessId,
    /// The connection's entry in `rsock stat`.
    stat: StreamSlot,
    /// The hang-up was seen, and the stream was notified of it.
    is_gone: AtomicBool,
    /// The peer reset the connection.
    is_reset: AtomicBool,
    /// `SO_ERROR` was read: it reports an error once.
    is_error_reported: AtomicBool,
    created_at: Instant,
    /// When a non-blocking call last checked for a hang-up. Nanoseconds since `created_at`.
    checked_at: AtomicU64,
}

impl<M: Manager> Connection<M>
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
            manager_connection: connection,
            ctx: ctx.clone(),
            path,
            owner: process(),
            stat,
            is_gone: AtomicBool::new(false),
            is_reset: AtomicBool::new(false),
            is_error_reported: AtomicBool::new(false),
            created_at: sys::now(),
            checked_at: AtomicU64::new(0),
        }
    }

    /// Sends a buffer whole, if the peer has room for it now. `None`: nothing was sent, and
    /// [`Self::send`] is to be called. PERF: a send of a byte over soft RoCE takes some 300
    /// instructions fewer (callgrind), without what sends of many buffers and waits need.
    #[inline]
    pub(super) fn send_at_once(&self, bufs: &[IoSlice<'_>]) -> Option<usize> {
        let [buf] = bufs else { return None };
        if buf.is_empty() || self.stream.owes_iomaps() {
            return None;
        }
        let _section = Section::enter();
        if !self.stream.try_send_whole(bufs, buf.len()) {
            return None;
        }
        self.stat.add_bytes(Direction::Send, self.path, buf.len() as u64);
        Some(buf.len())
    }

    /// Sends all of `bufs`, or what there is room for within `policy`.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`, `ECONNRESET`, or the error that broke the connection, if nothing was
    /// sent.
    pub(super) fn send(&self, bufs: &[IoSlice<'_>], policy: WaitPolicy) -> io::Result<usize> {
        let mut waits = Waits::begin(policy);
        let mut rest = Rest::new(bufs);
        let total = rest.len;
        self.send_iomaps(&mut waits)?;
        while rest.len != 0 {
            let mark = self.stream.mark();
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let (n, _) = rest.pieces(usize::MAX, &mut pieces);
            let end = match self.stream.try_send(&pieces[..n]) {
                Ok(n) => {
                    self.stat.add_bytes(Direction::Send, self.path, n as u64);
                    rest.advance(n);
                    waits.note_progress();
                    continue;
                }
                Err(SendError::WouldBlock) => self.wait(Interest::Write, mark, &mut waits),
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

    /// Receives what there is. `policy` limits the wait for the first byte or, with `MSG_WAITALL`,
    /// for all of `bufs`; `MSG_PEEK` leaves the bytes in the stream. 0 is the end of the stream.
    ///
    /// # Errors
    /// `EAGAIN`, `EINTR`, or the error that broke the connection, if nothing was received.
    pub(super) fn recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
        policy: WaitPolicy,
    ) -> io::Result<usize> {
        let is_peek = flags.contains(RecvFlags::PEEK);
        // Peeking never waits for more than the first byte.
        let wants_all = flags.contains(RecvFlags::WAITALL) && !is_peek;
        let mut waits = Waits::begin(policy);
        let mut rest = bufs;
        let mut total = 0;
        loop {
            let mark = self.stream.mark();
            let received = self.stream.try_recv(rest, ReadMode::of(is_peek));
            if let (Ok(n), false) = (&received, is_peek) {
                self.stat.add_bytes(Direction::Recv, self.path, *n as u64);
            }
            match received {
                Ok(0) if total == 0 && self.is_reset.load(Ordering::Acquire) => {
                    return Err(io::Error::from_raw_os_error(libc::ECONNRESET));
                }
                Ok(0) => return Ok(total),
                Ok(n) if !wants_all => return Ok(total + n),
                Ok(n) => {
                    total += n;
                    rest = skip(rest, n);
                    if len(rest) == 0 {
                        return Ok(total);
                    }
                    waits.note_progress();
                    continue;
                }
                Err(RecvError::WouldBlock) => {}
                Err(RecvError::Failed(_) | RecvError::Fault) if total > 0 => return Ok(total),
                Err(RecvError::Fault) => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                Err(RecvError::Failed(errno)) => return Err(io::Error::from_raw_os_error(errno)),
            }
            if let Err(e) = self.wait(Interest::Read, mark, &mut waits) {
                return if total > 0 { Ok(total) } else { Err(e) };
            }
        }
    }

    /// Sends iomap entries that are still to be announced, ahead of later bytes.
    fn send_iomaps(&self, waits: &mut Waits) -> io::Result<()> {
        while self.stream.owes_iomaps() {
            let mark = self.stream.mark();
            match self.stream.flush_iomaps() {
                Ok(()) => {}
                Err(SendError::WouldBlock) => self.wait(Interest::Write, mark, waits)?,
                Err(e) => return Err(send_error(e)),
            }
        }
        Ok(())
    }

    /// Registers the caller's memory, and exposes it to the peer if `access` says so; see
    /// [`QpStream::iomap`]. Returns the offset.
    ///
    /// # Errors
    /// `ENOMEM` if the peer has no free entry; `EINVAL` for too long a region; `EOPNOTSUPP` if the
    /// device cannot expose this memory.
    pub(super) fn iomap(
        &self,
        memory: &CallerMemory,
        offset: Option<u64>,
        access: RemoteAccess,
    ) -> io::Result<u64> {
        self.stream.iomap(memory, offset, access).map_err(iomap_error)
    }

    /// Allocates memory of the device and exposes it to the peer.
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

    /// Writes `bytes` into the memory that the peer exposes under `offset`: all of them, or up to
    /// the end of the region, or as many as `policy` gives time for.
    ///
    /// # Errors
    /// `EFAULT` if no region is exposed there; otherwise as [`Self::send`].
    pub(super) fn write_remote(
        &self,
        bytes: &[u8],
        offset: u64,
        policy: WaitPolicy,
    ) -> io::Result<usize> {
        let mut waits = Waits::begin(policy);
        self.send_iomaps(&mut waits)?;
        let mut done = 0;
        while done < bytes.len() {
            let mark = self.stream.mark();
            let at = offset.wrapping_add(done as u64);
            let end = match self.stream.try_write_remote(&bytes[done..], at) {
                Ok(0) => Err(io::Error::from_raw_os_error(libc::EFAULT)),
                Ok(n) => {
                    self.stat.add_bytes(Direction::Send, self.path, n as u64);
                    done += n;
                    waits.note_progress();
                    continue;
                }
                Err(SendError::WouldBlock) => self.wait(Interest::Write, mark, &mut waits),
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

    /// Which calls would not block now. COMPAT: a hang-up shows once all bytes that arrived are
    /// read. C rsockets shows it at once, and programs then lose the unread bytes.
    pub(super) fn readiness(&self) -> Ready {
        if self.stream.owes_iomaps() {
            // Entries that find no room now are sent by the next call.
            let _ = self.stream.flush_iomaps();
        }
        // A program that only polls without waiting sends its keepalive probes here.
        let _ = self.stream.keep_alive();
        let mut ready = self.stream.readiness();
        ready.failed |= self.is_reset.load(Ordering::Acquire);
        if ready.hung_up && !ready.failed && self.stream.bytes_readable() != 0 {
            ready.hung_up = false;
        }
        ready
    }

    /// The error that broke the connection; reported once.
    pub(super) fn take_error(&self) -> Option<i32> {
        let error = if self.is_reset.load(Ordering::Acquire) {
            Some(libc::ECONNRESET)
        } else {
            self.stream.take_error().and_then(|e| e.raw_os_error())
        };
        error.filter(|_| !self.is_error_reported.swap(true, Ordering::Relaxed))
    }

    /// Sets `SO_KEEPALIVE` and its times.
    pub(super) fn set_keepalive(&self, settings: Option<Keepalive>) {
        self.stream.set_keepalive(settings, self.stat.probes());
    }

    pub(super) fn shutdown(&self, how: Shutdown) {
        self.stream.shutdown(how);
    }

    /// Ends the connection: with a reset if `linger` is zero, and otherwise in order, after waiting
    /// for at most `linger` until the peer has all bytes.
    pub(super) fn close(&self, linger: Duration) {
        if process() != self.owner {
            // A forked child inherited the connection; its parent may go on using it.
            return;
        }
        if linger.is_zero() {
            // WIRE: the stream carries no end mark; the peer's connection manager reports the
            // reset.
            self.manager_connection.reset();
            self.stream.peer_gone();
        } else {
            self.stream.shutdown(Shutdown::Both);
            self.drain(linger);
            self.manager_connection.disconnect();
        }
    }

    /// As [`Self::close`], where the descriptor was closed already: the kernel has told the peer.
    pub(super) fn abandon(&self) {
        if process() == self.owner {
            self.stream.peer_gone();
        }
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.manager_connection.local_addr()
    }

    pub(super) fn peer_addr(&self) -> SocketAddr {
        self.manager_connection.peer_addr()
    }

    pub(super) fn context(&self) -> &ContextOf<M> {
        &self.ctx
    }
}

impl<M: Manager> AsFd for Connection<M> {
    /// The descriptor that shows the end of the connection.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.manager_connection.as_fd()
    }
}

/// Why memory could not be exposed, as an errno.
fn iomap_error(e: IomapError) -> io::Error {
    match e {
        IomapError::NoEntry => io::Error::from_raw_os_error(libc::ENOMEM),
        IomapError::TooLong => io::Error::from_raw_os_error(libc::EINVAL),
        IomapError::Device(e) => e.into(),
    }
}

/// The errno of a failed send. COMPAT: a send after the sending half has ended is `ECONNRESET`, as
/// for `rsend` of rdma-core, and not `EPIPE`.
fn send_error(e: SendError) -> io::Error {
    io::Error::from_raw_os_error(match e {
        SendError::WouldBlock => libc::EAGAIN,
        SendError::Fault => libc::EFAULT,
        SendError::Closed => libc::ECONNRESET,
        SendError::Failed(errno) => errno,
    })
}

#[inline]
fn len(bufs: &[IoSliceMut<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

/// `bufs` without their first `n` bytes.
#[inline]
fn skip<'a, 'b>(mut bufs: &'a mut [IoSliceMut<'b>], n: usize) -> &'a mut [IoSliceMut<'b>] {
    IoSliceMut::advance_slices(&mut bufs, n);
    bufs
}
