//! A stream to any TCP peer, as `std::net::TcpStream`, that moves to a faster path by itself.

use crate::accelerate::{AcceleratedStream, FallbackReason, Side};
use rustix::net::{RecvFlags, SendFlags};
use std::fmt;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A TCP connection that moves to shared memory once it is found to lead to another rsock process on
/// this host, or to an RDMA device once it leads to one on another host, and back when need be; the program
/// sees one stream of bytes.
///
/// Reading and writing from two threads at once do not disturb each other. Dropping the last
/// clone closes the connection.
///
/// ```
/// use rsock_core::rsocket::{Listener, Stream};
/// use std::io::{Read, Write};
///
/// # fn main() -> std::io::Result<()> {
/// let listener = Listener::bind("127.0.0.1:0")?;
/// let mut client = Stream::connect(listener.local_addr()?)?;
/// let (mut server, _) = listener.accept()?;
/// client.write_all(b"ping")?;
/// let mut word = [0; 4];
/// server.read_exact(&mut word)?;
/// assert_eq!(&word, b"ping");
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Stream {
    inner: Arc<Inner>,
}

struct Inner {
    twin: Option<Arc<AcceleratedStream>>,
    socket: TcpStream,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(twin) = &self.twin {
            twin.close(self.socket.as_fd());
        }
    }
}

impl Stream {
    /// As [`TcpStream::connect`].
    ///
    /// # Errors
    /// As `connect(2)`: `ECONNREFUSED`, `ETIMEDOUT`, `ENETUNREACH`...
    pub fn connect(addr: impl ToSocketAddrs) -> io::Result<Self> {
        TcpStream::connect(addr).map(|socket| Self::with_side(socket, Side::Connected))
    }

    /// As [`TcpStream::connect_timeout`].
    ///
    /// # Errors
    /// As [`Self::connect`]; `TimedOut` when the time is over.
    pub fn connect_timeout(addr: &SocketAddr, timeout: Duration) -> io::Result<Self> {
        let socket = TcpStream::connect_timeout(addr, timeout)?;
        Ok(Self::with_side(socket, Side::Connected))
    }

    /// Takes over a connected socket through which no byte has passed yet, which this program has got from
    /// `connect` or from `accept`: the two ends of a connection between hosts do different things to find
    /// each other. (One that has been used works too, and stays on TCP.)
    #[must_use]
    pub fn with_side(socket: TcpStream, side: Side) -> Self {
        Self::adopt(socket, Some(side))
    }

    fn adopt(socket: TcpStream, side: Option<Side>) -> Self {
        let twin = AcceleratedStream::adopt(socket.as_fd(), side).map(Arc::new);
        Self::from_parts(socket, twin)
    }

    /// Receives what has arrived, waiting for the first byte on a blocking socket; 0 is the end of
    /// the stream. Works on a shared reference, for a reader and a writer in different threads.
    ///
    /// # Errors
    /// As `recv(2)`: `EAGAIN` (non-blocking, or the read timeout is over), `EINTR`, `ECONNRESET`.
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_with(&mut [IoSliceMut::new(buf)], RecvFlags::empty())
    }

    /// Sends; on a blocking socket all of `buf`.
    ///
    /// # Errors
    /// As `send(2)` with `MSG_NOSIGNAL`: `EAGAIN`, `EINTR`, `EPIPE`, `ECONNRESET`.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.send_with(&[IoSlice::new(buf)])
    }

    /// Receives without taking.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv_with(&mut [IoSliceMut::new(buf)], RecvFlags::PEEK)
    }

    /// As [`TcpStream::shutdown`].
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        let Some(twin) = &self.inner.twin else { return self.inner.socket.shutdown(how) };
        let how = match how {
            Shutdown::Read => rustix::net::Shutdown::Read,
            Shutdown::Write => rustix::net::Shutdown::Write,
            Shutdown::Both => rustix::net::Shutdown::Both,
        };
        twin.shutdown(self.inner.socket.as_fd(), how)
    }

    /// Another handle on the same stream.
    ///
    /// # Errors
    /// None; the signature is that of [`TcpStream::try_clone`].
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Whether sending and receiving use the ring now.
    #[must_use]
    pub fn on_ring(&self) -> (bool, bool) {
        self.twin().map_or((false, false), AcceleratedStream::on_ring)
    }

    /// Why the stream stays on TCP; [`FallbackReason::None`] if it need not.
    #[must_use]
    pub fn pin_reason(&self) -> FallbackReason {
        self.twin().map_or(FallbackReason::Configured, AcceleratedStream::pin_reason)
    }

    /// Bytes that a receive could return now.
    ///
    /// # Errors
    /// As `ioctl(FIONREAD)`.
    pub fn bytes_readable(&self) -> io::Result<usize> {
        match &self.inner.twin {
            Some(twin) => twin.bytes_readable(self.inner.socket.as_fd()),
            None => {
                let n = rustix::io::ioctl_fionread(&self.inner.socket)?;
                Ok(usize::try_from(n).unwrap_or(usize::MAX))
            }
        }
    }

    /// The twin, for [`crate::accelerate::poll`].
    #[must_use]
    pub fn twin(&self) -> Option<&AcceleratedStream> {
        self.inner.twin.as_deref()
    }

    fn recv_with(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let fd = self.inner.socket.as_fd();
        match &self.inner.twin {
            Some(twin) => twin.recv(fd, bufs, flags),
            None => {
                let mut control = rustix::net::RecvAncillaryBuffer::default();
                Ok(rustix::net::recvmsg(fd, bufs, &mut control, flags)?.bytes)
            }
        }
    }

    fn send_with(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let fd = self.inner.socket.as_fd();
        match &self.inner.twin {
            Some(twin) => twin.send(fd, bufs, SendFlags::NOSIGNAL),
            None => {
                let mut control = rustix::net::SendAncillaryBuffer::default();
                Ok(rustix::net::sendmsg(fd, bufs, &mut control, SendFlags::NOSIGNAL)?)
            }
        }
    }
}

