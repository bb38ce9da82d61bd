//! A stream of the pure mode: the socket and its anchor, and how a wait looks at them.
//!
//! Below `shared`, beside `tcp`. The ring tells everything but the end of the connection, which the
//! anchor shows.

use crate::link::Link;
use crate::ring::Mark;
use crate::watched;
use rsock_core::rsocket::Socket;
use rustix::event::PollFlags;
use rustix::net::RecvFlags;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// The anchor's bit in the wakers.
const ANCHOR: u8 = 1;

// Numbers of socket options on Linux.
const SOL_SOCKET: i32 = 1;
const SO_LINGER: i32 = 13;
const IPPROTO_TCP: i32 = 6;
const TCP_NODELAY: i32 = 1;

/// See the module.
pub(crate) struct Pure {
    pub(crate) socket: Arc<Socket>,
    anchor: AsyncFd<OwnedFd>,
    /// The connection is over: the anchor has told all there was.
    is_over: AtomicBool,
}

impl Pure {
    /// For a connected stream. Must be called inside a runtime.
    pub(crate) fn new(socket: Arc<Socket>) -> io::Result<Self> {
        socket.set_nonblocking(true);
        let anchor = watched::watch(socket.hang_up_fd()?)?;
        Ok(Self { socket, anchor, is_over: AtomicBool::new(false) })
    }

    /// The same socket, for those who block.
    pub(crate) fn stream(&self) -> Arc<Socket> {
        Arc::clone(&self.socket)
    }

    pub(crate) fn try_recv(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> io::Result<usize> {
        self.socket.try_recv(bufs, flags)
    }

    pub(crate) fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.try_send(bufs)
    }

    /// Looks at the anchor, and at the ring through `link`; the caller has parked.
    pub(crate) fn poll_sources(&self, link: &Arc<Link>, mark: Mark) -> Poll<io::Result<()>> {
        let wakers = &link.wakers;
        if !self.is_over.load(Ordering::Acquire)
            && wakers.watch(ANCHOR)
            && let Poll::Ready(news) = self.anchor.poll_read_ready(&mut link.context())
        {
            wakers.unwatch(ANCHOR);
            // Before the look: what comes after it is news again.
            news?.clear_ready();
            self.look_at_anchor();
            return Poll::Ready(Ok(()));
        }
        if let Some(left) = self.socket.keep_alive()
            && link.look_again(left)?.is_ready()
        {
            return Poll::Ready(Ok(()));
        }
        link.watch(mark)
    }

    fn look_at_anchor(&self) {
        if self.socket.has_hung_up() {
            self.is_over.store(true, Ordering::Release);
        }
    }

    /// Which of `events` hold now, as `poll(2)` tells them.
    pub(crate) fn events(&self, events: PollFlags) -> PollFlags {
        self.socket.events(events)
    }

    pub(crate) fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Ends the connection; on `runtime` where that has to wait for what is on its way.
    pub(crate) fn close(&self, runtime: &Handle) {
        if self.socket.is_drained() {
            return self.socket.close();
        }
        let socket = Arc::clone(&self.socket);
        // A runtime that is shut down drops the work, and the last handle of a socket closes it.
        drop(runtime.spawn_blocking(move || socket.close()));
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    pub(crate) fn take_error(&self) -> io::Result<Option<io::Error>> {
        // The anchor may have been waited for by nobody.
        self.look_at_anchor();
        Ok(self.socket.take_error())
    }

    pub(crate) fn set_ttl(&self, _: u32) -> io::Result<()> {
        Err(rustix::io::Errno::NOPROTOOPT.into())
    }

    pub(crate) fn ttl(&self) -> io::Result<u32> {
        Err(rustix::io::Errno::NOPROTOOPT.into())
    }

    pub(crate) fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set_option(IPPROTO_TCP, TCP_NODELAY, &i32::from(on).to_ne_bytes())
    }

    pub(crate) fn nodelay(&self) -> io::Result<bool> {
        let value = self.socket.option(IPPROTO_TCP, TCP_NODELAY)?;
        Ok(value.iter().any(|byte| *byte != 0))
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        let seconds = linger.unwrap_or_default().as_secs();
        let seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
        let value = [i32::from(linger.is_some()), seconds];
        let value: Vec<u8> = value.iter().flat_map(|n| n.to_ne_bytes()).collect();
        self.socket.set_option(SOL_SOCKET, SO_LINGER, &value)
    }

    pub(crate) fn linger(&self) -> io::Result<Option<Duration>> {
        let value = self.socket.option(SOL_SOCKET, SO_LINGER)?;
        let mut numbers = value.as_chunks().0.iter().map(|bytes| i32::from_ne_bytes(*bytes));
        let is_on = numbers.next().is_some_and(|on| on != 0);
        let seconds = numbers.next().and_then(|n| u64::try_from(n).ok()).unwrap_or(0);
        Ok(is_on.then(|| Duration::from_secs(seconds)))
    }
}

impl fmt::Debug for Pure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pure").field("socket", &self.socket).finish_non_exhaustive()
    }
}
