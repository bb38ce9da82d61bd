//! Settings that are decided before a socket connects or listens.

use rsock_core::rsocket::SocketSettings;
use std::time::Duration;

/// Settings of rsockets streams and listeners, which are fixed once a socket connects.
///
/// Settings of a listener count for the streams that it accepts.
///
/// ```
/// use rsock::rsockets::Builder;
/// use std::time::Duration;
///
/// # fn main() -> std::io::Result<()> {
/// let settings = Builder::new().iomap_slots(4).connect_timeout(Duration::from_secs(1));
/// let listener = settings.bind("127.0.0.1:0")?;
/// let client = settings.connect(listener.local_addr()?)?;
/// let (server, _) = listener.accept()?;
/// let region = server.expose(4096, 0)?;
/// assert_eq!((region.len(), client.iomap_slots()), (4096, 4));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "settings do nothing by themselves"]
pub struct Builder {
    pub(super) socket: SocketSettings,
    pub(super) connect_timeout: Option<Duration>,
}

impl Builder {
    /// The default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// How many regions the peer may [expose](crate::rsockets::Stream::expose) to this end at once
    /// (`RDMA_IOMAPSIZE`); 0 by default. The protocol can express 0 to 128, then multiples of 256
    /// up to 32512: others are rounded down.
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.socket = self.socket.iomap_slots(n);
        self
    }

    /// Receive memory of a stream, in bytes: 512 KiB by default, or what
    /// `/etc/rdma/rsocket/mem_default` says.
    pub fn receive_memory(mut self, bytes: u32) -> Self {
        self.socket = self.socket.receive_memory(bytes);
        self
    }

    /// Limits the time that a connect to each of the addresses may take; 127 seconds by default,
    /// and at most.
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = Some(limit);
        self
    }
}
