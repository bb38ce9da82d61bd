//! The transport of the rsockets protocol: the socket, and the descriptor of its hang-up.
//!
//! The socket's queue shows everything but the end of the connection, which the hang-up descriptor
//! shows: it becomes readable then.

use super::{Operations, readiness_of};
use crate::async_fd;
use crate::source::Mark;
use crate::waiter::Waiter;
use crate::waiting::Direction;
use crate::wakers::WakerKey;
use rsock_core::rsocket::Socket;
use rustix::net::RecvFlags;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::runtime::Handle;

/// The hang-up descriptor's bit in [`Wakers::request`](crate::wakers::Wakers::request).
const HANG_UP: u8 = 1;

// Numbers of socket options on Linux.
const SOL_SOCKET: i32 = 1;
const SO_LINGER: i32 = 13;
const IPPROTO_TCP: i32 = 6;
const TCP_NODELAY: i32 = 1;

/// The transport of [`rsockets::Stream`](crate::rsockets::Stream): the rsockets protocol, over
/// shared memory or an RDMA device.
pub struct Rsockets {
    socket: Arc<Socket>,
    hang_up_fd: AsyncFd<OwnedFd>,
    /// The connection has ended, and the hang-up descriptor shows nothing new.
    is_over: AtomicBool,
}

impl Rsockets {
    /// For a connected stream. Must be called inside a runtime.
    pub(crate) fn new(socket: Arc<Socket>) -> io::Result<Self> {
        socket.set_nonblocking(true);
        let hang_up_fd = async_fd::register(socket.hang_up_fd()?)?;
        Ok(Self { socket, hang_up_fd, is_over: AtomicBool::new(false) })
    }

    pub(crate) fn socket(&self) -> &Arc<Socket> {
        &self.socket
    }

    fn check_hang_up(&self) {
        if self.socket.has_hung_up() {
            self.is_over.store(true, Ordering::Release);
        }
    }
}

impl Operations for Rsockets {
    fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        self.socket.try_recv(bufs, flags)
    }

    fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.try_send(bufs)
    }

    fn bytes_readable(&self) -> io::Result<usize> {
        Ok(self.socket.bytes_readable())
    }

    fn poll_sources(&self, waiter: &Arc<Waiter>, _: Direction, mark: Mark) -> Poll<io::Result<()>> {
        let wakers = &waiter.wakers;
        if !self.is_over.load(Ordering::Acquire)
            && wakers.request(HANG_UP)
            && let Poll::Ready(event) = self.hang_up_fd.poll_read_ready(&mut waiter.context())
        {
            wakers.cancel_request(HANG_UP);
            // Before the check: what comes after this is a new event.
            event?.clear_ready();
            self.check_hang_up();
            return Poll::Ready(Ok(()));
        }
        if let Some(left) = self.socket.keep_alive()
            && waiter.poll_keepalive(left)?.is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        waiter.wait(mark)
    }

    /// Never called: these streams have a waiter.
    fn poll_socket(&self, _: &mut Context<'_>, _: Direction, _: WakerKey) -> Poll<io::Result<()>> {
        Poll::Pending
    }

    fn unregister(&self, _: WakerKey) {}

    fn current_readiness(&self, interest: Interest) -> io::Result<Ready> {
        readiness_of(interest, |events| Ok(self.socket.events(events)))
    }

    fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    fn close(&self, runtime: Option<&Handle>) {
        let Some(runtime) = runtime.filter(|_| !self.socket.is_drained()) else {
            return self.socket.close();
        };
        let socket = Arc::clone(&self.socket);
        // A runtime that is shutting down drops the work, and the last owner of a socket closes it.
        drop(runtime.spawn_blocking(move || socket.close()));
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
        // No task may have waited for the hang-up descriptor.
        self.check_hang_up();
        Ok(self.socket.take_error())
    }

    fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set_option(IPPROTO_TCP, TCP_NODELAY, &i32::from(on).to_ne_bytes())
    }

    fn nodelay(&self) -> io::Result<bool> {
        let value = self.socket.option(IPPROTO_TCP, TCP_NODELAY)?;
        Ok(value.iter().any(|byte| *byte != 0))
    }

    fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let seconds = linger.unwrap_or_default().as_secs();
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let value = [i32::from(linger.is_some()), seconds];
        let value: Vec<u8> = value.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.socket.set_option(SOL_SOCKET, SO_LINGER, &value)
    }

    fn linger(&self) -> io::Result<Option<Duration>> {
        let value = self.socket.option(SOL_SOCKET, SO_LINGER)?;
        let mut numbers = value.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes));
        let is_on = numbers.next().is_some_and(|on| on != 0);
        let seconds = numbers.next().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        Ok(is_on.then(|| Duration::from_secs(seconds)))
    }
}

impl fmt::Debug for Rsockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rsockets").field("socket", &self.socket).finish_non_exhaustive()
    }
}
