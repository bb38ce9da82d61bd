//! The settings of accelerated streams, chosen before a stream or a listener exists.

use crate::listener::Listener;
use crate::stream::Stream;
use rsock_core::accelerate::Side;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};

/// Settings of accelerated streams; those of rsockets streams are
/// [`rsockets::Builder`](crate::rsockets::Builder).
///
/// # Examples
///
/// ```
/// use rsock_tokio::Builder;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// // The CPUs of this machine have other work than polling.
/// let settings = Builder::new().spin(Duration::ZERO).nodelay(true);
/// let listener = settings.bind("127.0.0.1:0").await?;
/// let stream = settings.connect(listener.local_addr()?).await?;
/// assert!(stream.nodelay()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Builder {
    spin: Duration,
    nodelay: Option<bool>,
    iomap_slots: u16,
}

/// The value of [`Builder::spin`] by default.
pub(crate) fn default_spin() -> Duration {
    rsock_core::engine::longest_spin(Duration::from_micros(100))
}

impl Default for Builder {
    fn default() -> Self {
        Self { spin: default_spin(), nodelay: None, iomap_slots: 0 }
    }
}

impl Builder {
    /// The default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The longest time that one wait polls before it sleeps; how much of it is used depends on
    /// whether polling has helped lately. Default: 100 microseconds, or `RSOCK_SPIN_US`. With zero
    /// a wait sleeps at once.
    #[must_use]
    pub fn spin(mut self, longest: Duration) -> Self {
        self.spin = longest;
        self
    }

    /// Sets `TCP_NODELAY` of every new stream to `on`; by default it is left as the kernel set it.
    /// Only TCP ever delays.
    #[must_use]
    pub fn nodelay(mut self, on: bool) -> Self {
        self.nodelay = Some(on);
        self
    }

    /// Regions that the peer may [expose](Stream::expose) at once; 0 by default, at most 32512.
    /// Each costs 24 bytes per stream.
    #[must_use]
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.iomap_slots = n;
        self
    }

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

    /// As [`Listener::bind`].
    ///
    /// # Errors
    /// As [`Listener::bind`].
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    pub async fn bind(&self, addr: impl ToSocketAddrs) -> io::Result<Listener> {
        Ok(Listener::new(TcpListener::bind(addr).await?, *self))
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
