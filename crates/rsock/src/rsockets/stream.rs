//! A connected rsockets stream.

use crate::KeepaliveSettings;
use crate::builder::first;
use crate::rsockets::{Builder, ExposedRegion, Socket, Source, time_limit};
use crate::stream_io::impl_stream_io;
use rustix::net::{RecvFlags, SendFlags};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A connected rsockets stream, with the methods of [`TcpStream`](std::net::TcpStream).
///
/// Reading and writing work on a shared reference, and do not disturb each other. Clones share the
/// connection; dropping the last of them closes it.
///
/// ```
/// use rsock::rsockets::{Builder, Listener};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// const BOARD: u64 = 1; // a number that both ends know
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let mut client = Builder::new().iomap_slots(1).connect(listener.local_addr()?)?;
/// let (mut server, _) = listener.accept()?;
///
/// let board = server.expose(4096, BOARD)?;
/// server.write_all(b"!")?; // the client learns of the board before it reads this
///
/// client.read_exact(&mut [0])?;
/// client.write_remote(b"hello", BOARD + 10)?;
/// client.write_all(b"!")?; // the bytes are on the board before the server reads this
///
/// server.read_exact(&mut [0])?;
/// let mut word = [0; 5];
/// board.read_at(10, &mut word);
/// assert_eq!(&word, b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Stream {
    socket: Arc<Socket>,
}

impl Builder {
    /// Connects to the first of the addresses that accepts.
    ///
    /// # Errors
    /// As [`Stream::connect`]; `InvalidInput` for a time limit of zero.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<Stream> {
        let limit = time_limit(self.connect_timeout)?;
        first(addr, |addr| self.socket.connect(addr, limit).map(Stream::from))
    }
}

