//! A stream that begins as kernel TCP: the socket, its twin, and how a wait looks at both.
//!
//! Below `shared`, beside `pure`. While the twin is on its ring, the socket only tells of ends;
//! otherwise it tells everything.

use crate::link::Link;
use crate::ring::Mark;
use crate::shared::readiness_of;
use crate::waiting::Side;
use crate::wakers::{Waiter, Wakers};
use rsock_core::accelerate::{self, AcceleratedStream, FallbackReason, PollEntry};
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;

/// See the module.
#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) socket: TcpStream,
    /// `None` where the stream can never leave TCP.
    pub(crate) twin: Option<Arc<AcceleratedStream>>,
    /// Who waits where there is no twin, and so no link to be found by.
    alone: Arc<Wakers>,
}

impl Tcp {
    /// `end`: which end of the connection it is, for a peer on another host.
    pub(crate) fn new(socket: TcpStream, end: Option<accelerate::Side>, iomap_slots: u16) -> Self {
        let twin = AcceleratedStream::adopt_with(socket.as_fd(), end, iomap_slots).map(Arc::new);
        Self { socket, twin, alone: Arc::default() }
    }

    /// Another kind of stream takes the connection over.
    pub(crate) fn hand_over(&self) -> io::Result<rsock_core::rsocket::AcceleratedSocket> {
        let socket = std::net::TcpStream::from(self.socket.as_fd().try_clone_to_owned()?);
        Ok(rsock_core::rsocket::AcceleratedSocket::from_parts(socket, self.twin.clone()))
    }

    pub(crate) fn try_recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        let flags = flags | RecvFlags::DONTWAIT;
        match &self.twin {
            Some(twin) => twin.recv(self.socket.as_fd(), bufs, flags),
            None => self.socket.try_io(Interest::READABLE, || {
                let mut none = rustix::net::RecvAncillaryBuffer::default();
                Ok(rustix::net::recvmsg(&self.socket, bufs, &mut none, flags)?.bytes)
            }),
        }
    }

    pub(crate) fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.twin {
            Some(twin) => twin.send(self.socket.as_fd(), bufs, SendFlags::DONTWAIT),
            None => self.socket.try_write_vectored(bufs),
        }
    }

    /// Bytes that a receive could return now.
    pub(crate) fn bytes_readable(&self) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        match &self.twin {
            Some(twin) => twin.bytes_readable(fd),
            None => Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(usize::MAX)),
        }
    }

    /// Looks at the socket, and at the ring through `link`; the caller has parked.
    pub(crate) fn poll_sources(
        &self,
        link: &Arc<Link>,
        side: Side,
        mark: Mark,
    ) -> Poll<io::Result<()>> {
        let Some(twin) = &self.twin else { return Poll::Pending };
        let mut everyone = link.context();
        let patience = match side {
            Side::Write => twin.patience(),
            Side::Read => twin.grace(),
        };
        if let Some(patience) = patience {
            // On the ring, the socket does not tell when there is room, nor that nobody will make
            // any: the ring does, or the next try. Nor does it tell twice that it has ended.
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
                    twin.note_socket();
                }
                return Poll::Ready(Ok(()));
            }
        }
        if !twin.is_paired() {
            return Poll::Pending;
        }
        match link.watch(mark) {
            Poll::Ready(Err(_)) => {
                // No doorbell can be made: back to TCP. Until the peer has left too, look again
                // and again.
                twin.pin(self.socket.as_fd(), FallbackReason::Resources);
                link.wakers.wake_all();
                Poll::Pending
            }
            other => other,
        }
    }

    /// Where there is no twin: waits for the socket as `who`. The caller has tried, which has told the runtime
    /// that the socket is not ready.
    pub(crate) fn poll_alone(
        &self,
        cx: &mut Context<'_>,
        side: Side,
        who: Waiter,
    ) -> Poll<io::Result<()>> {
        self.alone.put(who, cx.waker());
        // The runtime wakes one task for each side: it is asked to wake all.
        if !self.alone.watch(side.bit()) {
            return Poll::Pending;
        }
        let everyone = Waker::from(Arc::clone(&self.alone));
        let news = self.poll_socket(&mut Context::from_waker(&everyone), side);
        if news.is_ready() {
            self.alone.unwatch(side.bit());
            self.alone.wake_all();
        }
        news
    }

    /// After [`Self::poll_alone`]: `who` waits no more.
    pub(crate) fn leave(&self, who: Waiter) {
        self.alone.remove(who);
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

    /// What of `interest` holds now.
    ///
    /// # Errors
    /// `WouldBlock` if nothing does.
    pub(crate) fn look(&self, interest: Interest) -> io::Result<Ready> {
        let look = || readiness_of(interest, |events| self.events(events));
        match &self.twin {
            Some(_) => look(),
            // The runtime learns that it was not ready, if so, as from a try.
            None => self.socket.try_io(interest, look),
        }
    }

    /// Which of `events` hold now, as `poll(2)` tells them.
    fn events(&self, events: PollFlags) -> io::Result<PollFlags> {
        let entry = PollEntry {
            fd: self.socket.as_raw_fd(),
            stream: self.twin.as_deref().map(Into::into),
            listener: None,
            udp: None,
            call: None,
            events,
            revents: PollFlags::empty(),
        };
        let mut entries = [entry];
        accelerate::poll(&mut entries, Some(Duration::ZERO), None)?;
        Ok(entries[0].revents)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        let fd = self.socket.as_fd();
        match &self.twin {
            Some(twin) => twin.shutdown(fd, how),
            None => Ok(rustix::net::shutdown(fd, how)?),
        }
    }

    pub(crate) fn close(&self) {
        if let Some(twin) = &self.twin {
            twin.close(self.socket.as_fd());
        }
    }
}
