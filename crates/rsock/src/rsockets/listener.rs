//! A listening rsockets socket.

use crate::builder::first;
use crate::rsockets::{Builder, Socket, Source, Stream, time_limit};
use std::io;
use std::iter::FusedIterator;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A listener for rsockets streams.
///
/// It has no thread of its own: handshakes advance in [`Self::accept`], in
/// [`poll`](crate::rsockets::poll()), and in a connect of the same process.
///
/// ```
/// use rsock::rsockets::{Listener, Stream};
/// use std::io::ErrorKind;
///
/// # fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0")?;
/// listener.set_nonblocking(true);
/// assert_eq!(listener.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
/// let client = Stream::connect(listener.local_addr()?)?;
/// let (server, from) = listener.accept()?;
/// assert_eq!((server.peer_addr()?, from), (client.local_addr()?, client.local_addr()?));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    socket: Arc<Socket>,
}

impl Builder {
    /// Listens at the first of the addresses that can be bound; port 0 takes a free one.
    ///
    /// # Errors
    /// As [`Listener::bind`].
    pub fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        first(addr, |addr| self.socket.listen(addr).map(Listener::new))
    }
}

impl Listener {
    pub(crate) fn new(socket: Socket) -> Self {
        Self { socket: Arc::new(socket) }
    }

    /// Listens at the first of the addresses that can be bound; port 0 takes a free one. It holds
    /// the TCP port of the same number.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`; `ENODEV` where
    /// `RSOCK_DEVICE` names a device that is not there.
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().bind(addr)
    }

    /// Takes the next connection, and says from which address it comes. Waits for one, unless the
    /// listener is non-blocking. The stream inherits the listener's mode and options, as with
    /// `raccept` of rdma-core.
    ///
    /// # Errors
    /// As `accept(2)`: `EAGAIN` (non-blocking, or the time limit is over), `EINTR`, `EMFILE`,
    /// `ENFILE`; `EINVAL` after a shutdown.
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let socket = self.socket.accept()?;
        let from = socket.peer_addr()?;
        Ok((socket.into(), from))
    }

    /// The connections, one after the other. It never ends.
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming { listener: self }
    }

    /// Another handle on the same listener. It costs no descriptor.
    ///
    /// # Errors
    /// None; the signature is that of [`TcpListener::try_clone`](std::net::TcpListener::try_clone).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self { socket: Arc::clone(&self.socket) })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sets the non-blocking mode, in which [`Self::accept`] returns `WouldBlock` instead of
    /// waiting.
    pub fn set_nonblocking(&self, on: bool) {
        self.socket.set_nonblocking(on);
    }

    /// `SO_RCVTIMEO`: how long [`Self::accept`] waits; `None` waits without end.
    #[must_use]
    pub fn accept_timeout(&self) -> Option<Duration> {
        self.socket.recv_timeout()
    }

    /// Sets `SO_RCVTIMEO`. When the time is over, [`Self::accept`] returns `WouldBlock`. Accepted
    /// streams inherit it as their read timeout.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_accept_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_recv_timeout(time_limit(limit)?);
        Ok(())
    }

    /// The pending error of the socket (`SO_ERROR`), which the call clears.
    ///
    /// # Errors
    /// None; the signature is that of
    /// [`TcpListener::take_error`](std::net::TcpListener::take_error).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.socket.take_error())
    }

    /// The socket, for [`poll`](crate::rsockets::poll()) and for options by number.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// The connections of a [`Listener`]; see [`Listener::incoming`].
#[derive(Debug)]
#[must_use = "iterators do nothing unless advanced"]
pub struct Incoming<'a> {
    listener: &'a Listener,
}

impl Iterator for Incoming<'_> {
    type Item = io::Result<Stream>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.listener.accept().map(|(stream, _)| stream))
    }
}

impl FusedIterator for Incoming<'_> {}

impl<'a> From<&'a Listener> for Source<'a> {
    fn from(listener: &'a Listener) -> Self {
        Self::Socket(&listener.socket)
    }
}

impl AsFd for Listener {
    /// A descriptor that only holds the socket's number: see the [module](crate::rsockets).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
