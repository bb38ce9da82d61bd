//! The stream, with the methods of `tokio::net::TcpStream`.
//!
//! Above `transport` and `waiting`. One generic type serves both transports; what only one of them
//! has is in an `impl` of its own.

mod options;
mod owned_buffers;
mod remote_memory;
mod split;
mod traits;

use crate::builder::{Builder, default_spin};
use crate::source::{Mark, Source};
use crate::transport::{Accelerated, Rsockets, Transport};
use crate::waiter::Waiter;
use crate::waiting::{Direction, Waitable, readiness, retry, retry_interrupted};
use crate::wakers::WakerKey;
use rsock_core::accelerate::{Channels, FallbackReason, Side};
use rsock_core::rsocket::{AcceleratedSocket, Socket};
use rustix::net::RecvFlags;
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, ToSocketAddrs};

/// A connected stream.
///
/// `Stream`, without a parameter, is a TCP connection that moves to shared memory once its peer
/// turns out to be such a stream on the same host, or to RDMA if it is one on a host that shares a
/// key with this host or is trusted, and back when it must; the program sees one stream of bytes.
/// `Stream<Rsockets>`, which is [`rsockets::Stream`](crate::rsockets::Stream), speaks the rsockets
/// protocol alone.
///
/// Programs read and write by [`AsyncRead`](tokio::io::AsyncRead) and
/// [`AsyncWrite`](tokio::io::AsyncWrite), or by the methods here, which take a shared reference. As
/// with Tokio's own stream, the traits wake one task for reading and one for writing; any number of
/// tasks may wait in the `async` methods.
///
/// Dropping the stream closes the connection, and resets it if received bytes were not read, as the
/// kernel does. The drop of a stream that moved to RDMA waits until the peer's device has
/// everything: a round trip, at most five seconds. That of an rsockets stream does not wait: a
/// thread of the runtime's pool for blocking work does, for `SO_LINGER`'s time or at most ten
/// seconds.
///
/// # Cancel safety
///
/// A dropped future of `AsyncReadExt::read` has taken nothing, and one of `AsyncWriteExt::write`
/// has written nothing. `read_exact` and `write_all` are no more cancel safe than Tokio makes them.
///
/// # Examples
///
/// ```
/// use rsock_tokio::{Listener, Stream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0").await?;
/// let mut client = Stream::connect(listener.local_addr()?).await?;
/// let (mut server, _) = listener.accept().await?;
/// client.write_all(b"request").await?;
/// client.shutdown().await?;
/// let mut request = String::new();
/// server.read_to_string(&mut request).await?;
/// assert_eq!(request, "request");
/// # Ok(())
/// # }
/// ```
pub struct Stream<T: Transport = Accelerated> {
    transport: T,
    /// `None` if the stream can never leave TCP: then the socket shows everything.
    waiter: Option<Arc<Waiter>>,
    /// False once a blocking stream has taken over the connection, and closes it.
    closes_on_drop: bool,
}

impl Builder {
    /// As [`Stream::connect`].
    ///
    /// # Errors
    /// As [`Stream::connect`]; as `setsockopt(2)` if [`Self::nodelay`] was called.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; no connection is left behind.
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        self.stream(TcpStream::connect(addr).await?, Some(Side::Connected))
    }

    /// Takes over a connected socket through which no byte has passed yet. (One that has been used
    /// works too, and stays on TCP.)
    ///
    /// # Errors
    /// As `setsockopt(2)` if [`Self::nodelay`] was called.
    pub fn wrap(&self, socket: TcpStream) -> io::Result<Stream> {
        self.stream(socket, None)
    }

    /// `side` says which end of the connection this is; without it the stream does not move to a
    /// peer on another host.
    fn stream(&self, socket: TcpStream, side: Option<Side>) -> io::Result<Stream> {
        if let Some(on) = self.nodelay {
            socket.set_nodelay(on)?;
        }
        Ok(Stream::new(socket, side, self.spin, self.iomap_slots))
    }

    /// The stream of a connection that the listener has accepted.
    pub(crate) fn accepted(
        &self,
        (socket, peer): (TcpStream, SocketAddr),
    ) -> io::Result<(Stream, SocketAddr)> {
        Ok((self.stream(socket, Some(Side::Accepted))?, peer))
    }
}

impl Stream {
    pub(crate) fn new(
        socket: TcpStream,
        side: Option<Side>,
        spin: Duration,
        iomap_slots: u16,
    ) -> Self {
        let transport = Accelerated::new(socket, side, iomap_slots);
        let source = transport.stream().map(|stream| Source::Accelerated(Arc::clone(stream)));
        let waiter = source.map(|source| Waiter::new(source, spin));
        Self { transport, waiter, closes_on_drop: true }
    }

