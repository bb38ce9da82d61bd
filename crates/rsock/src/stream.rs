//! A stream to any TCP peer, as `std::net::TcpStream`, that moves to a faster path by itself.

use crate::builder::{Acceleration, Builder, first};
use crate::stream_io::impl_stream_io;
use crate::{Channels, FallbackReason, KeepaliveSettings, Side};
use rsock_core::rsocket::AcceleratedSocket;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::error::Error;
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A TCP connection, as [`TcpStream`], that leaves TCP by itself.
///
/// The bytes move to shared memory once the peer is found to be another rsock process on this host,
/// to an RDMA device once it is found to be one on another host, and back to TCP when need be. The
/// program sees one stream of bytes.
///
/// Reading and writing work on a shared reference, and do not disturb each other. Clones share the
/// connection; dropping the last of them closes it.
///
/// ```
/// use rsock::{Listener, Stream};
/// use std::io::{Read, Write};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let client = Stream::connect(listener.local_addr()?)?;
/// let (server, _) = listener.accept()?;
/// server.set_read_timeout(Some(Duration::from_secs(5)))?;
///
/// // After some round trips both directions have left TCP.
/// let mut word = [0; 4];
/// for _ in 0..10_000 {
///     if client.channels().are_accelerated() && server.channels().are_accelerated() {
///         break;
///     }
///     (&client).write_all(b"ping")?;
///     (&server).read_exact(&mut word)?;
///     (&server).write_all(b"pong")?;
///     (&client).read_exact(&mut word)?;
/// }
/// println!("{}", client.channels());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Stream {
    socket: Arc<AcceleratedSocket>,
}

impl Builder {
    /// Connects to the first of the addresses that accepts, as [`TcpStream::connect`].
    ///
    /// # Errors
    /// As [`Stream::connect`]; `TimedOut` when the [time limit](Self::connect_timeout) is over;
    /// `InvalidInput` for a time limit of zero.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        let socket = match self.connect_timeout {
            None => TcpStream::connect(addr)?,
            Some(limit) => first(addr, |addr| TcpStream::connect_timeout(&addr, limit))?,
        };
        self.stream(socket, Some(Side::Connected))
    }

    /// Takes over a connected socket, as [`Stream::with_side`], and sets its options.
    ///
    /// # Errors
    /// As `setsockopt(2)`; `InvalidInput` for a time limit of zero.
    pub fn adopt(&self, socket: TcpStream, side: Side) -> io::Result<Stream> {
        self.stream(socket, Some(side))
    }

    fn stream(&self, socket: TcpStream, side: Option<Side>) -> io::Result<Stream> {
        self.set_options(&socket)?;
        Ok(match self.acceleration {
            Acceleration::Automatic => Stream::adopt(socket, side),
            Acceleration::Off => Stream::on_tcp(socket),
        })
    }
}

