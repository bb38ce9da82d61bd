//! The datagram socket, with the methods of `tokio::net::UdpSocket`.
//!
//! Above `waiting`, beside `stream`; what tasks wait for is in `sources`.

mod batches;
mod sources;

use crate::async_fd;
use crate::builder::default_spin;
use crate::source::Source;
use crate::waiter::Waiter;
use crate::waiting::{Direction, Waitable, readiness, retry, retry_interrupted};
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

/// A datagram socket of the rsockets protocol. Its peers are others of its kind, blocking sockets
/// of `rsock_core::datagram`, and programs over `rsocket(3)` with `SOCK_DGRAM`.
///
/// Datagrams go by UDP until both ends have found each other, and from then on through shared
/// memory if the peer is on this host, or over an RDMA device if one reaches it (`RSOCK_DEVICE`
/// leaves one of these, or none). They may be lost and reordered, as with UDP. A full receiver
/// drops what comes; a sender on the same host [counts](Self::counters) what was dropped.
///
/// The methods take a shared reference, so that tasks may share a socket in an `Arc`. As with
/// Tokio's own socket, the `poll` methods wake one task for receiving and one for sending; any
/// number of tasks may wait in the `async` methods.
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
    waiter: Arc<Waiter>,
}

impl Datagram {
    /// Binds a socket to the first address that can be bound; port 0 takes a free one.
    ///
    /// # Errors
    /// As `bind(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`... of the last address tried.
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
    /// `EMFILE`, `ENFILE`; as `epoll_ctl(2)` when the runtime registers the socket: `ENOMEM`,
    /// `ENOSPC`.
    ///
    /// # Panics
    /// Outside a runtime with I/O enabled.
    pub fn from_blocking(socket: datagram::Datagram) -> io::Result<Self> {
        socket.set_nonblocking(true);
        let both = Interest::READABLE | Interest::WRITABLE;
        let udp = async_fd::register_for(socket.watchable_fd()?, both)?;
        let socket = Arc::new(socket);
        let waiter = Waiter::new(Source::Datagram(Arc::clone(&socket)), default_spin());
        Ok(Self { socket, udp, waiter })
    }

    /// Connects the socket to the first of the addresses that it can be connected to: it receives
    /// datagrams from there alone, and [`Self::send`] sends there.
    ///
    /// # Errors
    /// As `connect(2)` of a UDP socket: `ENETUNREACH`, `EACCES`... of the last address tried.
    ///
    /// # Cancel safety
    /// A dropped future may or may not have connected the socket.
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

    /// The address of this end.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address of the peer that the socket is connected to.
    ///
    /// # Errors
    /// `ENOTCONN` if it is not connected.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// How many datagrams were sent, received and lost, by route.
    #[must_use]
    pub fn counters(&self) -> SocketCounters {
        self.socket.counters()
    }

    /// Sends a datagram to the peer that the socket is connected to.
    ///
    /// # Errors
    /// `EDESTADDRREQ` if it is not connected; otherwise as `send(2)`: `EMSGSIZE`, `ECONNREFUSED`...
    ///
    /// # Cancel safety
    /// Cancel safe: a future that is dropped before it is ready has sent nothing.
    pub async fn send(&self, buf: &[u8]) -> io::Result<usize> {
        retry(self, Direction::Write, || self.try_send(buf)).await
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
        retry(self, Direction::Write, || self.try_send_to(buf, to)).await
    }

