//! Choices that a caller of [`Socket`](super::Socket) makes, as types instead of `bool`.

use std::net::SocketAddr;

/// The address family of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Family {
    /// `AF_INET`: IPv4 addresses.
    V4,
    /// `AF_INET6`: IPv6 addresses, and IPv4 addresses in their mapped form.
    V6,
}

impl Family {
    /// The family of `addr`.
    #[must_use]
    pub fn of(addr: &SocketAddr) -> Self {
        if addr.is_ipv6() { Self::V6 } else { Self::V4 }
    }

    pub(super) fn is_v6(self) -> bool {
        self == Self::V6
    }
}
