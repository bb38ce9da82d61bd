//! What the handles of one stream share: what it is, and what tasks that wait for it look at.
//!
//! Above `link`, `tcp` and `pure`; how they wait is in `waiting`.

use crate::link::Link;
use crate::pure::Pure;
use crate::ring::{Mark, Ring};
use crate::tcp::Tcp;
use crate::waiting::{Side, Waits, again};
use crate::wakers::Waiter;
use rsock_core::accelerate;
use rsock_core::rsocket::{AcceleratedSocket, Socket};
use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

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

impl Shared {
    pub(crate) fn new(
        socket: TcpStream,
        end: Option<accelerate::Side>,
        spin: Duration,
        iomap_slots: u16,
    ) -> Self {
        let tcp = Tcp::new(socket, end, iomap_slots);
        let ring = tcp.twin.clone().map(Ring::AcceleratedStream);
        let link = ring.map(|ring| Link::new(ring, spin));
        Self { base: Base::Tcp(tcp), link, is_handed_over: AtomicBool::new(false) }
    }

    /// A connected stream of the pure mode. Must be called inside a runtime.
    pub(crate) fn pure(stream: Arc<Socket>, spin: Duration) -> io::Result<Self> {
        let pure = Pure::new(stream)?;
        let link = Link::new(Ring::Pure(Arc::clone(&pure.socket)), spin);
        let is_handed_over = AtomicBool::new(false);
        Ok(Self { base: Base::Pure(pure), link: Some(link), is_handed_over })
    }

    /// As [`Link::note_reach`].
    pub(crate) fn note_reach(&self) {
        if let Some(link) = &self.link {
            link.note_reach();
        }
    }

    /// Another kind of stream takes the connection over.
    pub(crate) fn hand_over(&self) -> io::Result<AcceleratedSocket> {
        let Base::Tcp(tcp) = &self.base else { return Err(unsupported()) };
        let stream = tcp.hand_over()?;
        self.is_handed_over.store(true, Ordering::Relaxed);
        Ok(stream)
    }

    /// As [`Self::hand_over`], for a stream of the pure mode.
    pub(crate) fn hand_over_pure(&self) -> io::Result<Arc<Socket>> {
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
        self.note_reach();
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
}

impl Waits for Shared {
    fn link(&self) -> Option<&Arc<Link>> {
        self.link.as_ref()
    }

    fn poll_sources(&self, link: &Arc<Link>, side: Side, mark: Mark) -> Poll<io::Result<()>> {
        match &self.base {
            Base::Tcp(tcp) => tcp.poll_sources(link, side, mark),
            Base::Pure(pure) => pure.poll_sources(link, mark),
        }
    }

    fn poll_socket(&self, cx: &mut Context<'_>, side: Side, who: Waiter) -> Poll<io::Result<()>> {
        match &self.base {
            Base::Tcp(tcp) => tcp.poll_alone(cx, side, who),
            // It always has a link.
            Base::Pure(_) => Poll::Pending,
        }
    }

    fn leave(&self, who: Waiter) {
        match (&self.link, &self.base) {
            (Some(link), _) => link.unpark(who),
            (None, Base::Tcp(tcp)) => tcp.leave(who),
            (None, Base::Pure(_)) => {}
        }
    }

    /// What a try would do, without trying: whether input, or room, is there or has ended.
    fn look(&self, interest: Interest) -> io::Result<Ready> {
        let ready = match &self.base {
            Base::Tcp(tcp) => tcp.look(interest),
            Base::Pure(pure) => readiness_of(interest, |events| Ok(pure.events(events))),
        };
        self.note_reach();
        ready
    }
}

/// What of `interest` holds, by what `events` tells as `poll(2)` does.
///
/// # Errors
/// `WouldBlock` if nothing does.
pub(crate) fn readiness_of(
    interest: Interest,
    events: impl FnOnce(PollFlags) -> io::Result<PollFlags>,
) -> io::Result<Ready> {
    let mut asked = PollFlags::empty();
    if interest.is_readable() {
        asked |= PollFlags::IN | PollFlags::RDHUP;
    }
    if interest.is_writable() {
        asked |= PollFlags::OUT;
    }
    let found = events(asked)?;
    let ended = PollFlags::ERR | PollFlags::HUP;
    let mut ready = Ready::EMPTY;
    if interest.is_readable() && found.intersects(PollFlags::IN | PollFlags::RDHUP | ended) {
        ready |= Ready::READABLE;
    }
    if interest.is_writable() && found.intersects(PollFlags::OUT | ended) {
        ready |= Ready::WRITABLE;
    }
    if ready.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(ready) }
}

impl Shared {
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
