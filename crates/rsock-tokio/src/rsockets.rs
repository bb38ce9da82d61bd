//! The pure mode: the rsockets protocol from the first byte, to and from C programs as well.
//!
//! What comes of [`connect`] and of a [`Listener`] here are the same [`Stream`]s. The peer is another
//! one of them, a stream of `rsock::rsockets`, or a program over C rsockets, on this host
//! or, with an RDMA device, on another; plain TCP peers are refused. `RSOCK_DEVICE` leaves one device,
//! `soft` or `rdma`. Waiting is as for the others: tasks park, the hub looks, a doorbell rings.
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

use crate::builder::longest_spin;
use crate::shared::Shared;
use crate::stream::Stream;
use crate::watched;
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

/// Connects to a listener of the pure mode, or a C program's.
///
/// # Errors
/// `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`, `ENETUNREACH`, `EACCES` (the listener belongs to another
/// user), `ENOTSUP` (another protocol version) of the last address tried.
///
/// # Cancel safety
/// Dropping the future abandons the attempt; a connection that has been made meanwhile ends.
pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Stream> {
    Builder::new().connect(addr).await
}

/// As [`connect`] to one address, for at most `limit`. Needs no timers of the runtime.
///
/// # Errors
/// As [`connect`]; `TimedOut` when the time is over.
///
/// # Cancel safety
/// As [`connect`].
pub async fn connect_timeout(addr: SocketAddr, limit: Duration) -> io::Result<Stream> {
    Builder::new().connect_to(addr, Some(limit)).await
}

/// Turns a stream of this mode into a blocking one; as with
/// [`TcpStream::into_std`](tokio::net::TcpStream::into_std) it stays non-blocking until that is
/// changed.
///
/// # Errors
/// `Unsupported` for a stream that began as TCP: see [`Stream::into_std`].
pub fn into_blocking(stream: Stream) -> io::Result<Arc<Socket>> {
    stream.shared.hand_over_pure()
}

/// Takes over a connected blocking stream of this mode, whatever has passed through it.
///
/// # Errors
/// When it cannot be watched by the runtime; `NotConnected`.
///
/// # Panics
/// Outside a runtime with I/O enabled.
pub fn from_blocking(stream: Arc<Socket>) -> io::Result<Stream> {
    wrap(stream, longest_spin())
}

fn wrap(stream: Arc<Socket>, spin: Duration) -> io::Result<Stream> {
    Ok(Stream { shared: Arc::new(Shared::pure(stream, spin)?) })
}

/// Settings of streams of the pure mode.
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
/// let memory = server.0.open(4096, 0).await?;
/// assert_eq!((memory.len(), client.on_ring()), (4096, (true, true)));
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
        Self { spin: longest_spin(), socket: SocketSettings::default() }
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

    /// Buffers that the peer may [open](Stream::open) to us at once; 0 by default. The wire knows 0
    /// to 128, then multiples of 256 up to 32512: others are rounded down.
    #[must_use]
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.socket = self.socket.iomap_slots(n);
        self
    }

    /// Receive memory of a stream, in bytes.
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
        wrap(Arc::new(socket), self.spin)
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

/// What a task waits on between two steps of a handshake.
type Wait = Option<AsyncFd<WaitSet>>;

/// Tries `step` until it answers true or an error.
fn poll_until(
    cx: &mut Context<'_>,
    socket: &Socket,
    wait: &mut Wait,
    mut step: impl FnMut() -> io::Result<bool>,
) -> Poll<io::Result<()>> {
    loop {
        // The set is of one step, and goes before its descriptors do.
        *wait = None;
        if step()? {
            return Poll::Ready(Ok(()));
        }
        let set = wait.insert(watched::watch(socket.wait_set()?)?);
        drop(ready!(set.poll_read_ready(cx))?);
    }
}

/// A listening socket of the pure mode.
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
/// // Nobody is connected before the listener has answered.
/// let (client, (server, from)) = tokio::try_join!(rsockets::connect(to), listener.accept())?;
/// assert_eq!(client.local_addr()?, from);
/// assert_eq!(server.peer_addr()?, from);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Listener {
    /// Of the last task in [`Self::poll_accept`]. Goes before what it waits for.
    wait: Mutex<Wait>,
    inner: Socket,
    spin: Duration,
}

impl Listener {
    /// Listens at the first address that can be bound; port 0 takes a free one. It holds the kernel's
    /// TCP port, too.
    ///
    /// # Errors
    /// As `bind(2)` and `listen(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`...; `ENODEV` where
    /// `RSOCK_DEVICE` asks for a device that there is not.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().bind(addr).await
    }

    /// Takes the next connection, and says where it comes from.
    ///
    /// # Errors
    /// What keeps new descriptors from being made: `EMFILE`, `ENFILE`, `ENOMEM`.
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
        Poll::Ready(Ok((wrap(Arc::new(socket), self.spin)?, from)))
    }

    /// Connections, one after the other, as a [`Stream`](futures_core::Stream) that never ends.
    pub fn incoming(self) -> Incoming {
        Incoming { listener: self }
    }

    /// Address that it listens on.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.inner.local_addr()
    }
}

/// The connections of a [`Listener`], as a stream of futures.
///
/// # Examples
///
/// ```
/// use futures_core::Stream as _;
/// use rsock_tokio::rsockets::{Listener, connect};
/// use std::{future::poll_fn, pin::pin};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let to = listener.local_addr()?;
/// let mut incoming = pin!(listener.incoming());
/// let next = poll_fn(|cx| incoming.as_mut().poll_next(cx));
/// let (client, server) = tokio::join!(connect(to), next);
/// assert_eq!(server.expect("never ends")?.peer_addr()?, client?.local_addr()?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct Incoming {
    listener: Listener,
}

impl Incoming {
    /// The listener.
    #[must_use]
    pub fn into_inner(self) -> Listener {
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
