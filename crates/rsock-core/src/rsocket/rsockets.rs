//! The pure mode for Rust programs: the rsockets protocol from the first byte, to and from C
//! programs as well.
//!
//! A peer of these sockets is another one of them, or a program over C rsockets; plain TCP peers
//! are refused. In return there are no kernel sockets to fall back to, and *iomaps*: memory that
//! one end opens ([`Stream::open`]) and the other writes into directly ([`Stream::put`]).
//!
//! # Examples
//!
//! ```
//! use rsock_core::rsocket::rsockets::{self, Listener};
//! use std::io::{Read, Write};
//!
//! let listener = Listener::bind("127.0.0.1:0".parse()?)?;
//! let mut client = rsockets::connect(listener.local_addr()?)?;
//! let (mut server, from) = listener.accept()?;
//! assert_eq!(from, client.local_addr()?);
//!
//! client.write_all(b"hello")?;
//! let mut word = [0; 5];
//! server.read_exact(&mut word)?;
//! assert_eq!(&word, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use crate::rsocket::options::{RDMA_IOMAPSIZE, SOL_RDMA};
use crate::rsocket::socket::Socket;
use rsock_verbs::MemoryRegion;
use rustix::net::RecvFlags;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

const BACKLOG: u32 = 128;

/// Connects to `to`.
///
/// # Errors
/// As [`Socket::connect`].
pub fn connect(to: SocketAddr) -> io::Result<Stream> {
    Builder::default().connect(to)
}

/// What is decided before a socket connects or listens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Builder {
    iomap_slots: Option<u16>,
    recv_buf: Option<u32>,
    limit: Option<Duration>,
}

impl Builder {
    /// Buffers that the peer may open to us at once; 0 by default. The wire knows 0 to 128, then
    /// multiples of 256 up to 32512: others are rounded down.
    #[must_use]
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.iomap_slots = Some(n);
        self
    }

    /// Receive memory of a stream, in bytes.
    #[must_use]
    pub fn receive_memory(mut self, bytes: u32) -> Self {
        self.recv_buf = Some(bytes);
        self
    }

    /// How long connecting may take; two minutes by default.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.limit = Some(limit);
        self
    }

    /// A socket with these settings, which neither connects nor listens yet, for IPv6 or IPv4 addresses.
    ///
    /// # Errors
    /// When descriptors or memory run out.
    pub fn socket(&self, v6: bool) -> io::Result<Socket> {
        let socket = Socket::new(v6)?;
        if let Some(n) = self.iomap_slots {
            socket.set_option(SOL_RDMA, RDMA_IOMAPSIZE, &i32::from(n).to_ne_bytes())?;
        }
        if let Some(bytes) = self.recv_buf {
            // The option is doubled, as for TCP.
            let half = (bytes / 2).to_ne_bytes();
            socket.set_option(libc::SOL_SOCKET, libc::SO_RCVBUF, &half)?;
        }
        Ok(socket)
    }

    /// Connects to `to`.
    ///
    /// # Errors
    /// As [`Socket::connect`].
    pub fn connect(&self, to: SocketAddr) -> io::Result<Stream> {
        let socket = self.socket(to.is_ipv6())?;
        socket.connect(to, self.limit)?;
        Ok(socket.into())
    }

    /// Listens at `at`; port 0 takes a free one.
    ///
    /// # Errors
    /// As [`Socket::bind`] and [`Socket::listen`].
    pub fn listen(&self, at: SocketAddr) -> io::Result<Listener> {
        let socket = self.socket(at.is_ipv6())?;
        let one = 1i32.to_ne_bytes();
        socket.set_option(libc::SOL_SOCKET, libc::SO_REUSEADDR, &one)?;
        socket.bind(at)?;
        socket.listen(BACKLOG)?;
        Ok(Listener { socket })
    }
}

/// A listening socket.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
}

