//! What the handles of one stream share: the socket, its twin, and how tasks wait for both.
//!
//! A wait follows one order everywhere: take a mark, try, park (be found by whoever wakes), then
//! look at each source of events; whatever has happened since the try means trying again.

use crate::link::Link;
use crate::wakers::Waiter;
use rsock_core::twin::{self, Mark, PinReason, PollEntry, Twin};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop;

/// Rounds of trying and waiting in one poll, before other tasks get their turn.
const ROUNDS: u32 = 8;

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) socket: TcpStream,
    /// `None` where the stream can never leave TCP.
    link: Option<Arc<Link>>,
    /// Somebody else closes the connection.
    is_handed_over: AtomicBool,
}

/// What a wait is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Read,
    Write,
}

impl Side {
    pub(crate) fn interest(self) -> Interest {
        match self {
            Self::Read => Interest::READABLE,
            Self::Write => Interest::WRITABLE,
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 2,
        }
    }

    pub(crate) fn task(self) -> Waiter {
        match self {
            Self::Read => Waiter::Reader,
            Self::Write => Waiter::Writer,
        }
    }
}

impl Shared {
    pub(crate) fn new(socket: TcpStream, spin: Duration, iomap_slots: u16) -> Self {
        let twin = Twin::adopt_with(socket.as_fd(), iomap_slots);
        let link = twin.map(|twin| Link::new(Arc::new(twin), spin));
        Self { socket, link, is_handed_over: AtomicBool::new(false) }
    }

    pub(crate) fn twin(&self) -> Option<&Twin> {
        self.link.as_ref().map(|link| &*link.twin)
    }

    /// The twin, to be held on to; `Unsupported` where the stream can never leave TCP.
    pub(crate) fn held_twin(&self) -> io::Result<&Arc<Twin>> {
        match &self.link {
            Some(link) => Ok(&link.twin),
            None => Err(rustix::io::Errno::OPNOTSUPP.into()),
        }
    }

    /// As [`Link::note_pairing`].
    pub(crate) fn note_pairing(&self) {
        if let Some(link) = &self.link {
            link.note_pairing();
        }
    }

    /// Another kind of stream takes the connection over.
    pub(crate) fn hand_over(&self) -> io::Result<rsock_core::socket::Stream> {
        let socket = std::net::TcpStream::from(self.socket.as_fd().try_clone_to_owned()?);
        self.is_handed_over.store(true, Ordering::Relaxed);
        let twin = self.link.as_ref().map(|link| Arc::clone(&link.twin));
        Ok(rsock_core::socket::Stream::from_parts(socket, twin))
    }

