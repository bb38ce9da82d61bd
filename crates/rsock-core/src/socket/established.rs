//! A connected stream of the pure mode: the engine's stream, the connection's anchor, and the calls
//! that wait.

use crate::engine::{
    CallerMemory, Interest, IomapError, Ready, RecvError, SendError, Stream, ThreadBell, Wake,
};
use crate::interrupt::Watch;
use crate::iov::Rest;
use crate::stat::{self, Direction, Slot};
use crate::sys;
use rsock_cm::manager::{Connected, ContextOf, Manager, Status};
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::{Backend, Bell};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long the cheapest sleep lasts before the anchor is watched, too.
const PARK: Duration = Duration::from_millis(10);
/// How often calls in vain look at the anchor. Nanoseconds.
const LOOK_EVERY_NS: u64 = 20_000;
/// Buffers handed to the engine at once.
const PIECES: usize = 16;

/// A connected stream.
#[derive(Debug)]
pub(super) struct Established<M: Manager> {
    /// Before the connection: the queue pair goes first.
    pub(super) stream: Stream<M::Backend>,
    connection: M::Connection,
    ctx: ContextOf<M>,
    /// For `rsock stat`.
    path: stat::Path,
    owner: ProcessId,
    /// For `rsock stat`.
    stat: Slot,
    /// The anchor has hung up, and the stream knows.
    is_gone: AtomicBool,
    /// The peer reset the connection.
    is_reset: AtomicBool,
    error_told: AtomicBool,
    born: Instant,
    /// When a call that does not wait last looked at the anchor. Nanoseconds since `born`.
    looked_at: AtomicU64,
}

/// How long a call may take.
#[derive(Clone, Copy, Debug)]
pub(super) enum Patience {
    /// Not at all.
    None,
    /// Not at all, and the caller watches the anchor by itself.
    Watched,
    /// Until then, or for ever.
    Until(Option<Instant>),
}

impl Patience {
    /// For a call that starts now.
    pub(super) fn new(nonblocking: bool, limit: Option<Duration>) -> Self {
        if nonblocking {
            Self::None
        } else {
            Self::Until(limit.and_then(|l| sys::now().checked_add(l)))
        }
    }
}

