//! Settings of streams and listeners.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

/// Settings for streams and listeners that begin as TCP.
///
/// Settings of a listener count for the streams that it accepts.
///
/// ```
/// use rsock::{Acceleration, Builder, FallbackReason};
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// let settings = Builder::new().read_timeout(Duration::from_millis(500)).nodelay(true);
/// let listener = settings.bind("127.0.0.1:0")?;
/// let plain = settings.acceleration(Acceleration::Off).connect(listener.local_addr()?)?;
/// assert_eq!(plain.fallback_reason(), Some(FallbackReason::Configured));
/// let (accepted, _) = listener.accept()?;
/// assert_eq!(accepted.read_timeout()?, Some(Duration::from_millis(500)));
/// assert!(accepted.nodelay()?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "settings do nothing by themselves"]
pub struct Builder {
    pub(crate) acceleration: Acceleration,
    nodelay: Option<bool>,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
}

/// Whether a connection may leave TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Acceleration {
    /// It leaves TCP when the peer uses rsock too.
    #[default]
    Automatic,
    /// It stays on TCP.
    Off,
}

impl Builder {
    /// The default settings: those of [`Stream::connect`](crate::Stream::connect) and
    /// [`Listener::bind`](crate::Listener::bind).
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether connections may leave TCP.
    pub fn acceleration(mut self, acceleration: Acceleration) -> Self {
        self.acceleration = acceleration;
        self
    }

    /// Sets `TCP_NODELAY` of new streams, as [`Stream::set_nodelay`](crate::Stream::set_nodelay).
    pub fn nodelay(mut self, on: bool) -> Self {
        self.nodelay = Some(on);
        self
    }

    /// Sets the time limit of reads, as
    /// [`Stream::set_read_timeout`](crate::Stream::set_read_timeout).
    pub fn read_timeout(mut self, limit: Duration) -> Self {
        self.read_timeout = Some(limit);
        self
    }

    /// Sets the time limit of writes, as
    /// [`Stream::set_write_timeout`](crate::Stream::set_write_timeout).
    pub fn write_timeout(mut self, limit: Duration) -> Self {
        self.write_timeout = Some(limit);
        self
    }

    /// Limits the time that a connect to each of the addresses may take; without it the kernel's
    /// limit counts, which is about two minutes (`tcp_syn_retries` in tcp(7)).
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = Some(limit);
        self
    }

    /// Sets the options of a new stream.
    pub(crate) fn set_options(&self, socket: &TcpStream) -> io::Result<()> {
        if let Some(on) = self.nodelay {
            socket.set_nodelay(on)?;
        }
        if self.read_timeout.is_some() {
            socket.set_read_timeout(self.read_timeout)?;
        }
        if self.write_timeout.is_some() {
            socket.set_write_timeout(self.write_timeout)?;
        }
        Ok(())
    }
}

/// What `f` answers for the first address that it does not fail for; otherwise its last error.
pub(crate) fn first<T>(
    addr: impl ToSocketAddrs,
    mut f: impl FnMut(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    let mut last = io::Error::new(io::ErrorKind::InvalidInput, "there is no address to try");
    for addr in addr.to_socket_addrs()? {
        match f(addr) {
            Ok(value) => return Ok(value),
            Err(e) => last = e,
        }
    }
    Err(last)
}