/// Options of the TCP socket: the kernel keeps them, and the ring follows those that concern it.
macro_rules! of_the_socket {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        impl Stream {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As the method of the same name of [`TcpStream`].
            pub fn $name(&self $(, $arg: $ty)*) -> io::Result<$ret> {
                self.inner.socket.$name($($arg),*)
            }
        )*}
    };
}

of_the_socket! {
    /// Address of this end.
    local_addr() -> SocketAddr;
    /// Address of the peer.
    peer_addr() -> SocketAddr;
    /// Whether calls return `EAGAIN` instead of waiting.
    set_nonblocking(on: bool) -> ();
    /// `TCP_NODELAY`; the ring never delays.
    set_nodelay(on: bool) -> ();
    /// `TCP_NODELAY`.
    nodelay() -> bool;
    /// Longest wait of a receive; `None` waits without end.
    set_read_timeout(limit: Option<Duration>) -> ();
    /// Longest wait of a receive.
    read_timeout() -> Option<Duration>;
    /// Longest wait of a send; `None` waits without end.
    set_write_timeout(limit: Option<Duration>) -> ();
    /// Longest wait of a send.
    write_timeout() -> Option<Duration>;
    /// The pending error of the socket (`SO_ERROR`), which is cleared.
    take_error() -> Option<io::Error>;
}

impl Stream {
    /// `SO_LINGER`: how long closing waits for unsent bytes; `None` does not wait.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        Ok(rustix::net::sockopt::set_socket_linger(&self.inner.socket, linger)?)
    }
}

impl Stream {
    /// Joins a socket and its twin, taken from another kind of stream; without a twin it stays on TCP. They must
    /// belong together.
    #[must_use]
    pub fn from_parts(socket: TcpStream, twin: Option<Arc<AcceleratedStream>>) -> Self {
        Self { inner: Arc::new(Inner { twin, socket }) }
    }
}

impl From<TcpStream> for Stream {
    /// Takes over a connected socket through which no byte has passed yet. (One that has been used
    /// works too, and stays on TCP.) Its side is not known, so it stays on TCP with a peer on another host:
    /// see [`Stream::with_side`].
    fn from(socket: TcpStream) -> Self {
        Self::adopt(socket, None)
    }
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        (&*self).read_vectored(bufs)
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.recv(buf)
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.recv_with(bufs, RecvFlags::empty())
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        (&*self).write(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        (&*self).write_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.send(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.send_with(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    /// The TCP socket. Reading or writing it past this type makes the stream stay on TCP, or
    /// reports a fault.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.socket.as_fd()
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.inner.socket.as_raw_fd()
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stream")
            .field("socket", &self.inner.socket)
            .field("on_ring", &self.on_ring())
            .field("pin_reason", &self.pin_reason())
            .finish()
    }
}