impl Stream {
    /// Connects to the first of the addresses that accepts, as [`TcpStream::connect`].
    ///
    /// # Errors
    /// As `connect(2)`: `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`, `EHOSTUNREACH`.
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().connect(addr)
    }

    /// Connects to one address within a time limit, as [`TcpStream::connect_timeout`].
    ///
    /// # Errors
    /// As [`Self::connect`]; `TimedOut` when the time is over; `InvalidInput` for a limit of zero.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        Builder::new().connect_timeout(timeout).connect(addr)
    }

    /// Takes over a connected socket through which no byte has passed yet, and which came from
    /// `connect` or `accept` as `side` says: the two ends of a connection between hosts do
    /// different things to set up RDMA. (A socket that has been used works too, and stays on TCP.)
    #[must_use]
    pub fn with_side(socket: TcpStream, side: Side) -> Self {
        Self::adopt(socket, Some(side))
    }

    pub(crate) fn adopt(socket: TcpStream, side: Option<Side>) -> Self {
        AcceleratedSocket::adopt(socket, side).into()
    }

    /// A stream that never leaves TCP.
    pub(crate) fn on_tcp(socket: TcpStream) -> Self {
        AcceleratedSocket::from_parts(socket, None).into()
    }

    /// Receives what has arrived, waiting for the first byte on a blocking socket. 0 is the end of
    /// the stream. As [`Read::read`], without `&mut`.
    ///
    /// # Errors
    /// As `recv(2)`: `EAGAIN` (non-blocking, or the read timeout is over), `EINTR`, `ECONNRESET`.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(&mut [IoSliceMut::new(buf)], RecvFlags::empty())
    }

    /// Sends; on a blocking socket all of `buf`. As [`Write::write`], without `&mut`.
    ///
    /// # Errors
    /// As `send(2)` with `MSG_NOSIGNAL`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.socket.send(&[IoSlice::new(buf)], SendFlags::empty())
    }

    /// Receives and leaves the bytes in the stream, as [`TcpStream::peek`].
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(&mut [IoSliceMut::new(buf)], RecvFlags::PEEK)
    }

    /// Ends one direction or both, as [`TcpStream::shutdown`].
    ///
    /// # Errors
    /// As `shutdown(2)`: `ENOTCONN`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Another handle on the same stream. It costs no descriptor.
    ///
    /// # Errors
    /// None; the signature is that of [`TcpStream::try_clone`].
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// What carries the bytes of each direction now.
    #[must_use]
    pub fn channels(&self) -> Channels {
        self.socket.channels()
    }

    /// Why the stream stays on TCP; `None` as long as it may leave TCP, or has left it.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<FallbackReason> {
        Some(self.socket.pin_reason()).filter(|reason| *reason != FallbackReason::None)
    }

    /// Bytes that a receive could return now (`FIONREAD`).
    ///
    /// # Errors
    /// As `ioctl(2)`.
    pub fn bytes_readable(&self) -> io::Result<usize> {
        self.socket.bytes_readable()
    }

    /// Brings the stream back to TCP for good and returns the TCP socket, for code that needs one.
    ///
    /// It waits for the peer to leave the ring: up to 10 ms if it is on this host, and up to 200 ms
    /// if it is on another one.
    ///
    /// # Errors
    /// The stream, which stays usable, with the reason: `WouldBlock` if bytes lie unread on the
    /// ring or the peer did not answer in time (read, then try again); `ResourceBusy` if the stream
    /// has clones, which the socket would take bytes from; `EMFILE`.
    pub fn into_std(self) -> Result<TcpStream, IntoStdError> {
        let socket = Arc::try_unwrap(self.socket).map_err(|socket| IntoStdError {
            stream: Self { socket },
            error: io::Error::new(io::ErrorKind::ResourceBusy, "the stream has clones"),
        })?;
        socket.into_std().map_err(|(socket, error)| IntoStdError { stream: socket.into(), error })
    }

    /// `SO_LINGER`: how long a close waits for unsent bytes; `None` does not wait.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_linger(self.socket.socket())?)
    }

    /// Sets `SO_LINGER`, in whole seconds. Zero makes the close a reset.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_linger(self.socket.socket(), linger)?)
    }

    /// `SO_KEEPALIVE` and its times; `None` is off.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn keepalive(&self) -> io::Result<Option<KeepaliveSettings>> {
        let socket = self.socket.socket();
        if !sockopt::socket_keepalive(socket)? {
            return Ok(None);
        }
        let idle = sockopt::tcp_keepidle(socket)?;
        let interval = sockopt::tcp_keepintvl(socket)?;
        let probes = sockopt::tcp_keepcnt(socket)?;
        Ok(Some(KeepaliveSettings { idle, interval, probes }))
    }

    /// Sets `SO_KEEPALIVE`, `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT`, which Linux counts
    /// in whole seconds; `None` switches keepalive off.
    ///
    /// # Errors
    /// As `setsockopt(2)`: `EINVAL` for times below one second and for no probes.
    pub fn set_keepalive(&self, settings: Option<KeepaliveSettings>) -> io::Result<()> {
        let socket = self.socket.socket();
        if let Some(settings) = settings {
            sockopt::set_tcp_keepidle(socket, settings.idle)?;
            sockopt::set_tcp_keepintvl(socket, settings.interval)?;
            sockopt::set_tcp_keepcnt(socket, settings.probes)?;
        }
        Ok(sockopt::set_socket_keepalive(socket, settings.is_some())?)
    }
}

/// Options of the TCP socket: the kernel keeps them, and the ring follows those that concern it.
macro_rules! of_the_socket {
    (impl Stream {$(
        $(#[$doc:meta])*
        pub fn $name:ident(&self $(, $arg:ident: $ty:ty)?) -> $ret:ty;
    )*}) => {
        impl Stream {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As the method of the same name of [`TcpStream`].
            pub fn $name(&self $(, $arg: $ty)?) -> $ret {
                self.socket.socket().$name($($arg)?)
            }
        )*}
    };
}

