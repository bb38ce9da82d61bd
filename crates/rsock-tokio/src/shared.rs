//! What the handles of one stream share: what it is, and how tasks wait for it.
//!
//! A wait follows one order everywhere: take a mark, try, park (be found by whoever wakes), then
//! look at each source of events; whatever has happened since the try means trying again.

use crate::link::Link;
use crate::pure::Pure;
use crate::ring::{Mark, Ring};
use crate::tcp::Tcp;
use crate::wakers::Waiter;
use rsock_core::socket::{self, rsockets};
use rsock_core::twin;
use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
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
    pub(crate) base: Base,
    /// `None` where the stream can never leave TCP.
    pub(crate) link: Option<Arc<Link>>,
    /// Somebody else closes the connection.
    is_handed_over: AtomicBool,
}

/// What a stream is.
#[derive(Debug)]
pub(crate) enum Base {
    /// A TCP socket, perhaps with a faster path beside it.
    Tcp(Tcp),
    /// A socket of the rsockets protocol.
    Pure(Pure),
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

    pub(crate) fn bit(self) -> u8 {
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
    pub(crate) fn new(
        socket: TcpStream,
        end: Option<twin::Side>,
        spin: Duration,
        iomap_slots: u16,
    ) -> Self {
        let tcp = Tcp::new(socket, end, iomap_slots);
        let ring = tcp.twin.clone().map(Ring::Twin);
        let link = ring.map(|ring| Link::new(ring, spin));
        Self { base: Base::Tcp(tcp), link, is_handed_over: AtomicBool::new(false) }
    }

    /// A connected stream of the pure mode. Must be called inside a runtime.
    pub(crate) fn pure(stream: rsockets::Stream, spin: Duration) -> io::Result<Self> {
        let pure = Pure::new(stream)?;
        let link = Link::new(Ring::Pure(Arc::clone(&pure.socket)), spin);
        let is_handed_over = AtomicBool::new(false);
        Ok(Self { base: Base::Pure(pure), link: Some(link), is_handed_over })
    }

    /// As [`Link::note_pairing`].
    pub(crate) fn note_pairing(&self) {
        if let Some(link) = &self.link {
            link.note_pairing();
        }
    }

    /// Another kind of stream takes the connection over.
    pub(crate) fn hand_over(&self) -> io::Result<socket::Stream> {
        let Base::Tcp(tcp) = &self.base else { return Err(unsupported()) };
        let stream = tcp.hand_over()?;
        self.is_handed_over.store(true, Ordering::Relaxed);
        Ok(stream)
    }

    /// As [`Self::hand_over`], for a stream of the pure mode.
    pub(crate) fn hand_over_pure(&self) -> io::Result<rsockets::Stream> {
        let Base::Pure(pure) = &self.base else { return Err(unsupported()) };
        self.is_handed_over.store(true, Ordering::Relaxed);
        Ok(pure.stream())
    }

    pub(crate) fn try_recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Ok(0);
        }
        let result = again(|| match &self.base {
            Base::Tcp(tcp) => tcp.try_recv(bufs, flags),
            Base::Pure(pure) => pure.try_recv(bufs, flags),
        });
        self.note_pairing();
        result
    }

    /// Bytes that a receive could return now.
    pub(crate) fn bytes_readable(&self) -> io::Result<usize> {
        match &self.base {
            Base::Tcp(tcp) => tcp.bytes_readable(),
            Base::Pure(pure) => Ok(pure.socket.bytes_readable()),
        }
    }

    pub(crate) fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        again(|| match &self.base {
            Base::Tcp(tcp) => tcp.try_send(bufs),
            Base::Pure(pure) => pure.try_send(bufs),
        })
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
            let mark = self.link.as_ref().map(|link| link.ring.mark());
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
            return match &self.base {
                Base::Tcp(tcp) => tcp.poll_socket(cx, side),
                Base::Pure(_) => Poll::Pending,
            };
        };
        if link.spin(mark) {
            return Poll::Ready(Ok(()));
        }
        link.park(who, cx.waker());
        let event = match &self.base {
            Base::Tcp(tcp) => tcp.poll_sources(link, side, mark),
            Base::Pure(pure) => pure.poll_sources(link, mark),
        };
        if event.is_ready() {
            // Others who wait may have been about to look for the very event that is used up here.
            link.unpark(who);
            link.wakers.wake_all();
        }
        event
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
        let found = match &self.base {
            Base::Tcp(tcp) => tcp.events(events)?,
            Base::Pure(pure) => pure.events(events),
        };
        self.note_pairing();
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
        let done = match &self.base {
            Base::Tcp(tcp) => tcp.shutdown(how),
            Base::Pure(pure) => pure.shutdown(how),
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
        }
        if self.is_handed_over.load(Ordering::Relaxed) {
            return;
        }
        match (&self.base, &self.link) {
            (Base::Tcp(tcp), _) => tcp.close(),
            (Base::Pure(pure), Some(link)) => pure.close(&link.runtime),
            (Base::Pure(_), None) => {}
        }
    }
}

pub(crate) fn unsupported() -> io::Error {
    rustix::io::Errno::OPNOTSUPP.into()
}

/// Tries again after a signal handler ran.
pub(crate) fn again<R>(mut f: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match f() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            done => return done,
        }
    }
}
