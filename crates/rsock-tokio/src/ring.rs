//! What a link waits for: the ring beside a TCP socket, a pure socket, which is nothing else, or the
//! queue of a datagram socket.
//!
//! Below `link`; each call is one of `rsock_core`'s, whose order of mark, try, arm it keeps.

use rsock_core::Doorbell;
use rsock_core::dgram::Datagram;
use rsock_core::socket::Socket;
use rsock_core::twin::{self, Twin};
use std::io;
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

    pub(crate) fn doorbell(&self) -> io::Result<Doorbell> {
        match self {
            Self::Twin(twin) => twin.create_doorbell(),
            Self::Pure(socket) => socket.doorbell(),
            Self::Datagrams(socket) => Ok(socket.doorbell()?.ok_or(io::ErrorKind::Unsupported)?),
        }
    }

    /// Whether arming and disarming `bell`, its own, is no more than writes to memory.
    pub(crate) fn is_cheap_to_arm(&self, bell: &Doorbell) -> bool {
        bell.is_soft() && !matches!(self, Self::Datagrams(_))
    }

    /// False, and nothing is armed, if something has come since `mark`.
    pub(crate) fn arm(&self, bell: &Doorbell, mark: Mark) -> bool {
        match self {
            Self::Twin(twin) => twin.arm(bell, twin::Mark::from_bits(mark.0)),
            Self::Pure(socket) => socket.arm(bell, low(mark)),
            Self::Datagrams(socket) => socket.arm_doorbell(bell),
        }
    }

    pub(crate) fn disarm(&self, bell: &Doorbell) {
        match self {
            Self::Twin(twin) => twin.disarm(bell),
            Self::Pure(socket) => socket.disarm(bell),
            Self::Datagrams(socket) => socket.disarm_doorbell(bell),
        }
    }
}

/// A pure socket's marks are numbers of 32 bits.
fn low(mark: Mark) -> u32 {
    u32::try_from(mark.0 & u64::from(u32::MAX)).unwrap_or(0)
}
