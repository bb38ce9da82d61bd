//! The rsockets protocol alone: streams from the first byte over shared memory or an RDMA device,
//! to and from C programs as well.
//!
//! The peer of a [`Stream`] here is another one, a blocking stream of
//! `rsock::rsockets`, or a program over C rsockets, on this host or, with an RDMA
//! device, on another; plain TCP peers are refused. `RSOCK_DEVICE` restricts the devices to one,
//! `soft` or `rdma`. [`Stream`] has the methods of [`crate::Stream`], but none that belong to TCP;
//! tasks wait as they do there.
//!
//! # Examples
//!
//! ```
//! use rsock_tokio::rsockets::{self, Listener};
//! use tokio::io::{AsyncReadExt, AsyncWriteExt};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let listener = Listener::bind("127.0.0.1:0").await?;
//! let to = listener.local_addr()?;
//! let (client, server) = tokio::join!(rsockets::connect(to), listener.accept());
//! let (mut client, (mut server, from)) = (client?, server?);
//! assert_eq!(from, client.local_addr()?);
//!
//! client.write_all(b"ping").await?;
//! let mut word = [0; 4];
//! server.read_exact(&mut word).await?;
//! assert_eq!(&word, b"ping");
//! # Ok(())
//! # }
//! ```

use crate::async_fd;
use crate::builder::default_spin;
use crate::listener;
use crate::stream;
use crate::transport::Rsockets;
use rsock_core::rsocket::{Family, Socket, SocketSettings, WaitSet};
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::net::{ToSocketAddrs, lookup_host};

/// A connected stream of the rsockets protocol. See [`crate::Stream`].
pub type Stream = stream::Stream<Rsockets>;
/// The reading half of a borrowed [`Stream`]. See [`crate::ReadHalf`].
pub type ReadHalf<'a> = stream::ReadHalf<'a, Rsockets>;
/// The writing half of a borrowed [`Stream`]. See [`crate::WriteHalf`].
pub type WriteHalf<'a> = stream::WriteHalf<'a, Rsockets>;
/// The reading half of a [`Stream`]. See [`crate::OwnedReadHalf`].
pub type OwnedReadHalf = stream::OwnedReadHalf<Rsockets>;
/// The writing half of a [`Stream`]. See [`crate::OwnedWriteHalf`].
pub type OwnedWriteHalf = stream::OwnedWriteHalf<Rsockets>;
/// The connections of a [`Listener`]. See [`crate::Incoming`].
pub type Incoming = listener::Incoming<Listener>;

/// Connects to a [`Listener`], a blocking one, or a C program's.
///
/// # Errors
/// `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`, `EACCES` (the listener belongs to
/// another user), `ENOTSUP` (another protocol version) of the last address tried.
///
/// # Cancel safety
/// Dropping the future abandons the attempt; a connection that was made meanwhile is closed.
pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Stream> {
    Builder::new().connect(addr).await
}

/// As [`connect`] to one address, for at most `limit`. The runtime need not have timers enabled.
///
/// # Errors
/// As [`connect`]; `TimedOut` when the time is over.
///
/// # Cancel safety
/// As [`connect`].
pub async fn connect_timeout(addr: SocketAddr, limit: Duration) -> io::Result<Stream> {
    Builder::new().connect_to(addr, Some(limit)).await
}

/// Settings of rsockets streams.
///
/// # Examples
///
/// ```
/// use rsock_tokio::rsockets::Builder;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let settings = Builder::new().spin(Duration::ZERO).iomap_slots(1);
/// let listener = settings.bind("127.0.0.1:0").await?;
/// let to = listener.local_addr()?;
/// let (client, server) = tokio::try_join!(settings.connect(to), listener.accept())?;
/// let memory = server.0.expose(4096, 0).await?;
/// client.write_remote(b"hello", 0).await?;
/// assert_eq!(memory.len(), 4096);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    spin: Duration,
    socket: SocketSettings,
}

impl Default for Builder {
    fn default() -> Self {
        Self { spin: default_spin(), socket: SocketSettings::default() }
    }
}

impl Builder {
    /// The default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// As [`crate::Builder::spin`].
    #[must_use]
    pub fn spin(mut self, longest: Duration) -> Self {
        self.spin = longest;
        self
    }

