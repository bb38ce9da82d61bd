//! Datagram sockets, as `tokio::net::UdpSocket`.
//!
//! Above `link`, beside `stream`; what tasks wait for is in `sources.rs`.

mod batches;
mod sources;

use crate::builder::longest_spin;
use crate::link::Link;
use crate::ring::Ring;
use crate::waiting::{Side, Waits, again, readiness, retry};
use crate::watched;
use rsock_core::datagram::{self, MessageFlags, SocketCounters};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, ReadBuf, Ready};
use tokio::net::{ToSocketAddrs, lookup_host};

/// A datagram socket of the rsockets protocol: its peers are others of its kind, blocking sockets of
/// `rsock_core::datagram`, and programs over `rsocket(3)` with `SOCK_DGRAM`.
///
/// Datagrams go by UDP until both ends know of each other, and from then on through shared memory
/// where the peer is on this host, and over an RDMA device where one leads to it (`RSOCK_DEVICE` leaves
/// one of these, or none). They may be lost, and may overtake each other, as with UDP. A full receiver
/// loses what comes; the sender [counts](Self::counters) it, if it is on the same host.
///
/// The methods take a shared reference, so that tasks may share a socket in an `Arc`. As with
/// Tokio's own, one task at a time is woken for receiving and one for sending by the `poll` methods;
/// any number may wait in the `async` methods.
///
/// # Examples
///
/// ```
/// use rsock_tokio::Datagram;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// let server = Datagram::bind("127.0.0.1:0").await?;
/// let client = Datagram::bind("127.0.0.1:0").await?;
/// client.connect(server.local_addr()?).await?;
/// client.send(b"ping").await?;
///
/// let mut buf = [0; 64];
/// let (n, from) = server.recv_from(&mut buf).await?;
/// assert_eq!((&buf[..n], from), (&b"ping"[..], client.local_addr()?));
/// server.send_to(b"pong", from).await?;
/// assert_eq!(client.recv(&mut buf).await?, 4);
/// # Ok(())
/// # }
/// ```
pub struct Datagram {
    socket: Arc<datagram::Datagram>,
    /// Another descriptor of its UDP socket.
    udp: AsyncFd<OwnedFd>,
    link: Arc<Link>,
}

