//! The channels of a stream: what carries the bytes of each direction.

use std::fmt;

/// What carries the bytes of one direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Channel {
    /// The kernel's TCP.
    Tcp,
    /// A ring in shared memory, or on an RDMA device if the peer is on another host.
    Ring,
}

impl Channel {
    /// Whether the bytes bypass TCP.
    #[must_use]
    pub fn is_ring(self) -> bool {
        self == Self::Ring
    }
}

impl fmt::Display for Channel {
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
pub struct Channels {
    /// Bytes to the peer.
    pub send: Channel,
    /// Bytes from the peer.
    pub recv: Channel,
}

impl Channels {
    /// Both directions are on TCP, as those of every new stream.
    pub const TCP: Self = Self { send: Channel::Tcp, recv: Channel::Tcp };
    /// Both directions bypass TCP.
    pub const RING: Self = Self { send: Channel::Ring, recv: Channel::Ring };

    /// Whether both directions have left TCP.
    #[must_use]
    pub fn are_accelerated(self) -> bool {
        self == Self::RING
    }
}

impl fmt::Display for Channels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sends by {}, receives by {}", self.send, self.recv)
    }
}
