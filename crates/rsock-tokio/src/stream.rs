//! The stream, as `tokio::net::TcpStream`; of either mode.

use crate::builder::Builder;
use crate::shared::{Base, Shared};
use crate::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use crate::waiting::{Side, Waits, readiness, retry};
use rsock_core::accelerate::{self, FallbackReason};
use rustix::net::RecvFlags;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::net::{TcpStream, ToSocketAddrs};

/// A TCP connection that moves to shared memory once its peer turns out to be an rsock stream on
/// the same host, or to RDMA if it is one on a host that shares a key with ours or is trusted, and back
/// when need be; the program sees one stream of bytes. Or a connection of the
/// [pure mode](crate::rsockets), which is used in the same way.
///
/// Reading and writing is by [`AsyncRead`](tokio::io::AsyncRead) and
/// [`AsyncWrite`](tokio::io::AsyncWrite), or by the methods here, which take a shared reference. As
/// with Tokio's own stream, one task at a time is woken for reading and one for writing by the
/// traits; any number may wait in the `async` methods. Dropping it closes the connection, and
/// resets it if received bytes were not read, as the kernel does. A drop of a stream that used RDMA waits
/// until the peer's device has everything: a round trip, at most five seconds.
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
/// client.write_all(b"all I have to say").await?;
/// client.shutdown().await?;
/// let mut said = String::new();
/// server.read_to_string(&mut said).await?;
/// assert_eq!(said, "all I have to say");
/// # Ok(())
/// # }
/// ```
pub struct Stream {
    pub(crate) shared: Arc<Shared>,
}

impl Stream {
    pub(crate) fn new(
        socket: TcpStream,
        end: Option<accelerate::Side>,
        spin: Duration,
        iomap_slots: u16,
    ) -> Self {
        Self { shared: Arc::new(Shared::new(socket, end, spin, iomap_slots)) }
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

    /// Takes over a connected socket through which no byte has passed yet. It must be non-blocking.
    /// (One that has been used works too, and stays on TCP.)
    ///
    /// # Errors
    /// When it cannot be watched by the runtime.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    pub fn from_std(socket: std::net::TcpStream) -> io::Result<Self> {
        TcpStream::from_std(socket).map(Self::from)
    }

    /// Turns it into a blocking socket, from which `rsock::Stream` can be made, wherever its bytes are now. As with
    /// [`TcpStream::into_std`] it stays non-blocking until that is changed.
    ///
    /// # Errors
    /// `EMFILE` if there is no room for another descriptor; `Unsupported` for a stream of the pure
    /// mode, whose counterpart is [`rsockets::into_blocking`](crate::rsockets::into_blocking).
    pub fn into_std(self) -> io::Result<rsock_core::rsocket::AcceleratedSocket> {
        self.shared.hand_over()
    }