    pub(crate) fn try_recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let Some(link) = &self.link else {
            return self.socket.try_io(Interest::READABLE, || {
                plain_recv(&self.socket, bufs, flags | RecvFlags::DONTWAIT)
            });
        };
        if bufs.iter().all(|b| b.is_empty()) {
            return Ok(0);
        }
        let fd = self.socket.as_fd();
        let result = again(|| link.twin.recv(fd, bufs, flags | RecvFlags::DONTWAIT));
        link.note_pairing();
        result
    }

    /// Bytes that a receive could return now.
    pub(crate) fn bytes_readable(&self) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        match self.twin() {
            Some(twin) => twin.bytes_readable(fd),
            None => Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(usize::MAX)),
        }
    }

    pub(crate) fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let Some(link) = &self.link else {
            return self.socket.try_write_vectored(bufs);
        };
        let fd = self.socket.as_fd();
        again(|| link.twin.send(fd, bufs, SendFlags::DONTWAIT))
    }

    pub(crate) fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Side::Read, Side::Read.task(), || self.try_recv(bufs, flags))
    }

    pub(crate) fn poll_send(
        &self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Side::Write, Side::Write.task(), || self.try_send(bufs))
    }

    /// Tries `io` until it answers something other than that it would block; waits as `who`.
    pub(crate) fn poll_io<R>(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        who: Waiter,
        mut io: impl FnMut() -> io::Result<R>,
    ) -> Poll<io::Result<R>> {
        // The runtime's budget: bytes that are always there must not keep other tasks from running.
        let coop = ready!(coop::poll_proceed(cx));
        if let Some(link) = &self.link {
            link.unpark(who);
        }
        for _ in 0..ROUNDS {
            let mark = self.twin().map(Twin::mark);
            match io() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => {
                    coop.made_progress();
                    return Poll::Ready(done);
                }
            }
            if let Err(e) = ready!(self.poll_event(cx, side, who, mark)) {
                return Poll::Ready(Err(e));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// After a try that would have blocked: ready when it is time for another.
    fn poll_event(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        who: Waiter,
        mark: Option<Mark>,
    ) -> Poll<io::Result<()>> {
        let (Some(link), Some(mark)) = (&self.link, mark) else {
            // Trying has told the runtime already that the socket is not ready.
            return self.poll_socket(cx, side);
        };
        if link.spin(mark) {
            return Poll::Ready(Ok(()));
        }
        link.park(who, cx.waker());
        let event = self.poll_sources(link, side, mark);
        if event.is_ready() {
            // Others who wait may have been about to look for the very event that is used up here.
            link.unpark(who);
            link.wakers.wake_all();
        }
        event
    }

    fn poll_sources(&self, link: &Arc<Link>, side: Side, mark: Mark) -> Poll<io::Result<()>> {
        let mut everyone = link.context();
        let patience = if side == Side::Write { link.twin.patience() } else { None };
        if let Some(patience) = patience {
            // On the ring, the socket does not tell when there is room, nor that nobody will make
            // any: the ring does, or the next try.
            if link.wait_at_most(patience)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
        } else if link.wakers.watch(side.bit()) {
            let socket = self.poll_socket(&mut everyone, side);
            if socket.is_ready() {
                link.wakers.unwatch(side.bit());
                ready!(socket)?;
                self.clear(side);
                if side == Side::Read {
                    link.twin.note_socket();
                }
                return Poll::Ready(Ok(()));
            }
        }
        if !link.twin.is_paired() {
            return Poll::Pending;
        }
        match link.watch(mark) {
            Poll::Ready(Err(_)) => {
                // No doorbell can be made: back to TCP. Until the peer has left too, look again
                // and again.
                link.twin.pin(self.socket.as_fd(), PinReason::Resources);
                link.wakers.wake_all();
                Poll::Pending
            }
            other => other,
        }
    }

    fn poll_socket(&self, cx: &mut Context<'_>, side: Side) -> Poll<io::Result<()>> {
        match side {
            Side::Read => self.socket.poll_read_ready(cx),
            Side::Write => self.socket.poll_write_ready(cx),
        }
    }

    /// Forgets that the socket was ready: what comes after this shows as a new event, and the next
    /// try sees what came before.
    fn clear(&self, side: Side) {
        let blocked = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.socket.try_io(side.interest(), blocked);
    }

    /// What a try would do now, without trying: whether input, or room, is there or has ended.
    pub(crate) fn is_ready(&self, interest: Interest) -> io::Result<(bool, bool)> {
        let mut events = PollFlags::empty();
        if interest.is_readable() {
            events |= PollFlags::IN | PollFlags::RDHUP;
        }
        if interest.is_writable() {
            events |= PollFlags::OUT;
        }
        let entry = PollEntry {
            fd: self.socket.as_raw_fd(),
            twin: self.twin(),
            events,
            revents: PollFlags::empty(),
        };
        let mut entries = [entry];
        twin::poll(&mut entries, Some(Duration::ZERO), None)?;
        if let Some(link) = &self.link {
            link.note_pairing();
        }
        let found = entries[0].revents;
        let ended = PollFlags::ERR | PollFlags::HUP;
        let read = found.intersects(PollFlags::IN | PollFlags::RDHUP | ended);
        let write = found.intersects(PollFlags::OUT | ended);
        Ok((read && interest.is_readable(), write && interest.is_writable()))
    }

    /// A number for a future that waits.
    pub(crate) fn waiter() -> Waiter {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Waiter::Other(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// A future that waited as `who` is dropped.
    pub(crate) fn leave(&self, who: Waiter) {
        if let Some(link) = &self.link {
            link.unpark(who);
        }
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        let fd = self.socket.as_fd();
        let done = match self.twin() {
            Some(twin) => twin.shutdown(fd, how),
            None => Ok(rustix::net::shutdown(fd, how)?),
        };
        // A task that waits to read learns of it.
        if let Some(link) = &self.link {
            link.wakers.wake_all();
        }
        done
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(link) = &self.link {
            link.close();
            if !self.is_handed_over.load(Ordering::Relaxed) {
                link.twin.close(self.socket.as_fd());
            }
        }
    }
}

/// Tries again after a signal handler ran.
fn again<R>(mut f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match f() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}

fn plain_recv(
    socket: &TcpStream,
    bufs: &mut [IoSliceMut<'_>],
    flags: RecvFlags,
) -> io::Result<usize> {
    let mut none = rustix::net::RecvAncillaryBuffer::default();
    Ok(rustix::net::recvmsg(socket, bufs, &mut none, flags)?.bytes)
}
