//! The listener, with the methods of `tokio::net::TcpListener`, and the stream of its connections.

use crate::builder::Builder;
use crate::stream::Stream;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::net::{TcpListener, ToSocketAddrs};

/// A TCP listener whose connections move to shared memory or RDMA by themselves; see [`Stream`].
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let client = Stream::connect(listener.local_addr()?).await?;
/// let (server, peer) = listener.accept().await?;
/// assert_eq!(peer, client.local_addr()?);
/// assert_eq!(server.peer_addr()?, peer);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    socket: TcpListener,
    settings: Builder,
}

impl Builder {
    /// As [`Listener::bind`].
    ///
    /// # Errors
    /// As [`Listener::bind`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        Ok(Listener::new(TcpListener::bind(addr).await?, *self))
    }
}

impl Listener {
    pub(crate) fn new(socket: TcpListener, settings: Builder) -> Self {
        Self { socket, settings }
    }

    /// As [`TcpListener::bind`].
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`... of the last address
    /// tried.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().bind(addr).await
    }

    /// Takes the next connection, and returns it with the peer's address.
    ///
    /// # Errors
    /// As `accept(2)`: `ECONNABORTED`, `EMFILE`, `ENFILE`, `ENOMEM`...
    ///
    /// # Cancel safety
    /// Cancel safe: if the future is dropped before it is ready, no connection was taken.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        self.settings.accepted(self.socket.accept().await?)
    }

    /// Takes the next connection if there is one; otherwise the task is woken when there is. Only
    /// the last task that polled is woken.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let accepted = ready!(self.socket.poll_accept(cx))?;
        Poll::Ready(self.settings.accepted(accepted))
    }

    /// The connections, one after the other, as a [`Stream`](futures_core::Stream) that never ends.
    pub fn incoming(self) -> Incoming {
        Incoming::new(self)
    }

    /// Takes over a listening, non-blocking socket.
    ///
    /// # Errors
    /// As `epoll_ctl(2)` when the runtime registers the socket: `ENOMEM`, `ENOSPC`, `EEXIST`.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    pub fn from_std(socket: std::net::TcpListener) -> io::Result<Self> {
        TcpListener::from_std(socket).map(Self::from)
    }

    /// Gives the listening socket back; it stays non-blocking.
    ///
    /// # Errors
    /// As `epoll_ctl(2)` when the runtime deregisters the socket.
    pub fn into_std(self) -> io::Result<std::net::TcpListener> {
        self.socket.into_std()
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }
}

impl From<TcpListener> for Listener {
    fn from(socket: TcpListener) -> Self {
        Self::new(socket, Builder::new())
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

/// The connections of a listener, as a [`Stream`](futures_core::Stream) that never ends; returned
/// by [`Listener::incoming`] and
/// [`rsockets::Listener::incoming`](crate::rsockets::Listener::incoming).
///
/// # Examples
///
/// ```
/// use futures_core::Stream as _;
/// use rsock_tokio::{Listener, Stream};
/// use std::{future::poll_fn, pin::pin};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let client = Stream::connect(listener.local_addr()?).await?;
/// let mut incoming = pin!(listener.incoming());
/// let server = poll_fn(|cx| incoming.as_mut().poll_next(cx)).await.expect("never ends")?;
/// assert_eq!(server.peer_addr()?, client.local_addr()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Incoming<L = Listener> {
    pub(crate) listener: L,
}

impl<L> Incoming<L> {
    pub(crate) fn new(listener: L) -> Self {
        Self { listener }
    }

    /// The listener.
    #[must_use]
    pub fn into_inner(self) -> L {
        self.listener
    }
}

impl futures_core::Stream for Incoming {
    type Item = io::Result<Stream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = ready!(self.listener.poll_accept(cx));
        Poll::Ready(Some(accepted.map(|(stream, _)| stream)))
    }
}
