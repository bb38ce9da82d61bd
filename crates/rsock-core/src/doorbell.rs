//! Doorbells: descriptors that an event loop polls for data that does not come through the kernel's
//! sockets.
//!
//! Accelerated streams, rsockets and datagram sockets arm and disarm them. A doorbell belongs to
//! one device, and rings for data on that device alone.

#![forbid(unsafe_code)]

use rsock_verbs::Bell;
use rsock_verbs::rdma::RdmaBell;
use rsock_verbs::soft::SoftBell;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// A descriptor that becomes readable when data arrives for the sockets that it is armed for.
///
/// A doorbell that rang is no longer armed: disarm it, and arm it again.
#[derive(Debug)]
pub struct Doorbell(Kind);

/// A doorbell, by its device.
#[derive(Debug)]
pub(crate) enum Kind {
    Soft(SoftBell),
    Rdma(RdmaBell),
}

impl Doorbell {
    pub(crate) fn kind(&self) -> &Kind {
        &self.0
    }

    /// Whether it belongs to the soft device, where arming and disarming take no system call.
    #[must_use]
    pub fn is_soft(&self) -> bool {
        matches!(self.0, Kind::Soft(_))
    }

    /// Empties the descriptor after it has rung. It holds a few unread rings only, and rings no
    /// more once it is full.
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