impl Stream {
    /// Connects to the first of the addresses that accepts.
    ///
    /// # Errors
    /// As `connect(2)`, of the last address: `ECONNREFUSED`, `ETIMEDOUT`, `EHOSTUNREACH`,
    /// `ENETUNREACH`; `EACCES` if the listener belongs to another user; `ENOTSUP` if it speaks
    /// another version of the protocol.
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        Builder::new().connect(addr)
    }

    /// Connects to one address within a time limit.
    ///
    /// # Errors
    /// As [`Self::connect`]; `TimedOut` when the time is over; `InvalidInput` for a limit of zero.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        Builder::new().connect_timeout(timeout).connect(addr)
    }

    /// The address of this end.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// As `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Receives what has arrived, waiting for the first byte on a blocking stream. 0 is the end of
    /// the stream. As [`Read::read`], without `&mut`.
    ///
    /// # Errors
    /// As `recv(2)`: `EAGAIN` (non-blocking, or the read timeout is over), `EINTR`, `ECONNRESET`,
    /// `ETIMEDOUT` (keepalive).
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(&mut [IoSliceMut::new(buf)], RecvFlags::empty())
    }

    /// Sends; on a blocking stream all of `buf`. As [`Write::write`], without `&mut`.
    ///
    /// # Errors
    /// As `rsend` of rdma-core: `EAGAIN`, `EINTR`, `ECONNRESET` once either end has closed this
    /// direction.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.socket.send(&[IoSlice::new(buf)], SendFlags::empty())
    }

    /// Receives and leaves the bytes in the stream.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(&mut [IoSliceMut::new(buf)], RecvFlags::PEEK)
    }

    /// Ends one direction or both.
    ///
    /// # Errors
    /// As `shutdown(2)`: `ENOTCONN`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Another handle on the same stream. It costs no descriptor.
    ///
    /// # Errors
    /// None; the signature is that of [`TcpStream::try_clone`](std::net::TcpStream::try_clone).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Bytes that a receive could return now.
    #[must_use]
    pub fn bytes_readable(&self) -> usize {
        self.socket.bytes_readable()
    }

    /// Sets the non-blocking mode, in which calls return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, on: bool) {
        self.socket.set_nonblocking(on);
    }

    /// `SO_RCVTIMEO`: how long a receive waits.
    ///
    /// # Errors
    /// None; the signature is that of
    /// [`TcpStream::read_timeout`](std::net::TcpStream::read_timeout).
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.socket.recv_timeout())
    }

    /// Sets `SO_RCVTIMEO`; `None` waits without end. When the time is over, a receive returns
    /// `WouldBlock`.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_recv_timeout(time_limit(limit)?);
        Ok(())
    }

    /// `SO_SNDTIMEO`: how long a send waits.
    ///
    /// # Errors
    /// None; the signature is that of
    /// [`TcpStream::write_timeout`](std::net::TcpStream::write_timeout).
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(self.socket.send_timeout())
    }

    /// Sets `SO_SNDTIMEO`; `None` waits without end. When the time is over, a send returns the
    /// bytes sent so far, or `WouldBlock`.
    ///
    /// # Errors
    /// `InvalidInput` for zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        self.socket.set_send_timeout(time_limit(limit)?);
        Ok(())
    }

    /// `TCP_NODELAY` as it was set; rsockets never delays a write.
    ///
    /// # Errors
    /// None; the signature is that of [`TcpStream::nodelay`](std::net::TcpStream::nodelay).
    pub fn nodelay(&self) -> io::Result<bool> {
        Ok(self.socket.nodelay())
    }

    /// Sets `TCP_NODELAY`, which changes nothing.
    ///
    /// # Errors
    /// None; the signature is that of [`TcpStream::set_nodelay`](std::net::TcpStream::set_nodelay).
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.socket.set_nodelay(on);
        Ok(())
    }

    /// `SO_LINGER`: how long a close waits for bytes on their way to another host; `None` is ten
    /// seconds.
    ///
    /// # Errors
    /// None; a setter and a getter of the same kind fail for [`crate::Stream`].
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        Ok(self.socket.linger())
    }

    /// Sets `SO_LINGER`, in whole seconds. Zero makes the close a reset.
    ///
    /// # Errors
    /// None; see [`Self::linger`].
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.socket.set_linger(linger);
        Ok(())
    }

    /// `SO_KEEPALIVE` and its times; `None` is off.
    ///
    /// # Errors
    /// None; see [`Self::linger`].
    pub fn keepalive(&self) -> io::Result<Option<KeepaliveSettings>> {
        Ok(self.socket.keepalive())
    }

    /// Sets `SO_KEEPALIVE`, `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT`, in whole seconds;
    /// `None` switches keepalive off. A peer that does not answer the probes ends the stream with
    /// `ETIMEDOUT`.
    ///
    /// # Errors
    /// `EINVAL` for times below one second and for no probes.
    pub fn set_keepalive(&self, settings: Option<KeepaliveSettings>) -> io::Result<()> {
        self.socket.set_keepalive(settings)
    }

    /// The pending error of the socket (`SO_ERROR`), which the call clears.
    ///
    /// # Errors
    /// None; the signature is that of [`TcpStream::take_error`](std::net::TcpStream::take_error).
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(self.socket.take_error())
    }

    /// Receive memory, in bytes (`SO_RCVBUF`): see [`Builder::receive_memory`].
    #[must_use]
    pub fn receive_memory(&self) -> u32 {
        self.socket.receive_memory()
    }

    /// How many regions the peer may expose to this end at once: see [`Builder::iomap_slots`].
    #[must_use]
    pub fn iomap_slots(&self) -> u16 {
        self.socket.iomap_slots()
    }

    /// Exposes `len` bytes of fresh zeroed memory to the peer's [`Self::write_remote`] under
    /// `offset` (`riomap` of rdma-core), until the region is dropped. The peer learns of it before
    /// it receives bytes that this end sends afterwards.
    ///
    /// # Errors
    /// `ENOMEM` if the peer has no free entry: it offers as many as its [`Builder::iomap_slots`]
    /// says.
    pub fn expose(&self, len: usize, offset: u64) -> io::Result<ExposedRegion> {
        self.socket.expose(len, offset)
    }

    /// Writes `bytes` into the memory that the peer exposes under `offset` (`riowrite` of
    /// rdma-core). The peer gets no notice of it, but bytes sent afterwards arrive afterwards.
    /// Returns the bytes written, which are fewer where the region ends.
    ///
    /// # Errors
    /// `EFAULT` if no region is exposed there; otherwise as [`Self::send`].
    pub fn write_remote(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.socket.write_remote(bytes, offset, SendFlags::empty())
    }

    /// The socket, for [`poll`](crate::rsockets::poll()) and for options by number.
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

impl From<Socket> for Stream {
    /// The socket must be connected; a stream of any other fails with `ENOTCONN`.
    fn from(socket: Socket) -> Self {
        Self { socket: Arc::new(socket) }
    }
}

impl From<Arc<Socket>> for Stream {
    /// As `From<Socket>`. The connection ends with the last owner of the socket.
    fn from(socket: Arc<Socket>) -> Self {
        Self { socket }
    }
}

impl From<Stream> for Arc<Socket> {
    fn from(stream: Stream) -> Self {
        stream.socket
    }
}

impl<'a> From<&'a Stream> for Source<'a> {
    fn from(stream: &'a Stream) -> Self {
        Self::Socket(&stream.socket)
    }
}

impl_stream_io!(Stream);
impl_stream_io!(&Stream);

impl AsFd for Stream {
    /// A descriptor that only holds the socket's number: see the [module](crate::rsockets).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