    /// Regions that the peer may [expose](Stream::expose) at once; 0 by default. The protocol can
    /// say 0 to 128, then multiples of 256 up to 32512: other numbers are rounded down.
    #[must_use]
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.socket = self.socket.iomap_slots(n);
        self
    }

    /// The size of a stream's receive buffer, in bytes.
    #[must_use]
    pub fn receive_memory(mut self, bytes: u32) -> Self {
        self.socket = self.socket.receive_memory(bytes);
        self
    }

    /// As [`connect`].
    ///
    /// # Errors
    /// As [`connect`].
    ///
    /// # Cancel safety
    /// As [`connect`].
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        let mut last = io::ErrorKind::InvalidInput.into();
        for addr in lookup_host(addr).await? {
            match self.connect_to(addr, None).await {
                Ok(stream) => return Ok(stream),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    async fn connect_to(&self, addr: SocketAddr, limit: Option<Duration>) -> io::Result<Stream> {
        let socket = self.socket.socket(Family::of(&addr))?;
        socket.set_nonblocking(true);
        match socket.connect(addr, limit) {
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => {
                let mut wait = None;
                poll_fn(|cx| poll_until(cx, &socket, &mut wait, || socket.continue_connect()))
                    .await?;
            }
            done => done?,
        }
        Stream::from_connected(Arc::new(socket), self.spin)
    }

    /// As [`Listener::bind`].
    ///
    /// # Errors
    /// As [`Listener::bind`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        let mut last = io::ErrorKind::InvalidInput.into();
        for addr in lookup_host(addr).await? {
            match self.socket.listen(addr) {
                Ok(inner) => {
                    inner.set_nonblocking(true);
                    return Ok(Listener { inner, spin: self.spin, wait: Mutex::default() });
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

/// The descriptors that a task waits for between two steps of a handshake.
type Wait = Option<AsyncFd<WaitSet>>;

/// Calls `step` until it returns true or an error.
fn poll_until(
    cx: &mut Context<'_>,
    socket: &Socket,
    wait: &mut Wait,
    mut step: impl FnMut() -> io::Result<bool>,
) -> Poll<io::Result<()>> {
    loop {
        // The set serves one step, and is closed before its descriptors are.
        *wait = None;
        if step()? {
            return Poll::Ready(Ok(()));
        }
        let set = wait.insert(async_fd::register(socket.wait_set()?)?);
        drop(ready!(set.poll_read_ready(cx))?);
    }
}

/// A listening socket of the rsockets protocol.
///
/// # Examples
///
/// ```
/// use rsock_tokio::rsockets::{self, Listener};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let to = listener.local_addr()?;
/// // A connect ends only when the listener has accepted it: the two run at once.
/// let (client, (server, from)) = tokio::try_join!(rsockets::connect(to), listener.accept())?;
/// assert_eq!(client.local_addr()?, from);
/// assert_eq!(server.peer_addr()?, from);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    /// That of the last task in [`Self::poll_accept`]. Declared before the listener, so that it is
    /// closed first.
    wait: Mutex<Wait>,
    inner: Socket,
    spin: Duration,
}

impl Listener {
    /// Listens at the first address that can be bound; port 0 takes a free one. The kernel's TCP
    /// port of that number is taken as well.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`...; `ENODEV` if
    /// `RSOCK_DEVICE` names a device that this host does not have.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().bind(addr).await
    }

    /// Takes the next connection, and returns it with the peer's address.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: no new descriptors can be made.
    ///
    /// # Cancel safety
    /// Cancel safe: if the future is dropped before it is ready, no connection was taken.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let mut wait = None;
        poll_fn(|cx| self.poll_next(cx, &mut wait)).await
    }

    /// Takes the next connection if there is one; otherwise the task is woken when there is. Only
    /// the last task that polled is woken.
    ///
    /// # Errors
    /// As [`Self::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        self.poll_next(cx, &mut self.wait.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn poll_next(
        &self,
        cx: &mut Context<'_>,
        wait: &mut Wait,
    ) -> Poll<io::Result<(Stream, SocketAddr)>> {
        let mut accepted = None;
        ready!(poll_until(cx, &self.inner, wait, || match self.inner.accept() {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            other => {
                accepted = Some(other?);
                Ok(true)
            }
        }))?;
        let socket: Socket = accepted.ok_or(io::ErrorKind::WouldBlock)?;
        let from = socket.peer_addr()?;
        Poll::Ready(Ok((Stream::from_connected(Arc::new(socket), self.spin)?, from)))
    }

    /// The connections, one after the other, as a [`Stream`](futures_core::Stream) that never ends.
    pub fn incoming(self) -> Incoming {
        Incoming::new(self)
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

impl futures_core::Stream for Incoming {
    type Item = io::Result<Stream>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let accepted = ready!(self.listener.poll_accept(cx));
        Poll::Ready(Some(accepted.map(|(stream, _)| stream)))
    }
}
