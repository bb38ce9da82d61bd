//! The settings of accelerated streams, chosen before a stream or a listener exists.

use std::time::Duration;

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
    pub(crate) spin: Duration,
    pub(crate) nodelay: Option<bool>,
    pub(crate) iomap_slots: u16,
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

    /// Regions that the peer may [expose](crate::Stream::expose) at once; 0 by default, at most
    /// 32512. Each costs 24 bytes per stream.
    #[must_use]
    pub fn iomap_slots(mut self, n: u16) -> Self {
        self.iomap_slots = n;
        self
    }
}
