//! A datagram socket, as `std::net::UdpSocket`.

use crate::builder::first;
use crate::rsockets::Source;
use crate::{Received, SocketCounters};
use rsock_core::datagram::{self, MessageFlags};
use rustix::net::sockopt::{self, Timeout};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// A datagram socket with the methods of [`UdpSocket`](std::net::UdpSocket), whose peers are its
/// own kind, datagram sockets of `rsock_tokio`, and programs over `rsocket(3)` with `SOCK_DGRAM`.
///
/// Datagrams travel by UDP, with a header of 16 or 28 bytes, until both ends know of each other.
/// Then they go through shared memory to a peer on this host, and over an RDMA device to a peer on
/// another host if a device reaches it. As with UDP they may be lost and may overtake each other. A
/// receiver without room loses datagrams; [`Self::counters`] of the sender counts those in shared
/// memory.
///
/// Clones share the socket.
///
/// ```
/// use rsock::Datagram;
///
/// # fn main() -> std::io::Result<()> {
/// let server = Datagram::bind("127.0.0.1:0")?;
/// let client = Datagram::bind("127.0.0.1:0")?;
/// client.send_to(b"ping", server.local_addr()?)?;
///
/// let mut buf = [0; 64];
/// let (len, from) = server.recv_from(&mut buf)?;
/// assert_eq!((&buf[..len], from), (&b"ping"[..], client.local_addr()?));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Datagram {
    socket: Arc<datagram::Datagram>,
}

impl Datagram {
    /// Binds a socket to the first of the addresses that can be bound; port 0 takes a free one.
    ///
    /// # Errors
    /// As `bind(2)`: `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`.
    pub fn bind(addr: impl ToSocketAddrs) -> io::Result<Self> {
        first(addr, |addr| datagram::Datagram::bound(addr).map(Self::from))
    }

    /// Sets the peer of [`Self::send`], from which alone datagrams are received from now on: the
    /// first of the addresses that can be connected to.
    ///
    /// # Errors
    /// As `connect(2)` of a UDP socket: `EAFNOSUPPORT`, `ENETUNREACH`.
    pub fn connect(&self, addr: impl ToSocketAddrs) -> io::Result<()> {
        first(addr, |addr| self.socket.connect(addr))
    }

