//! What a link waits for: the ring beside a TCP socket, a pure socket, which is nothing else, or the
//! queue of a datagram socket.
//!
//! Below `link`; each call is one of `rsock_core`'s, whose order of mark, try, arm it keeps.

use rsock_core::dgram::{self, Datagram};
use rsock_core::socket::{self, Socket};
use rsock_core::twin::{self, Twin};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Ring {
    Twin(Arc<Twin>),
    Pure(Arc<Socket>),
    Datagrams(Arc<Datagram>),
}

/// What had happened on a ring when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Mark {
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl Ring {
    /// Whether anything may come on it.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Self::Twin(twin) => twin.is_paired(),
            Self::Pure(_) => true,
            Self::Datagrams(socket) => socket.has_local_peers(),
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(match self {
            Self::Twin(twin) => twin.mark().to_bits(),
            Self::Pure(socket) => socket.mark().into(),
            // A queue has something, or not.
            Self::Datagrams(_) => 0,
        })
    }

    pub(crate) fn has_changed(&self, mark: Mark) -> bool {
        match self {
            Self::Twin(twin) => twin.has_changed(twin::Mark::from_bits(mark.0)),
            Self::Pure(socket) => socket.has_changed(low(mark)),
            Self::Datagrams(socket) => socket.has_input(),
        }
    }

    pub(crate) fn doorbell(&self) -> io::Result<Bell> {
        Ok(match self {
            Self::Twin(twin) => Bell::Twin(twin.create_doorbell()?),
            Self::Pure(socket) => Bell::Pure(socket.doorbell()?),
            Self::Datagrams(socket) => {
                Bell::Datagrams(socket.doorbell()?.ok_or(io::ErrorKind::Unsupported)?)
            }
        })
    }

    /// False, and nothing is armed, if something has come since `mark`.
    pub(crate) fn arm(&self, bell: &Bell, mark: Mark) -> bool {
        match (self, bell) {
            (Self::Twin(twin), Bell::Twin(bell)) => twin.arm(bell, twin::Mark::from_bits(mark.0)),
            (Self::Pure(socket), Bell::Pure(bell)) => socket.arm(bell, low(mark)),
            (Self::Datagrams(socket), Bell::Datagrams(bell)) => socket.arm_doorbell(bell),
            // Another ring's.
            _ => false,
        }
    }

    pub(crate) fn disarm(&self, bell: &Bell) {
        match (self, bell) {
            (Self::Twin(twin), Bell::Twin(bell)) => twin.disarm(bell),
            (Self::Pure(socket), Bell::Pure(bell)) => socket.disarm(bell),
            (Self::Datagrams(socket), Bell::Datagrams(bell)) => socket.disarm_doorbell(bell),
            _ => {}
        }
    }
}

/// A pure socket's marks are numbers of 32 bits.
fn low(mark: Mark) -> u32 {
    u32::try_from(mark.0 & u64::from(u32::MAX)).unwrap_or(0)
}

/// The descriptor that rings.
#[derive(Debug)]
pub(crate) enum Bell {
    Twin(twin::Doorbell),
    Pure(socket::Doorbell),
    Datagrams(dgram::Doorbell),
}

impl Bell {
    /// Whether arming and disarming it is no more than writes to memory.
    pub(crate) fn is_cheap(&self) -> bool {
        match self {
            Self::Twin(bell) => bell.is_soft(),
            Self::Pure(bell) => bell.is_soft(),
            Self::Datagrams(_) => false,
        }
    }

    pub(crate) fn drain(&self) {
        match self {
            Self::Twin(bell) => bell.drain(),
            Self::Pure(bell) => bell.drain(),
            Self::Datagrams(bell) => bell.drain(),
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Twin(bell) => bell.as_fd(),
            Self::Pure(bell) => bell.as_fd(),
            Self::Datagrams(bell) => bell.as_fd(),
        }
    }
}

impl AsRawFd for Bell {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
