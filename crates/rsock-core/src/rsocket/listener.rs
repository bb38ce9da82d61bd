//! A listener for any TCP peer, as `std::net::TcpListener`.

use crate::accelerate::Side;
use crate::rsocket::stream::Stream;
use std::io;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// A TCP listener whose connections move to a faster path by themselves; see [`Stream`].
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
}

impl Listener {
    /// As [`TcpListener::bind`].
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`...
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        TcpListener::bind(addr).map(Self::from)
    }

    /// Takes the next connection, waiting for one on a blocking listener.
    ///
    /// # Errors
    /// As `accept(2)`: `EAGAIN`, `EINTR`, `ECONNABORTED`, `EMFILE`...
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (socket, peer) = self.socket.accept()?;
        Ok((Stream::with_side(socket, Side::Accepted), peer))
    }

    /// Connections, one after the other; never ends.
    pub fn incoming(&self) -> impl Iterator<Item = io::Result<Stream>> + '_ {
        std::iter::repeat_with(|| self.accept().map(|(stream, _)| stream))
    }

    /// Address that it listens on.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Whether [`Self::accept`] returns `EAGAIN` instead of waiting.
    ///
    /// # Errors
    /// As `fcntl(2)`.
    pub fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        self.socket.set_nonblocking(on)
    }
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self { socket }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}