    /// Sends one datagram to the first of the addresses. Returns its length.
    ///
    /// # Errors
    /// As `sendto(2)` of a UDP socket: `EMSGSIZE` for more than UDP carries, less the header;
    /// `EAGAIN`, `EINTR`, `ECONNREFUSED`.
    pub fn send_to(&self, buf: &[u8], addr: impl ToSocketAddrs) -> io::Result<usize> {
        let to = addr.to_socket_addrs()?.next();
        let to = to.ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "there is no address to send to")
        })?;
        self.socket.send_to(&[IoSlice::new(buf)], Some(to), MessageFlags::empty())
    }

    /// Sends one datagram to the peer of a [connected](Self::connect) socket. Returns its length.
    ///
    /// # Errors
    /// As [`Self::send_to`]; `EDESTADDRREQ` without a peer.
    pub fn send(&self, buf: &[u8]) -> io::Result<usize> {
        self.socket.send_to(&[IoSlice::new(buf)], None, MessageFlags::empty())
    }

    /// Sends each of `batch` as one datagram to the peer of a connected socket, and wakes the
    /// receiver once, as `sendmmsg(2)`. Returns how many were sent. An error after the first is
    /// left for the next call.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn send_batch(&self, batch: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.send_batch(batch, None)
    }

    /// Receives one datagram, and says its length and source. A longer datagram than `buf` is cut;
    /// [`Self::recv_vectored`] says by how much.
    ///
    /// # Errors
    /// As `recvfrom(2)` of a UDP socket: `EAGAIN` (non-blocking, or the read timeout is over),
    /// `EINTR`; `ECONNREFUSED` when a peer has answered an earlier send with a refusal.
    pub fn recv_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.recv_vectored(&mut [IoSliceMut::new(buf)])?;
        Ok((received.len, received.from))
    }

    /// As [`Self::recv_from`], without the source.
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    pub fn recv(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.recv_from(buf)?.0)
    }

    /// As [`Self::recv_from`], into several buffers, with the full length of a cut datagram.
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    pub fn recv_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<Received> {
        self.socket.recv_from(bufs, MessageFlags::empty())
    }

    /// Receives as many datagrams as there are, one into each of `bufs`, and waits for the first,
    /// as `recvmmsg(2)` with `MSG_WAITFORONE`. Returns how many were received; `out` says of each
    /// its length and source.
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    pub fn recv_batch(
        &self,
        bufs: &mut [IoSliceMut<'_>],
        out: &mut [Option<Received>],
    ) -> io::Result<usize> {
        self.socket.recv_batch(bufs, out)
    }

    /// As [`Self::recv_from`], and leaves the datagram for the next call.
    ///
    /// # Errors
    /// As [`Self::recv_from`].
    pub fn peek_from(&self, buf: &mut [u8]) -> io::Result<(usize, SocketAddr)> {
        let received = self.socket.recv_from(&mut [IoSliceMut::new(buf)], MessageFlags::PEEK)?;
        Ok((received.len, received.from))
    }

    /// As [`Self::recv`], and leaves the datagram for the next call.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        Ok(self.peek_from(buf)?.0)
    }

    /// The address of this end.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// The address of the peer of a connected socket.
    ///
    /// # Errors
    /// As `getpeername(2)`: `ENOTCONN`.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.socket.peer_addr()
    }

    /// Another handle on the same socket. It costs no descriptor.
    ///
    /// # Errors
    /// None; the signature is that of [`UdpSocket::try_clone`](std::net::UdpSocket::try_clone).
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(self.clone())
    }

    /// Sets the non-blocking mode, in which calls return `WouldBlock` instead of waiting.
    pub fn set_nonblocking(&self, on: bool) {
        self.socket.set_nonblocking(on);
    }

    /// `SO_RCVTIMEO`: how long a receive waits.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn read_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_timeout(self, Timeout::Recv)?)
    }

    /// Sets `SO_RCVTIMEO`; `None` waits without end. When the time is over, a receive returns
    /// `WouldBlock`.
    ///
    /// # Errors
    /// As `setsockopt(2)`; `InvalidInput` for zero.
    pub fn set_read_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(self, Timeout::Recv, limit)?)
    }

    /// `SO_SNDTIMEO`: how long a send waits.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn write_timeout(&self) -> io::Result<Option<Duration>> {
        Ok(sockopt::socket_timeout(self, Timeout::Send)?)
    }

    /// Sets `SO_SNDTIMEO`; `None` waits without end. When the time is over, a send returns
    /// `WouldBlock`.
    ///
    /// # Errors
    /// As `setsockopt(2)`; `InvalidInput` for zero.
    pub fn set_write_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        Ok(sockopt::set_socket_timeout(self, Timeout::Send, limit)?)
    }

    /// `SO_RCVBUF` in bytes, as the kernel counts them (see socket(7)). It is also the room for
    /// each process on this host that sends here past UDP: rounded up to a power of two, from 64
    /// KiB to 4 MiB.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn receive_buffer_size(&self) -> io::Result<usize> {
        Ok(sockopt::socket_recv_buffer_size(self)?)
    }

    /// Sets `SO_RCVBUF`, in bytes, which the kernel doubles. Processes that send here already keep
    /// the room that they have.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_receive_buffer_size(&self, bytes: usize) -> io::Result<()> {
        Ok(sockopt::set_socket_recv_buffer_size(self, bytes)?)
    }

    /// The pending error of the UDP socket (`SO_ERROR`), which the call clears.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        Ok(sockopt::socket_error(self)?.err().map(io::Error::from))
    }

    /// Bytes of the longest datagram that goes past UDP to `to`; `None` as long as datagrams go
    /// there by UDP. A datagram or two in both directions change that.
    #[must_use]
    pub fn max_past_udp(&self, to: SocketAddr) -> Option<usize> {
        self.socket.max_past_udp(to)
    }

    /// What was sent, received and lost so far.
    #[must_use]
    pub fn counters(&self) -> SocketCounters {
        self.socket.counters()
    }

    /// Joins a multicast group on the interface with this address; the unspecified address leaves
    /// the choice to the kernel (`IP_ADD_MEMBERSHIP` in ip(7)).
    ///
    /// # Errors
    /// As `setsockopt(2)`: `ENODEV`, `EADDRINUSE`.
    pub fn join_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        Ok(sockopt::set_ip_add_membership(self, group, interface)?)
    }

    /// Leaves a multicast group (`IP_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    /// As `setsockopt(2)`: `EADDRNOTAVAIL`.
    pub fn leave_multicast_v4(&self, group: &Ipv4Addr, interface: &Ipv4Addr) -> io::Result<()> {
        Ok(sockopt::set_ip_drop_membership(self, group, interface)?)
    }

    /// Joins a multicast group on the interface with this index (`IPV6_ADD_MEMBERSHIP` in ipv6(7)).
    ///
    /// # Errors
    /// As `setsockopt(2)`: `ENODEV`, `EADDRINUSE`.
    pub fn join_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        Ok(sockopt::set_ipv6_add_membership(self, group, interface)?)
    }

    /// Leaves a multicast group (`IPV6_DROP_MEMBERSHIP`).
    ///
    /// # Errors
    /// As `setsockopt(2)`: `EADDRNOTAVAIL`.
    pub fn leave_multicast_v6(&self, group: &Ipv6Addr, interface: u32) -> io::Result<()> {
        Ok(sockopt::set_ipv6_drop_membership(self, group, interface)?)
    }
}