impl<M: Manager> Established<M>
where
    M::Backend: ThreadBell,
{
    pub(super) fn new(
        ctx: &ContextOf<M>,
        stream: Stream<M::Backend>,
        connection: M::Connection,
        path: stat::Path,
    ) -> Self {
        let inode = rustix::fs::fstat(connection.as_fd()).map_or(0, |s| s.st_ino);
        let stat = Slot::open(connection.local_addr(), connection.peer_addr(), inode);
        stat.set_path(Direction::Send, path);
        stat.set_path(Direction::Recv, path);
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
            let received = self.stream.try_recv(rest, peek);
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
                Err(RecvError::Failed(_)) if total > 0 => return Ok(total),
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

    /// Opens the caller's memory to the peer; see [`Stream::iomap`].
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
        self.stream.iomap(memory, offset, open).map_err(iomap_error)
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
        self.stream.open_region(len, offset).map_err(iomap_error)
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
            let end = match self.stream.try_put(&bytes[done..], at) {
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

    /// Waits until something has changed since `mark`.
    fn wait(
        &self,
        interest: Interest,
        mark: u32,
        patience: Patience,
        watch: Watch,
    ) -> io::Result<()> {
        let Patience::Until(deadline) = patience else {
            if matches!(patience, Patience::None) && self.is_look_due() {
                self.look_at_anchor();
            }
            return if self.stream.has_changed(mark) { Ok(()) } else { would_block() };
        };
        let direction = match interest {
            Interest::Read => Direction::Recv,
            Interest::Write => Direction::Send,
        };
        if self.stream.spin(interest, mark) {
            self.stat.add_spin(direction);
            return Ok(());
        }
        self.stat.add_wakeup(direction);
        let limit = |most: Duration| sys::time_left(deadline).map_or(most, |left| left.min(most));
        match self.stream.park(mark, limit(PARK)) {
            Wake::Changed => return Ok(()),
            Wake::Interrupted if watch.must_end() => return interrupted(),
            Wake::Interrupted | Wake::TimedOut => {}
        }
        M::Backend::with_bell(&self.ctx, |bell| self.sleep(bell, mark, deadline, watch))?
    }

    /// Sleeps on descriptors: the bell, and the anchor.
    fn sleep(
        &self,
        bell: &<M::Backend as Backend>::Bell,
        mark: u32,
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        loop {
            let Some(armed) = self.stream.arm(bell, mark) else { return Ok(()) };
            let mut fds = [
                libc::pollfd { fd: bell.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 },
                self.anchor_entry(),
            ];
            let left = sys::time_left(deadline);
            let bound = armed.bound();
            let limit = [left, bound].into_iter().flatten().min();
            let slept = sys::sleep(&mut fds, limit, None, watch);
            drop(armed);
            if fds[0].revents != 0 {
                bell.drain();
            }
            self.note_anchor(fds[1].revents);
            if self.stream.has_changed(mark) {
                return Ok(());
            }
            match slept {
                Err(e) if e.raw_os_error() == Some(libc::EINTR) => {
                    if watch.must_end() {
                        return Err(e);
                    }
                }
                Err(e) => return Err(e),
                Ok(_) if left.is_some_and(|left| left.is_zero()) => return would_block(),
                Ok(_) => {}
            }
        }
    }

    /// What to poll of the anchor: its end, once.
    pub(super) fn anchor_entry(&self) -> libc::pollfd {
        let gone = self.is_gone.load(Ordering::Relaxed);
        let fd = if gone { -1 } else { self.connection.as_fd().as_raw_fd() };
        libc::pollfd { fd, events: self.connection.interest().bits().cast_signed(), revents: 0 }
    }

    /// Takes note of what polling [`Self::anchor_entry`] found.
    pub(super) fn note_anchor(&self, revents: i16) {
        if revents == 0 || self.is_gone.load(Ordering::Acquire) {
            return;
        }
        match self.connection.status() {
            // Something else came of it.
            Status::Connected if revents & libc::POLLHUP == 0 => return,
            Status::Reset => self.is_reset.store(true, Ordering::Release),
            _ => {}
        }
        self.is_gone.store(true, Ordering::Release);
        // What arrived before the hang-up stays readable.
        self.stream.peer_gone();
    }

    /// For a program that waits by calling us again and again: whether it is time to look at the
    /// anchor, which costs a system call. Such a program must learn of the peer's death, too, and
    /// must leave the CPU to a peer that needs it to answer: when it is time, this yields.
    pub(super) fn is_look_due(&self) -> bool {
        let now = self.born.elapsed().as_nanos();
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        if now.saturating_sub(self.looked_at.load(Ordering::Relaxed)) < LOOK_EVERY_NS {
            return false;
        }
        self.looked_at.store(now, Ordering::Relaxed);
        rustix::thread::sched_yield();
        true
    }

    /// Asks whether the anchor has hung up; never waits.
    pub(super) fn look_at_anchor(&self) {
        let mut fds = [self.anchor_entry()];
        if fds[0].fd >= 0 && sys::ppoll(&mut fds, Some(Duration::ZERO), None).is_ok() {
            self.note_anchor(fds[0].revents);
        }
    }

    /// As [`Self::look_at_anchor`]. Whether the connection is over.
    pub(super) fn look_at_anchor_once(&self) -> bool {
        self.look_at_anchor();
        self.is_gone.load(Ordering::Acquire)
    }

    /// What could be done now. COMPAT: the hang-up shows once everything that arrived is read; C
    /// shows it as soon as it knows, and programs then drop the rest.
    pub(super) fn readiness(&self) -> Ready {
        if self.stream.owes_iomaps() {
            // What cannot go now goes with the next call.
            let _ = self.stream.flush_iomaps();
        }
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

    /// Waits until the peer has everything, is gone, or time is up.
    fn drain(&self, limit: Duration) {
        let deadline = sys::now().checked_add(limit);
        while !self.is_gone.load(Ordering::Acquire) {
            let (watch, mark) = (Watch::begin(), self.stream.mark());
            if self.stream.is_drained() {
                break;
            }
            match self.wait(Interest::Write, mark, Patience::Until(deadline), watch) {
                Err(e) if e.kind() != io::ErrorKind::Interrupted => break,
                _ => {}
            }
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
        SendError::Closed => libc::ECONNRESET,
        SendError::Failed(errno) => errno,
    })
}

fn would_block() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EAGAIN))
}

fn interrupted() -> io::Result<()> {
    Err(io::Error::from_raw_os_error(libc::EINTR))
}

fn len(bufs: &[IoSliceMut<'_>]) -> usize {
    bufs.iter().map(|b| b.len()).sum()
}

/// The buffers behind their first `n` bytes.
fn skip<'a, 'b>(mut bufs: &'a mut [IoSliceMut<'b>], n: usize) -> &'a mut [IoSliceMut<'b>] {
    IoSliceMut::advance_slices(&mut bufs, n);
    bufs
}