impl Datagram {
    /// Binds a socket to the first address that can be bound; port 0 takes a free one.
    ///
    /// # Errors
    /// As `bind(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`...
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        let mut last = io::ErrorKind::InvalidInput.into();
        for addr in lookup_host(addr).await? {
            match datagram::Datagram::bound(addr) {
                Ok(socket) => return Self::from_blocking(socket),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Takes over a blocking socket, whatever has passed through it.
    ///
    /// # Errors
    /// When it cannot be watched by the runtime; `EMFILE`, `ENFILE`.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    pub fn from_blocking(socket: datagram::Datagram) -> io::Result<Self> {
        socket.set_nonblocking(true);
        let both = Interest::READABLE | Interest::WRITABLE;
        let udp = watched::watch_for(socket.watchable_fd()?, both)?;
        let socket = Arc::new(socket);
        let link = Link::new(Ring::Datagrams(Arc::clone(&socket)), longest_spin());
        Ok(Self { socket, udp, link })
    }

    /// From here on datagrams come from the first of the addresses alone that can be connected to,
    /// and [`Self::send`] goes there.
    ///
    /// # Errors
    /// As `connect(2)` of a UDP socket.
    ///
    /// # Cancel safety
    /// A dropped future has connected the socket or has not.
    pub async fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        let mut last = io::ErrorKind::InvalidInput.into();
        for addr in lookup_host(addr).await? {
            match self.socket.connect(addr) {
                Ok(()) => return Ok(()),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    /// Address of this end.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Address of the peer that it is connected to.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// What was sent and received, and lost.
    #[must_use]
    pub fn counters(&self) -> SocketCounters {
        self.socket.counters()
    }

    /// Sends a datagram to the peer that the socket is connected to.
    ///
    /// # Errors
    /// `EDESTADDRREQ` if it is not connected; `EMSGSIZE`, `ECONNREFUSED`, and others as `send(2)`.
    ///
    /// # Cancel safety
    /// Cancel safe: a future that is dropped before it is ready has sent nothing.
    pub async fn send(&self, buf: &[u8]) -> io::Result<usize> {
        retry(self, Side::Write, || self.try_send(buf)).await
    }

    /// Sends a datagram to the first of the addresses.
    ///
    /// # Errors
    /// As [`Self::send`].
    ///
    /// # Cancel safety
    /// As [`Self::send`].
    pub async fn send_to(&self, buf: &[u8], to: impl ToSocketAddrs) -> io::Result<usize> {
        let to = lookup_host(to).await?.next().ok_or(io::ErrorKind::InvalidInput)?;
        retry(self, Side::Write, || self.try_send_to(buf, to)).await
    }

    /// Receives a datagram. What `buf` has no room for is lost.
    ///
    /// # Errors
    /// What UDP reports: `ECONNREFUSED` where the peer has closed its socket.
    ///
    /// # Cancel safety
    /// Cancel safe: a future that is dropped before it is ready has taken nothing.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        retry(self, Side::Read, || self.try_recv(buf)).await
    }

    /// As [`Self::recv`]; also who sent it.
    ///
    /// # Errors
    /// As [`Self::recv`].
    ///
    /// # Cancel safety
    /// As [`Self::recv`].
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        retry(self, Side::Read, || self.try_recv_from(buf)).await
    }

    /// As [`Self::recv`], and leaves the datagram for the next one to receive.
    ///
    /// # Errors
    /// As [`Self::recv`].
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buf).await?.0)
    }

    /// As [`Self::peek`]; also who sent it.
    ///
    /// # Errors
    /// As [`Self::recv`].
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        retry(self, Side::Read, || self.take(buf, MessageFlags::PEEK)).await
    }

    /// As [`Self::send`], or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise as [`Self::send`].
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        self.attempt(|| self.socket.try_send_to(buf, None))
    }

    /// As [`Self::send_to`], or `WouldBlock`.
    ///
    /// # Errors
    /// As [`Self::try_send`].
    pub fn try_send_to(&self, buf: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.attempt(|| self.socket.try_send_to(buf, Some(to)))
    }

    /// As [`Self::recv`], or `WouldBlock`.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come; otherwise as [`Self::recv`].
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.take(buf, MessageFlags::empty())?.0)
    }

    /// As [`Self::recv_from`], or `WouldBlock`.
    ///
    /// # Errors
    /// As [`Self::try_recv`].
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.take(buf, MessageFlags::empty())
    }

    fn take(&self, buf: &mut [u8], flags: MessageFlags) -> io::Result<(usize, SocketAddr)> {
        let received =
            self.attempt(|| self.socket.try_recv_from(&mut [IoSliceMut::new(&mut *buf)], flags))?;
        Ok((received.len, received.from))
    }

    fn attempt<R>(&self, io: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        let done = again(io);
        self.link.note_reach();
        done
    }

    /// As [`Self::send`]. Shares its place for a waker with the other sending `poll` methods.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Side::Write, Side::Write.task(), || self.try_send(buf))
    }

    /// As [`Self::send_to`] one address. Shares its place for a waker with the other sending `poll`
    /// methods.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        buf: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Side::Write, Side::Write.task(), || self.try_send_to(buf, to))
    }

    /// As [`Self::recv`]. Shares its place for a waker with the other receiving `poll` methods.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(drop)
    }

    /// As [`Self::recv_from`]. Shares its place for a waker with the other receiving `poll` methods.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_take(cx, buf, MessageFlags::empty())
    }

    /// As [`Self::peek_from`]. Shares its place for a waker with the other receiving `poll` methods.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn poll_peek_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_take(cx, buf, MessageFlags::PEEK)
    }

    fn poll_take(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        flags: MessageFlags,
    ) -> Poll<io::Result<SocketAddr>> {
        let room = buf.initialize_unfilled();
        let taken =
            self.poll_io(cx, Side::Read, Side::Read.task(), || self.take(&mut *room, flags));
        let (n, from) = ready!(taken)?;
        buf.advance(n);
        Poll::Ready(Ok(from))
    }

    /// Waits until a receive would return something. Another receiver may be faster, so a following
    /// [`Self::try_recv`] may find nothing.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn readable(&self) -> io::Result<()> {
        readiness(self, Interest::READABLE).await.map(drop)
    }

    /// Waits until a send would take a datagram, or fail at once.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is sent.
    pub async fn writable(&self) -> io::Result<()> {
        readiness(self, Interest::WRITABLE).await.map(drop)
    }

    /// Waits for either; says which.
    ///
    /// # Errors
    /// When the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is transferred.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        readiness(self, interest).await
    }

    /// As [`Self::readable`], for the task that receives by the `poll` methods.
    ///
    /// # Errors
    /// As [`Self::readable`].
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Side::Read)
    }

    /// As [`Self::writable`], for the task that sends by the `poll` methods.
    ///
    /// # Errors
    /// As [`Self::writable`].
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Side::Write)
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        self.link.close();
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram").field("socket", &self.socket).finish_non_exhaustive()
    }
}