/// Options of the UDP socket.
impl Datagram {
    /// `IP_TTL`: the number of hops that packets may take.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self)?)
    }

    /// Sets what [`Self::ttl`] returns.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_ttl(&self, value: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self, value)?)
    }

    /// `SO_BROADCAST`: whether datagrams may go to a broadcast address.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn broadcast(&self) -> io::Result<bool> {
        Ok(sockopt::socket_broadcast(self)?)
    }

    /// Sets what [`Self::broadcast`] returns.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_broadcast(&self, value: bool) -> io::Result<()> {
        Ok(sockopt::set_socket_broadcast(self, value)?)
    }

    /// `IP_MULTICAST_LOOP`: whether multicast datagrams reach sockets of this host.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn multicast_loop_v4(&self) -> io::Result<bool> {
        Ok(sockopt::ip_multicast_loop(self)?)
    }

    /// Sets what [`Self::multicast_loop_v4`] returns.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_multicast_loop_v4(&self, value: bool) -> io::Result<()> {
        Ok(sockopt::set_ip_multicast_loop(self, value)?)
    }

    /// `IP_MULTICAST_TTL`: the number of hops that multicast datagrams may take.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn multicast_ttl_v4(&self) -> io::Result<u32> {
        Ok(sockopt::ip_multicast_ttl(self)?)
    }

    /// Sets what [`Self::multicast_ttl_v4`] returns.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_multicast_ttl_v4(&self, value: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_multicast_ttl(self, value)?)
    }

    /// `IPV6_MULTICAST_LOOP`: whether multicast datagrams reach sockets of this host.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn multicast_loop_v6(&self) -> io::Result<bool> {
        Ok(sockopt::ipv6_multicast_loop(self)?)
    }

    /// Sets what [`Self::multicast_loop_v6`] returns.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_multicast_loop_v6(&self, value: bool) -> io::Result<()> {
        Ok(sockopt::set_ipv6_multicast_loop(self, value)?)
    }
}

impl From<datagram::Datagram> for Datagram {
    fn from(socket: datagram::Datagram) -> Self {
        Self { socket: Arc::new(socket) }
    }
}

#[cfg(feature = "tokio")]
impl Datagram {
    /// The inner socket, if this is its only handle.
    pub(crate) fn into_inner(self) -> Result<datagram::Datagram, Self> {
        Arc::try_unwrap(self.socket).map_err(|socket| Self { socket })
    }
}

impl<'a> From<&'a Datagram> for Source<'a> {
    fn from(socket: &'a Datagram) -> Self {
        Self::Datagram(&socket.socket)
    }
}

impl AsFd for Datagram {
    /// The UDP socket. It does not show whether datagrams have come past UDP: to wait for those,
    /// use [`poll`](crate::rsockets::poll()).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Datagram {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
