//! The transport that begins as kernel TCP: the socket and the faster connection beside it.
//!
//! While bytes take the faster connection, the socket only shows the end of the stream; otherwise
//! it shows everything.

use super::{Operations, readiness_of};
use crate::source::Mark;
use crate::waiter::Waiter;
use crate::waiting::Direction;
use crate::wakers::{WakerKey, Wakers};
use rsock_core::accelerate::{self, AcceleratedStream, FallbackReason, PollDescriptor};
use rsock_core::rsocket::AcceleratedSocket;
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::net::TcpStream;
use tokio::runtime::Handle;

/// The transport of [`Stream`](crate::Stream) by default: kernel TCP that moves to shared memory or
/// RDMA, and back when it must.
#[derive(Debug)]
pub struct Accelerated {
    socket: TcpStream,
    /// `None` if the stream can never leave TCP.
    stream: Option<Arc<AcceleratedStream>>,
    /// The wakers if the stream can never leave TCP; it has no waiter then.
    wakers: Arc<Wakers>,
}

impl Accelerated {
    /// `side` says which end of the connection this is; without it the stream does not move to a
    /// peer on another host.
    pub(crate) fn new(socket: TcpStream, side: Option<accelerate::Side>, iomap_slots: u16) -> Self {
        let stream = AcceleratedStream::adopt_with(socket.as_fd(), side, iomap_slots).map(Arc::new);
        if let Some(stream) = &stream {
            stream.note_waits_for_room();
        }
        Self { socket, stream, wakers: Arc::default() }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// `None` if the stream can never leave TCP.
    pub(crate) fn stream(&self) -> Option<&Arc<AcceleratedStream>> {
        self.stream.as_ref()
    }

    /// The blocking socket of the same connection.
    pub(crate) fn to_blocking(&self) -> io::Result<AcceleratedSocket> {
        let socket = std::net::TcpStream::from(self.socket.as_fd().try_clone_to_owned()?);
        Ok(AcceleratedSocket::from_parts(socket, self.stream.clone()))
    }

    fn poll_tcp(&self, cx: &mut Context<'_>, direction: Direction) -> Poll<io::Result<()>> {
        match direction {
            Direction::Read => self.socket.poll_read_ready(cx),
            Direction::Write => self.socket.poll_write_ready(cx),
        }
    }

    /// Tells the runtime that the socket is not ready: what comes after this is a new event, and
    /// the next try finds what came before.
    fn clear_ready(&self, direction: Direction) {
        let blocked = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        let _ = self.socket.try_io(direction.interest(), blocked);
    }

    /// Which of `events` hold now, as `poll(2)`.
    fn events(&self, events: PollFlags) -> io::Result<PollFlags> {
        let stream = self.stream.as_deref().map(Into::into);
        let entry = PollDescriptor::new(self.socket.as_raw_fd(), events);
        let mut entries = [PollDescriptor { stream, ..entry }];
        accelerate::poll(&mut entries, Some(Duration::ZERO), None)?;
        Ok(entries[0].revents)
    }
}

impl Operations for Accelerated {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let flags = flags | RecvFlags::DONTWAIT;
        match &self.stream {
            Some(stream) => stream.recv(self.socket.as_fd(), bufs, flags),
            None => self.socket.try_io(Interest::READABLE, || {
                let mut none = rustix::net::RecvAncillaryBuffer::default();
                Ok(rustix::net::recvmsg(&self.socket, bufs, &mut none, flags)?.bytes)
            }),
        }
    }

    fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        match &self.stream {
            Some(stream) => stream.send(self.socket.as_fd(), bufs, SendFlags::DONTWAIT),
            None => self.socket.try_write_vectored(bufs),
        }
    }

    fn bytes_readable(&self) -> io::Result<usize> {
        let fd = self.socket.as_fd();
        match &self.stream {
            Some(stream) => stream.bytes_readable(fd),
            None => Ok(usize::try_from(rustix::io::ioctl_fionread(fd)?).unwrap_or(usize::MAX)),
        }
    }

    fn poll_sources(
        &self,
        waiter: &Arc<Waiter>,
        direction: Direction,
        mark: Mark,
    ) -> Poll<io::Result<()>> {
        let Some(stream) = &self.stream else { return Poll::Pending };
        let retry_after = match direction {
            Direction::Write => stream.room_retry_after(),
            Direction::Read => stream.end_retry_after(),
        };
        if let Some(after) = retry_after {
            // The socket shows neither that there is room on the faster connection nor that the
            // peer will not make any, and it shows its own end only once. The doorbell does, or
            // the next try.
            if waiter.poll_retry(after)?.is_ready() {
                return Poll::Ready(Ok(()));
            }
        } else if waiter.wakers.request(direction.bit()) {
            let socket = self.poll_tcp(&mut waiter.context(), direction);
            if socket.is_ready() {
                waiter.wakers.cancel_request(direction.bit());
                ready!(socket)?;
                self.clear_ready(direction);
                if direction == Direction::Read {
                    stream.note_socket();
                }
                return Poll::Ready(Ok(()));
            }
        }
        if !stream.has_path() {
            return Poll::Pending;
        }
        match waiter.wait(mark) {
            Poll::Ready(Err(_)) => {
                // No doorbell can be made: the stream goes back to TCP, where the socket shows all.
                // The tasks try again and again until the peer has left, too.
                stream.pin(self.socket.as_fd(), FallbackReason::Resources);
                waiter.wakers.wake_all();
                Poll::Pending
            }
            other => other,
        }
    }

    fn poll_socket(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        key: WakerKey,
    ) -> Poll<io::Result<()>> {
        self.wakers.insert(key, cx.waker());
        // The runtime wakes one task for each direction: it is asked to wake all.
        if !self.wakers.request(direction.bit()) {
            return Poll::Pending;
        }
        let all = Waker::from(Arc::clone(&self.wakers));
        let event = self.poll_tcp(&mut Context::from_waker(&all), direction);
        if event.is_ready() {
            self.wakers.cancel_request(direction.bit());
            self.wakers.wake_all();
        }
        event
    }

    fn unregister(&self, key: WakerKey) {
        self.wakers.remove(key);
    }

    fn kernel_socket(&self) -> Option<&TcpStream> {
        self.stream.is_none().then_some(&self.socket)
    }

    fn current_readiness(&self, interest: Interest) -> io::Result<Ready> {
        let check = || readiness_of(interest, |events| self.events(events));
        match &self.stream {
            Some(_) => check(),
            // If the socket is not ready, the runtime learns so, as from a try.
            None => self.socket.try_io(interest, check),
        }
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        let fd = self.socket.as_fd();
        match &self.stream {
            Some(stream) => stream.shutdown(fd, how),
            None => Ok(rustix::net::shutdown(fd, how)?),
        }
    }

    fn close(&self, _: Option<&Handle>) {
        if let Some(stream) = &self.stream {
            stream.close(self.socket.as_fd());
        }
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.socket.take_error()
    }

    fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set_nodelay(on)
    }

    fn nodelay(&self) -> io::Result<bool> {
        self.socket.nodelay()
    }

    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_linger(&self.socket, linger)?)
    }

    fn linger(&self) -> io::Result<Option<Duration>> {
        self.socket.linger()
    }
}
