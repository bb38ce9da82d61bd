//! Options of a socket by method, with Rust types; `option_bytes` has them as C lays them out.

use crate::rsocket::options::KeepaliveSettings;
use crate::rsocket::socket::Socket;
use std::io;
use std::time::Duration;

impl Socket {
    /// `SO_RCVTIMEO`: how long a receive or an accept waits; `None` waits without end.
    #[must_use]
    pub fn recv_timeout(&self) -> Option<Duration> {
        self.options().recv_timeout
    }

    /// Sets `SO_RCVTIMEO`; zero counts as `None`, as for the kernel.
    pub fn set_recv_timeout(&self, limit: Option<Duration>) {
        self.options().recv_timeout = limit.filter(|limit| !limit.is_zero());
    }

    /// `SO_SNDTIMEO`: how long a send or a connect waits; `None` waits without end.
    #[must_use]
    pub fn send_timeout(&self) -> Option<Duration> {
        self.options().send_timeout
    }

    /// Sets `SO_SNDTIMEO`; zero counts as `None`, as for the kernel.
    pub fn set_send_timeout(&self, limit: Option<Duration>) {
        self.options().send_timeout = limit.filter(|limit| !limit.is_zero());
    }

    /// `SO_LINGER`: how long [`Self::close`] waits for bytes on their way; `None` is ten seconds.
    #[must_use]
    pub fn linger(&self) -> Option<Duration> {
        self.options().linger
    }

    /// Sets `SO_LINGER`, in whole seconds; zero makes [`Self::close`] a reset.
    pub fn set_linger(&self, linger: Option<Duration>) {
        self.options().linger = linger.map(|linger| Duration::from_secs(linger.as_secs()));
    }

    /// `TCP_NODELAY`, which is stored and changes nothing: rsockets never delays a write.
    #[must_use]
    pub fn nodelay(&self) -> bool {
        self.options().no_delay
    }

    /// Sets `TCP_NODELAY`; see [`Self::nodelay`].
    pub fn set_nodelay(&self, on: bool) {
        self.options().no_delay = on;
    }

    /// Sets `SO_REUSEADDR`, which [`Self::bind`] follows.
    pub fn set_reuse_address(&self, on: bool) {
        self.options().reuse_address = on;
    }

    /// `SO_KEEPALIVE` with `TCP_KEEPIDLE`, `TCP_KEEPINTVL` and `TCP_KEEPCNT`; `None` is off.
    #[must_use]
    pub fn keepalive(&self) -> Option<KeepaliveSettings> {
        self.options().keepalive_settings()
    }

    /// Sets `SO_KEEPALIVE` and its times; `None` switches it off. Times are whole seconds.
    ///
    /// # Errors
    /// `EINVAL` for an interval or an idle time below one second, and for no probes.
    pub fn set_keepalive(&self, settings: Option<KeepaliveSettings>) -> io::Result<()> {
        self.options().set_keepalive_settings(settings)?;
        self.follow_keepalive();
        Ok(())
    }

    /// `SO_RCVBUF`: receive memory in bytes.
    #[must_use]
    pub fn receive_memory(&self) -> u32 {
        self.options().recv_buf
    }

    /// Sets the receive memory in bytes. Unlike `SO_RCVBUF` the value is not doubled. Has no effect
    /// once the socket connects.
    pub fn set_receive_memory(&self, bytes: u32) {
        if !self.state_for_options().is_fixed {
            self.options().recv_buf = bytes.max(1);
        }
    }

    /// `RDMA_IOMAPSIZE`: how many regions the peer may expose to this socket at once.
    #[must_use]
    pub fn iomap_slots(&self) -> u16 {
        self.options().iomap_slots
    }

    /// Sets `RDMA_IOMAPSIZE`. The protocol can express 0 to 128, then multiples of 256 up to
    /// 32512: others are rounded down.
    ///
    /// # Errors
    /// `EINVAL` once the socket connects.
    pub fn set_iomap_slots(&self, n: u16) -> io::Result<()> {
        let value = i32::from(n).to_ne_bytes();
        self.set_option(super::super::SOL_RDMA, super::super::RDMA_IOMAPSIZE, &value)
    }
}
