//! What a link waits for: the ring beside a TCP socket, a pure socket, which is nothing else, or the
//! queue of a datagram socket.
//!
//! Below `link`; each call is one of `rsock_core`'s, whose order of mark, try, arm it keeps.

use rsock_core::Doorbell;
use rsock_core::accelerate::{self, AcceleratedStream};
use rsock_core::datagram::Datagram;
use rsock_core::rsocket::Socket;
use std::io;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Ring {
    AcceleratedStream(Arc<AcceleratedStream>),
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
    /// Doorbells at most: what comes over one device rings one of them.
    pub(crate) const DOORBELLS: usize = 2;

    /// A number that grows when more may come than what is watched already.
    pub(crate) fn reach(&self) -> usize {
        match self {
            Self::AcceleratedStream(twin) => twin.has_path().into(),
            Self::Pure(_) => 0,
            Self::Datagrams(socket) => socket.n_remote_queues(),
        }
    }

    /// Whether anything may come on it.
    pub(crate) fn is_there(&self) -> bool {
        match self {
            Self::AcceleratedStream(twin) => twin.has_path(),
            Self::Pure(_) => true,
            Self::Datagrams(socket) => socket.has_peers_past_udp(),
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(match self {
            Self::AcceleratedStream(twin) => twin.mark().to_bits(),
            Self::Pure(socket) => socket.mark().into(),
            Self::Datagrams(socket) => socket.mark().into(),
        })
    }

    pub(crate) fn has_changed(&self, mark: Mark) -> bool {
        match self {
            Self::AcceleratedStream(twin) => twin.has_changed(accelerate::Mark::from_bits(mark.0)),
            Self::Pure(socket) => socket.has_changed(low(mark)),
            Self::Datagrams(socket) => socket.has_changed(low(mark)),
        }
    }

    /// The doorbell in `place`, below [`Self::DOORBELLS`]; nothing where nothing comes so far that would
    /// ring it.
    pub(crate) fn doorbell(&self, place: usize) -> io::Result<Option<Doorbell>> {
        match (self, place) {
            (Self::AcceleratedStream(twin), 0) => twin.create_doorbell().map(Some),
            (Self::Pure(socket), 0) => socket.doorbell().map(Some),
            (Self::Datagrams(socket), 0) => socket.local_doorbell(),
            (Self::Datagrams(socket), 1) => socket.remote_doorbell(),
            _ => Ok(None),
        }
    }

    /// Whether arming and disarming `bell`, its own, is no more than writes to memory.
    pub(crate) fn is_cheap_to_arm(&self, bell: &Doorbell) -> bool {
        bell.is_soft() && !matches!(self, Self::Datagrams(_))
    }

    /// False, and nothing is armed, if something has come since `mark`.
    pub(crate) fn arm(&self, bell: &Doorbell, mark: Mark) -> bool {
        match self {
            Self::AcceleratedStream(twin) => twin.arm(bell, accelerate::Mark::from_bits(mark.0)),
            Self::Pure(socket) => socket.arm(bell, low(mark)),
            Self::Datagrams(socket) => socket.arm_doorbell(bell),
        }
    }

    pub(crate) fn disarm(&self, bell: &Doorbell) {
        match self {
            Self::AcceleratedStream(twin) => twin.disarm(bell),
            Self::Pure(socket) => socket.disarm(bell),
            Self::Datagrams(socket) => socket.disarm_doorbell(bell),
        }
    }
}

/// Marks of pure sockets and datagram sockets are numbers of 32 bits.
fn low(mark: Mark) -> u32 {
    u32::try_from(mark.0 & u64::from(u32::MAX)).unwrap_or(0)
}
