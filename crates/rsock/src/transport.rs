//! Where the bytes of a stream travel.

use std::fmt;

/// What carries the bytes of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// The kernel's TCP.
    Tcp,
    /// A ring in shared memory, or on an RDMA device if the peer is on another host.
    Ring,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "TCP",
            Self::Ring => "ring",
        })
    }
}

/// What carries the bytes of each direction of a stream. The directions move on their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Transports {
    /// Bytes to the peer.
    pub send: Transport,
    /// Bytes from the peer.
    pub recv: Transport,
}

impl Transports {
    pub(crate) const TCP: Self = Self { send: Transport::Tcp, recv: Transport::Tcp };
    pub(crate) const RING: Self = Self { send: Transport::Ring, recv: Transport::Ring };

    /// Whether both directions have left TCP.
    #[must_use]
    pub fn are_accelerated(self) -> bool {
        self == Self::RING
    }
}

impl fmt::Display for Transports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sends by {}, receives by {}", self.send, self.recv)
    }
}