impl Listener {
    /// Listens at `at`; port 0 takes a free one.
    ///
    /// # Errors
    /// As [`Socket::bind`] and [`Socket::listen`].
    pub fn bind(at: SocketAddr) -> io::Result<Self> {
        Builder::default().listen(at)
    }

    /// The next connection, and where it comes from.
    ///
    /// # Errors
    /// As [`Socket::accept`].
    pub fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let socket = self.socket.accept()?;
        let from = socket.peer_addr()?;
        Ok((socket.into(), from))
    }

    /// The address.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The socket, for options and for [`poll`](crate::rsocket::poll()).
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// A connected stream. Reading and writing work on a shared reference, too.
#[derive(Debug)]
pub struct Stream {
    socket: Arc<Socket>,
}

impl From<Socket> for Stream {
    /// Of a connected socket; reading and writing any other fails.
    fn from(socket: Socket) -> Self {
        Self { socket: Arc::new(socket) }
    }
}

impl From<Arc<Socket>> for Stream {
    /// As of the socket; it ends with the last of its owners.
    fn from(socket: Arc<Socket>) -> Self {
        Self { socket }
    }
}

impl From<Stream> for Arc<Socket> {
    fn from(stream: Stream) -> Self {
        stream.socket
    }
}

impl Stream {
    /// The address of this end.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address of the other end.
    ///
    /// # Errors
    /// As `getpeername(2)`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Reads and leaves what is read for the next call.
    ///
    /// # Errors
    /// As [`Socket::recv`].
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.socket.recv(&mut [IoSliceMut::new(buf)], RecvFlags::PEEK)
    }

    /// Ends one direction, or both.
    ///
    /// # Errors
    /// As [`Socket::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// Opens `len` bytes of fresh zeroed memory to the peer's [`Self::put`] under `offset`, for as
    /// long as the answer lives. The peer sees what was opened before it sees what is sent later.
    ///
    /// # Errors
    /// `ENOMEM` if the peer has no entry left for it: it offers as many as its
    /// [`Builder::iomap_slots`] says.
    pub fn open(&self, len: usize, offset: u64) -> io::Result<Opened> {
        let established = self.socket.established().ok_or(io::ErrorKind::NotConnected)?;
        let region = established.open_region(len, offset)?;
        Ok(Opened { socket: Arc::clone(&self.socket), region })
    }

    /// Writes `bytes` into the memory that the peer opened under `offset`, without its help. It is
    /// not told, but what is sent afterwards arrives afterwards. Fewer bytes than given are written
    /// where the open memory ends.
    ///
    /// # Errors
    /// `EFAULT` if nothing is open there; otherwise as [`Socket::send`].
    pub fn put(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.socket.put(bytes, offset, false)
    }

    /// The socket, for options and for [`poll`](crate::rsocket::poll()).
    #[must_use]
    pub fn socket(&self) -> &Socket {
        &self.socket
    }
}

/// Memory that the peer may write at any time. Closed when dropped.
#[derive(Debug)]
pub struct Opened {
    socket: Arc<Socket>,
    region: Arc<dyn MemoryRegion>,
}

impl Opened {
    /// Its length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.region.len()
    }

    /// Whether it is empty; never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.region.is_empty()
    }

    /// Copies out what is there now. Bytes that the peer is writing at this moment arrive torn.
    ///
    /// # Panics
    /// If `at..at + dst.len()` is not inside.
    pub fn read_at(&self, at: usize, dst: &mut [u8]) {
        self.region.copy_out(at, dst);
    }

    /// Copies `src` in.
    ///
    /// # Panics
    /// If `at..at + src.len()` is not inside.
    pub fn write_at(&self, at: usize, src: &[u8]) {
        self.region.copy_in(at, src);
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if let Some(established) = self.socket.established() {
            established.close_region(&*self.region);
        }
    }
}

impl Read for &Stream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.read_vectored(&mut [IoSliceMut::new(buf)])
    }

    fn read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.socket.recv(bufs, RecvFlags::empty())
    }
}

impl Write for &Stream {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(buf)])
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.send(bufs, false)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
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