of_the_socket! {
    impl Stream {
        /// The address of this end (`getsockname(2)`).
        pub fn local_addr(&self) -> io::Result<SocketAddr>;
        /// The address of the peer (`getpeername(2)`).
        pub fn peer_addr(&self) -> io::Result<SocketAddr>;
        /// Sets the non-blocking mode, in which calls return `WouldBlock` instead of waiting.
        pub fn set_nonblocking(&self, on: bool) -> io::Result<()>;
        /// `TCP_NODELAY`.
        pub fn nodelay(&self) -> io::Result<bool>;
        /// Sets `TCP_NODELAY`. The ring never delays a write.
        pub fn set_nodelay(&self, on: bool) -> io::Result<()>;
        /// `IP_TTL`: the number of hops that TCP's packets may take.
        pub fn ttl(&self) -> io::Result<u32>;
        /// Sets `IP_TTL`.
        pub fn set_ttl(&self, hops: u32) -> io::Result<()>;
        /// `SO_RCVTIMEO`: how long a receive waits.
        pub fn read_timeout(&self) -> io::Result<Option<Duration>>;
        /// Sets `SO_RCVTIMEO`; `None` waits without end, and zero is `InvalidInput`. When the time
        /// is over, a receive returns `WouldBlock`.
        pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()>;
        /// `SO_SNDTIMEO`: how long a send waits.
        pub fn write_timeout(&self) -> io::Result<Option<Duration>>;
        /// Sets `SO_SNDTIMEO`; `None` waits without end, and zero is `InvalidInput`. When the time
        /// is over, a send returns the bytes sent so far, or `WouldBlock`.
        pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()>;
        /// The pending error of the socket (`SO_ERROR`), which the call clears.
        pub fn take_error(&self) -> io::Result<Option<io::Error>>;
    }
}

/// Why [`Stream::into_std`] did not give the TCP socket, with the stream, which stays usable.
#[derive(Debug)]
pub struct IntoStdError {
    stream: Stream,
    error: io::Error,
}

impl IntoStdError {
    /// The reason.
    #[must_use]
    pub fn error(&self) -> &io::Error {
        &self.error
    }

    /// The stream.
    #[must_use]
    pub fn into_stream(self) -> Stream {
        self.stream
    }
}

impl fmt::Display for IntoStdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the stream cannot go on as a plain TCP socket: {}", self.error)
    }
}

impl Error for IntoStdError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&self.error)
    }
}

impl From<IntoStdError> for io::Error {
    fn from(e: IntoStdError) -> Self {
        e.error
    }
}

impl From<TcpStream> for Stream {
    /// Takes over a connected socket through which no byte has passed yet. (A socket that has been
    /// used works too, and stays on TCP.) The side is not known, so with a peer on another host the
    /// stream stays on TCP: see [`Stream::with_side`].
    fn from(socket: TcpStream) -> Self {
        Self::adopt(socket, None)
    }
}

impl From<OwnedFd> for Stream {
    /// As `From<TcpStream>`. The descriptor must be a connected TCP socket; other kinds fail when
    /// they are used.
    fn from(fd: OwnedFd) -> Self {
        TcpStream::from(fd).into()
    }
}

impl TryFrom<Stream> for TcpStream {
    type Error = IntoStdError;

    /// As [`Stream::into_std`].
    fn try_from(stream: Stream) -> Result<Self, IntoStdError> {
        stream.into_std()
    }
}

impl TryFrom<Stream> for OwnedFd {
    type Error = IntoStdError;

    /// As [`Stream::into_std`].
    fn try_from(stream: Stream) -> Result<Self, IntoStdError> {
        stream.into_std().map(Self::from)
    }
}

impl From<AcceleratedSocket> for Stream {
    /// A stream that another kind of stream has let go of.
    fn from(socket: AcceleratedSocket) -> Self {
        Self { socket: Arc::new(socket) }
    }
}

impl AsRef<AcceleratedSocket> for Stream {
    /// The socket below, for other crates of rsock. Its interface may change in any version.
    fn as_ref(&self) -> &AcceleratedSocket {
        &self.socket
    }
}

impl_stream_io!(Stream);
impl_stream_io!(&Stream);

impl AsFd for Stream {
    /// The TCP socket. Bytes that are read from or written to it past this type make the stream
    /// stay on TCP, or break it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("socket", self.socket.socket())
            .field("channels", &self.channels())
            .field("fallback_reason", &self.fallback_reason())
            .finish()
    }
}
