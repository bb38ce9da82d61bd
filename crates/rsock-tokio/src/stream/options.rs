//! Addresses and options of the socket.

use super::Stream;
use crate::transport::Transport;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

impl Stream {
    /// `IP_TTL` of what goes by TCP, in hops.
    ///
    /// # Errors
    /// As `setsockopt(2)`: `EINVAL`.
    pub fn set_ttl(&self, hops: u32) -> io::Result<()> {
        self.transport.socket().set_ttl(hops)
    }

    /// `IP_TTL`, in hops.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn ttl(&self) -> io::Result<u32> {
        self.transport.socket().ttl()
    }
}

impl<T: Transport> Stream<T> {
    /// The address of this end.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.transport.local_addr()
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// As `getpeername(2)`: `ENOTCONN` once the connection has ended.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.transport.peer_addr()
    }

    /// Sets `TCP_NODELAY`. Only TCP ever delays.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        self.transport.set_nodelay(on)
    }

    /// Whether `TCP_NODELAY` is set.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn nodelay(&self) -> io::Result<bool> {
        self.transport.nodelay()
    }

    /// The pending error of the socket (`SO_ERROR`), which is cleared.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        self.transport.take_error()
    }

    /// `SO_LINGER`: how long closing waits, in whole seconds, for unsent bytes; zero resets the
    /// connection, `None` does not wait. The wait blocks the thread that drops the stream; with
    /// rsockets, a thread of the runtime's pool for blocking work.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        self.transport.set_linger(linger)
    }

    /// `SO_LINGER`.
    ///
    /// # Errors
    /// As `getsockopt(2)`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        self.transport.linger()
    }
}
