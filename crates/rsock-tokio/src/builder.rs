//! What is decided before a stream or a listener exists.

use crate::listener::Listener;
use crate::stream::Stream;
use rsock_core::accelerate::Side;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream, ToSocketAddrs};

/// Settings of streams.
///
/// # Examples
///
/// ```
/// use rsock_tokio::Builder;
/// use std::time::Duration;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// // A machine with better things to do than to wait actively.
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

/// What [`Builder::spin`] is unless it is called.
pub(crate) fn longest_spin() -> Duration {
    rsock_core::engine::longest_spin(Duration::from_micros(100))
}

impl Default for Builder {
    fn default() -> Self {
        Self { spin: longest_spin(), nodelay: None, iomap_slots: 0 }
    }
}

impl Builder {
    /// The default settings.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Longest time that waiting streams are looked after actively before they sleep; how much of
    /// it is used depends on whether it has helped. Default: 100 microseconds, or `RSOCK_SPIN_US`.
    /// With zero a wait sleeps at once.
    #[must_use]
    pub fn spin(mut self, longest: Duration) -> Self {
        self.spin = longest;
        self
    }

    /// `TCP_NODELAY` of every new stream; by default it is left alone. The ring never delays.
    #[must_use]
    pub fn nodelay(mut self, on: bool) -> Self {
        self.nodelay = Some(on);
        self
    }

    /// Buffers that the peer may [open](Stream::open) to us at once; 0 by default, at most 32512.
    /// Each costs 24 bytes per stream.
    #[must_use]
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.iomap_slots = n;
        self
    }

    /// As [`Stream::connect`].
    ///
    /// # Errors
    /// As [`Stream::connect`].
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
    /// As `setsockopt(2)`, if an option was asked for.
    pub fn wrap(&self, socket: TcpStream) -> io::Result<Stream> {
        self.stream(socket, None)
    }

    /// `end`: which end of the connection it is, for a peer on another host.
    fn stream(&self, socket: TcpStream, end: Option<Side>) -> io::Result<Stream> {
        if let Some(on) = self.nodelay {
            socket.set_nodelay(on)?;
        }
        Ok(Stream::new(socket, end, self.spin, self.iomap_slots))
    }

    /// As [`Listener::poll_accept`]'s last step.
    pub(crate) fn accepted(
        &self,
        (socket, peer): (TcpStream, SocketAddr),
    ) -> io::Result<(Stream, SocketAddr)> {
        Ok((self.stream(socket, Some(Side::Accepted))?, peer))
    }
}