    /// Connects to any TCP peer, as [`TcpStream::connect`].
    ///
    /// # Errors
    /// As `connect(2)`: `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`... of the last address tried.
    ///
    /// # Cancel safety
    /// Dropping the future abandons the attempt; no connection is left behind.
    pub async fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().connect(addr).await
    }

    /// As [`Self::connect`] to one address, for at most `limit`. The runtime must have timers
    /// enabled.
    ///
    /// # Errors
    /// As [`Self::connect`]; `TimedOut` when the time is over.
    ///
    /// # Cancel safety
    /// As [`Self::connect`].
    pub async fn connect_timeout(addr: SocketAddr, limit: Duration) -> io::Result<Self> {
        tokio::time::timeout(limit, Self::connect(addr)).await?
    }

    /// Takes over a connected, non-blocking socket through which no byte has passed yet. (One that
    /// has been used works too, and stays on TCP.)
    ///
    /// # Errors
    /// As `epoll_ctl(2)` when the runtime registers the socket: `ENOMEM`, `ENOSPC`, `EEXIST`.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    pub fn from_std(socket: std::net::TcpStream) -> io::Result<Self> {
        TcpStream::from_std(socket).map(Self::from)
    }

    /// Turns it into a blocking socket, from which an `rsock::Stream` can be made, whether or not
    /// it has left TCP. As with [`TcpStream::into_std`] it stays non-blocking until that is
    /// changed.
    ///
    /// # Errors
    /// `EMFILE` if there is no room for another descriptor.
    pub fn into_std(mut self) -> io::Result<AcceleratedSocket> {
        let socket = self.transport.to_blocking()?;
        self.closes_on_drop = false;
        Ok(socket)
    }

    /// What carries the bytes of each direction now.
    ///
    /// # Examples
    ///
    /// ```
    /// use rsock_tokio::{Channels, Listener, Stream};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> std::io::Result<()> {
    /// let listener = Listener::bind("127.0.0.1:0").await?;
    /// let stream = Stream::connect(listener.local_addr()?).await?;
    /// assert_eq!(stream.channels(), Channels::TCP, "every stream begins on TCP");
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn channels(&self) -> Channels {
        self.transport.stream().map_or(Channels::TCP, |stream| stream.channels())
    }

    /// Why the stream stays on TCP; `None` if it need not.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<FallbackReason> {
        let Some(stream) = self.transport.stream() else {
            return Some(FallbackReason::Configured);
        };
        Some(stream.pin_reason()).filter(|reason| *reason != FallbackReason::None)
    }
}

impl Stream<Rsockets> {
    /// For a connected stream. Must be called inside a runtime.
    pub(crate) fn from_connected(socket: Arc<Socket>, spin: Duration) -> io::Result<Self> {
        let transport = Rsockets::new(socket)?;
        let waiter = Waiter::new(Source::Rsockets(Arc::clone(transport.socket())), spin);
        Ok(Self { transport, waiter: Some(waiter), closes_on_drop: true })
    }

    /// Takes over a connected blocking socket of the rsockets protocol, such as an
    /// `rsock::rsockets::Stream` consists of, whatever has passed through it.
    ///
    /// # Errors
    /// `ENOTCONN`; as `epoll_ctl(2)` when the runtime registers its descriptor: `ENOMEM`, `ENOSPC`.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    pub fn from_blocking(socket: Arc<Socket>) -> io::Result<Self> {
        Self::from_connected(socket, default_spin())
    }

    /// Turns it into a blocking socket, from which an `rsock::rsockets::Stream` can be made. As
    /// with [`TcpStream::into_std`] it stays non-blocking until that is changed.
    #[must_use]
    pub fn into_blocking(mut self) -> Arc<Socket> {
        self.closes_on_drop = false;
        Arc::clone(self.transport.socket())
    }
}

impl<T: Transport> Stream<T> {
    fn wake_for_new_queue(&self) {
        if let Some(waiter) = &self.waiter {
            waiter.wake_for_new_queue();
        }
    }

    fn recv_now(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        if bufs.iter().all(|b| b.is_empty()) {
            return Ok(0);
        }
        let result = retry_interrupted(|| self.transport.try_recv(bufs, flags));
        self.wake_for_new_queue();
        result
    }

    fn send_now(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        retry_interrupted(|| self.transport.try_send(bufs))
    }