    /// Receives a datagram, and returns its length. What `buf` has no room for is lost.
    ///
    /// # Errors
    /// What UDP reports: `ECONNREFUSED` if the peer has closed its socket.
    ///
    /// # Cancel safety
    /// Cancel safe: a future that is dropped before it is ready has taken nothing.
    pub async fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        retry(self, Direction::Read, || self.try_recv(buf)).await
    }

    /// As [`Self::recv`]; returns the sender's address, too.
    ///
    /// # Errors
    /// As [`Self::recv`].
    ///
    /// # Cancel safety
    /// As [`Self::recv`].
    pub async fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        retry(self, Direction::Read, || self.try_recv_from(buf)).await
    }

    /// As [`Self::recv`], and leaves the datagram for the next receive.
    ///
    /// # Errors
    /// As [`Self::recv`].
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buf).await?.0)
    }

    /// As [`Self::peek`]; returns the sender's address, too.
    ///
    /// # Errors
    /// As [`Self::recv`].
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        retry(self, Direction::Read, || self.recv_now(buf, MessageFlags::PEEK)).await
    }

    /// As [`Self::send`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if there is no room; otherwise as [`Self::send`].
    pub fn try_send(&self, buf: &[u8]) -> io::Result<usize> {
        self.attempt(|| self.socket.try_send_to(buf, None))
    }

    /// As [`Self::send_to`], without waiting.
    ///
    /// # Errors
    /// As [`Self::try_send`].
    pub fn try_send_to(&self, buf: &[u8], to: SocketAddr) -> io::Result<usize> {
        self.attempt(|| self.socket.try_send_to(buf, Some(to)))
    }

    /// As [`Self::recv`], without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if nothing has come; otherwise as [`Self::recv`].
    pub fn try_recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_now(buf, MessageFlags::empty())?.0)
    }

    /// As [`Self::recv_from`], without waiting.
    ///
    /// # Errors
    /// As [`Self::try_recv`].
    pub fn try_recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        self.recv_now(buf, MessageFlags::empty())
    }

    fn recv_now(&self, buf: &mut [u8], flags: MessageFlags) -> io::Result<(usize, SocketAddr)> {
        let received =
            self.attempt(|| self.socket.try_recv_from(&mut [IoSliceMut::new(&mut *buf)], flags))?;
        Ok((received.len, received.from))
    }

    fn attempt<R>(&self, io: impl FnMut() -> io::Result<R>) -> io::Result<R> {
        let done = retry_interrupted(io);
        self.waiter.wake_for_new_queue();
        done
    }

    /// As [`Self::send`]. Of the tasks that call sending `poll` methods, the
    /// last is woken.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn poll_send(&self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Direction::Write, Direction::Write.task(), || self.try_send(buf))
    }

    /// As [`Self::send_to`] one address. Of the tasks that call sending `poll`
    /// methods, the last is woken.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn poll_send_to(
        &self,
        cx: &mut Context<'_>,
        buf: &[u8],
        to: SocketAddr,
    ) -> Poll<io::Result<usize>> {
        self.poll_io(cx, Direction::Write, Direction::Write.task(), || self.try_send_to(buf, to))
    }

    /// As [`Self::recv`]. Of the tasks that call receiving `poll` methods,
    /// the last is woken.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn poll_recv(&self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.poll_recv_from(cx, buf).map_ok(drop)
    }

    /// As [`Self::recv_from`]. Of the tasks that call receiving `poll` methods,
    /// the last is woken.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn poll_recv_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_recv_now(cx, buf, MessageFlags::empty())
    }

    /// As [`Self::peek_from`]. Of the tasks that call receiving `poll` methods,
    /// the last is woken.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn poll_peek_from(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<SocketAddr>> {
        self.poll_recv_now(cx, buf, MessageFlags::PEEK)
    }

    fn poll_recv_now(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        flags: MessageFlags,
    ) -> Poll<io::Result<SocketAddr>> {
        let room = buf.initialize_unfilled();
        let receive = || self.recv_now(&mut *room, flags);
        let received = self.poll_io(cx, Direction::Read, Direction::Read.task(), receive);
        let (n, from) = ready!(received)?;
        buf.advance(n);
        Poll::Ready(Ok(from))
    }

    /// Waits until a receive would return something. Another task may receive first, so that a
    /// [`Self::try_recv`] after this finds nothing.
    ///
    /// # Errors
    /// `Other` if the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is taken.
    pub async fn readable(&self) -> io::Result<()> {
        readiness(self, Interest::READABLE).await.map(drop)
    }

    /// Waits until a send would take a datagram or fail at once.
    ///
    /// # Errors
    /// `Other` if the runtime is shutting down.
    ///
    /// # Cancel safety
    /// Cancel safe: nothing is sent.
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
        readiness(self, interest).await
    }

    /// As [`Self::readable`]. Of the tasks that call receiving `poll` methods, the last is woken.
    ///
    /// # Errors
    /// As [`Self::readable`].
    pub fn poll_recv_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Direction::Read)
    }

    /// As [`Self::writable`]. Of the tasks that call sending `poll` methods, the last is woken.
    ///
    /// # Errors
    /// As [`Self::writable`].
    pub fn poll_send_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_ready(cx, Direction::Write)
    }
}

impl Drop for Datagram {
    fn drop(&mut self) {
        self.waiter.close();
    }
}

impl fmt::Debug for Datagram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Datagram").field("socket", &self.socket).finish_non_exhaustive()
    }
}