    /// Reads what has come: 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come; otherwise as `recv(2)`.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.try_read_vectored(&mut [IoSliceMut::new(buf)])
    }

    /// As [`Self::try_read`], into several buffers.
    ///
    /// # Errors
    /// As [`Self::try_read`].
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.shared.try_recv(bufs, RecvFlags::empty())
    }

    /// Writes what there is room for.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise as `send(2)` with `MSG_NOSIGNAL`.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.try_write_vectored(&[IoSlice::new(buf)])
    }

    /// As [`Self::try_write`], from several buffers.
    ///
    /// # Errors
    /// As [`Self::try_write`].
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.shared.try_send(bufs)
    }

    /// Waits until a read would return something: bytes, the end of the stream, or an error.
    /// Another reader may be faster, so a following [`Self::try_read`] may find nothing.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn readable(&self) -> io::Result<()> {
        readiness(&*self.shared, Interest::READABLE).await.map(drop)
    }

    /// Waits until a write would take something, or fail at once.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is written.
    pub async fn writable(&self) -> io::Result<()> {
        readiness(&*self.shared, Interest::WRITABLE).await.map(drop)
    }

    /// Waits for either; says which.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is transferred.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        readiness(&*self.shared, interest).await
    }

    /// As [`Self::readable`], for the task that reads: shares its place for a waker with reading.
    ///
    /// # Errors
    /// As [`Self::readable`].
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.poll_ready(cx, Side::Read)
    }

    /// As [`Self::writable`], for the task that writes: shares its place for a waker with writing.
    ///
    /// # Errors
    /// As [`Self::writable`].
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.poll_ready(cx, Side::Write)
    }

    /// Reads and leaves what is read for the next read.
    ///
    /// # Errors
    /// As `recv(2)`.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        let bufs = &mut [IoSliceMut::new(buf)];
        retry(&*self.shared, Side::Read, || self.shared.try_recv(bufs, RecvFlags::PEEK)).await
    }

    /// As [`Self::peek`]. Shares its place for a waker with reading.
    ///
    /// # Errors
    /// As [`Self::peek`].
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let bufs = &mut [IoSliceMut::new(buf.initialize_unfilled())];
        let n = ready!(self.shared.poll_recv(cx, bufs, RecvFlags::PEEK))?;
        buf.advance(n);
        Poll::Ready(Ok(n))
    }

    /// Splits it into two halves that borrow it.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (ReadHalf(self), WriteHalf(self))
    }

    /// Splits it into two halves for different tasks. Dropping the writing half ends that
    /// direction.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        OwnedReadHalf::pair(self)
    }

    /// Whether sending and receiving bypass TCP now. A stream of the pure mode does from the start.
    #[must_use]
    pub fn on_ring(&self) -> (bool, bool) {
        match &self.shared.base {
            Base::Tcp(tcp) => tcp.twin.as_ref().map_or((false, false), |twin| twin.on_ring()),
            Base::Pure(_) => (true, true),
        }
    }

    /// Why the stream stays on TCP; [`FallbackReason::None`] if it need not.
    #[must_use]
    pub fn pin_reason(&self) -> FallbackReason {
        match &self.shared.base {
            Base::Tcp(tcp) => {
                tcp.twin.as_ref().map_or(FallbackReason::Configured, |twin| twin.pin_reason())
            }
            Base::Pure(_) => FallbackReason::None,
        }
    }
}

macro_rules! of_the_socket {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $type:ty)?) -> $out:ty;)*) => {
        impl Stream {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// What the system call answers.
            pub fn $name(&self $(, $arg: $type)?) -> io::Result<$out> {
                match &self.shared.base {
                    Base::Tcp(tcp) => tcp.socket.$name($($arg)?),
                    Base::Pure(pure) => pure.$name($($arg)?),
                }
            }
        )*}
    };
}

of_the_socket! {
    /// Address of this end.
    local_addr() -> SocketAddr;
    /// Address of the peer.
    peer_addr() -> SocketAddr;
    /// `TCP_NODELAY`; only TCP ever delays.
    set_nodelay(on: bool) -> ();
    /// `TCP_NODELAY`.
    nodelay() -> bool;
    /// `IP_TTL` of what goes by TCP, in hops; not in the pure mode (`ENOPROTOOPT`).
    set_ttl(hops: u32) -> ();
    /// `IP_TTL`, in hops; not in the pure mode.
    ttl() -> u32;
    /// The pending error of the socket (`SO_ERROR`), which is cleared.
    take_error() -> Option<io::Error>;
    /// `SO_LINGER`.
    linger() -> Option<Duration>;
}

impl Stream {
    /// `SO_LINGER`: how long closing waits, in whole seconds, for unsent bytes; zero resets the
    /// connection, `None` does not wait. A wait blocks the thread that drops the stream; in the
    /// pure mode, one of the runtime's for blocking work.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        match &self.shared.base {
            Base::Tcp(tcp) => Ok(rustix::net::sockopt::set_socket_linger(&tcp.socket, linger)?),
            Base::Pure(pure) => pure.set_linger(linger),
        }
    }
}

impl From<TcpStream> for Stream {
    /// Takes over a connected socket through which no byte has passed yet. (One that has been used
    /// works too, and stays on TCP.)
    fn from(socket: TcpStream) -> Self {
        Self::new(socket, None, crate::builder::longest_spin(), 0)
    }
}

impl AsFd for Stream {
    /// The TCP socket. Reading or writing it past this type makes the stream stay on TCP, or
    /// reports a fault. In the pure mode a descriptor that is good for its number alone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.shared.base {
            Base::Tcp(tcp) => tcp.socket.as_fd(),
            Base::Pure(pure) => pure.socket.as_fd(),
        }
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("base", &self.shared.base)
            .field("on_ring", &self.on_ring())
            .field("pin_reason", &self.pin_reason())
            .finish()
    }
}
