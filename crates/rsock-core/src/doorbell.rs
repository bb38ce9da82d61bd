//! Doorbells: what an event loop watches while it waits for something past the kernel's sockets.
//!
//! Below twins, pure sockets and datagram sockets, which arm them and take that back. A doorbell is of one
//! device, and rings for what is on that device alone.

#![forbid(unsafe_code)]

use rsock_verbs::Bell;
use rsock_verbs::rdma::RdmaBell;
use rsock_verbs::soft::SoftBell;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// A descriptor that becomes readable when something comes for what it is armed for.
///
/// One that rang is armed no more: disarm it, and arm it again.
#[derive(Debug)]
pub struct Doorbell(Kind);

/// A doorbell's device.
#[derive(Debug)]
pub(crate) enum Kind {
    Soft(SoftBell),
    Rdma(RdmaBell),
}

impl Doorbell {
    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Whether it is of shared memory: then it is armed and disarmed without a word to a device.
    #[must_use]
    pub fn is_soft(&self) -> bool {
        matches!(self.0, Kind::Soft(_))
    }

    /// Empties it, once it has rung. A doorbell holds a few unread rings only, and a full one
    /// cannot be rung.
    pub fn drain(&self) {
        match &self.0 {
            Kind::Soft(bell) => bell.drain(),
            Kind::Rdma(bell) => bell.drain(),
        }
    }

    pub(crate) fn ring(&self) {
        match &self.0 {
            Kind::Soft(bell) => bell.ring(),
            Kind::Rdma(bell) => bell.ring(),
        }
    }
}

impl From<SoftBell> for Doorbell {
    fn from(bell: SoftBell) -> Self {
        Self(Kind::Soft(bell))
    }
}

impl From<RdmaBell> for Doorbell {
    fn from(bell: RdmaBell) -> Self {
        Self(Kind::Rdma(bell))
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Kind::Soft(bell) => bell.as_fd(),
            Kind::Rdma(bell) => bell.as_fd(),
        }
    }
}

impl AsRawFd for Doorbell {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