    fn poll_recv(
        &self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Poll<io::Result<usize>> {
        let direction = Direction::Read;
        self.poll_io(cx, direction, direction.task(), || self.recv_now(bufs, flags))
    }

    fn poll_send(&self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let direction = Direction::Write;
        self.poll_io(cx, direction, direction.task(), || self.send_now(bufs))
    }

    fn shutdown_now(&self, how: Shutdown) -> io::Result<()> {
        let done = self.transport.shutdown(how);
        // A task that waits to read finds the end.
        if let Some(waiter) = &self.waiter {
            waiter.wakers.wake_all();
        }
        done
    }

    /// Reads what has come: 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come; otherwise as `recv(2)`: `ECONNRESET`, `ETIMEDOUT`.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read_vectored(&mut [IoSliceMut::new(buf)])
    }

    /// As [`Self::try_read`], into several buffers.
    ///
    /// # Errors
    /// As [`Self::try_read`].
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.recv_now(bufs, RecvFlags::empty())
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise as `send(2)` with `MSG_NOSIGNAL`: `EPIPE`,
    /// `ECONNRESET`, `ETIMEDOUT`.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    /// As [`Self::try_write`], from several buffers.
    ///
    /// # Errors
    /// As [`Self::try_write`].
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_now(bufs)
    }

    /// Waits until a read would return something: bytes, the end of the stream, or an error.
    /// Another task may read first, so that a [`Self::try_read`] after this finds nothing.
    ///
    /// # Errors
    /// `Other` if the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn readable(&self) -> io::Result<()> {
        readiness(self, Interest::READABLE).await.map(drop)
    }

    /// Waits until a write would take something or fail at once.
    ///
    /// # Errors
    /// `Other` if the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is written.
    pub async fn writable(&self) -> io::Result<()> {
        readiness(self, Interest::WRITABLE).await.map(drop)
    }

    /// Waits until some of `interest` hold, and returns which.
    ///
    /// # Errors
    /// `Other` if the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is transferred.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        match self.transport.kernel_socket() {
            Some(socket) => socket.ready(interest).await,
            None => readiness(self, interest).await,
        }
    }

    /// As [`Self::readable`], for one task at a time: the last that called this,
    /// [`Self::poll_peek`] or [`AsyncRead`](tokio::io::AsyncRead) is woken.
    ///
    /// # Errors
    /// As [`Self::readable`].
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Direction::Read)
    }

    /// As [`Self::writable`], for one task at a time: the last that called this or
    /// [`AsyncWrite`](tokio::io::AsyncWrite) is woken.
    ///
    /// # Errors
    /// As [`Self::writable`].
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Direction::Write)
    }

    /// Copies what the next read would return, and leaves it for that.
    ///
    /// # Errors
    /// As `recv(2)`: `ECONNRESET`, `ETIMEDOUT`.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let bufs = &mut [IoSliceMut::new(buf)];
        retry(self, Direction::Read, || self.recv_now(bufs, RecvFlags::PEEK)).await
    }

    /// As [`Self::peek`], for one task at a time, as [`Self::poll_read_ready`].
    ///
    /// # Errors
    /// As [`Self::peek`].
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let bufs = &mut [IoSliceMut::new(buf.initialize_unfilled())];
        let n = ready!(self.poll_recv(cx, bufs, RecvFlags::PEEK))?;
        buf.advance(n);
        Poll::Ready(Ok(n))
    }

    /// Splits it into two halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_, T>, WriteHalf<'_, T>) {
        (ReadHalf::new(self), WriteHalf::new(self))
    }

    /// Splits it into two halves for different tasks. Dropping the writing half ends that
    /// direction.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf<T>, OwnedWriteHalf<T>) {
        OwnedReadHalf::pair(self)
    }
}

impl<T: Transport> Waitable for Stream<T> {
    fn waiter(&self) -> Option<&Arc<Waiter>> {
        self.waiter.as_ref()
    }

    fn poll_sources(
        &self,
        waiter: &Arc<Waiter>,
        direction: Direction,
        mark: Mark,
    ) -> Poll<io::Result<()>> {
        self.transport.poll_sources(waiter, direction, mark)
    }

    fn poll_socket(
        &self,
        cx: &mut Context<'_>,
        direction: Direction,
        key: WakerKey,
    ) -> Poll<io::Result<()>> {
        self.transport.poll_socket(cx, direction, key)
    }

    fn unregister(&self, key: WakerKey) {
        match &self.waiter {
            Some(waiter) => waiter.unpark(key),
            None => self.transport.unregister(key),
        }
    }

    fn current_readiness(&self, interest: Interest) -> io::Result<Ready> {
        let ready = self.transport.current_readiness(interest);
        self.wake_for_new_queue();
        ready
    }
}

impl<T: Transport> Drop for Stream<T> {
    fn drop(&mut self) {
        if let Some(waiter) = &self.waiter {
            waiter.close();
        }
        if self.closes_on_drop {
            self.transport.close(self.waiter.as_ref().map(|waiter| &waiter.runtime));
        }
    }
}
