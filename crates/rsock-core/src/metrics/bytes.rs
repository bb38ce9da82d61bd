//! Numbers and addresses in a private copy of (a part of) a table.

use crate::metrics::RawSlot;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// A private copy of (a part of) a table.
pub(super) struct Bytes<'a>(pub(super) &'a [u8]);

impl Bytes<'_> {
    pub(super) fn byte(&self, at: usize) -> u8 {
        self.0[at]
    }

    pub(super) fn half(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.array(at))
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.array(at))
    }

    /// The local end and the peer's, which have the same offsets in every kind of slot.
    pub(super) fn ends(&self) -> [SocketAddr; 2] {
        let ports = self.half(offset_of!(RawSlot, ports));
        let port = |half: u32| u16::try_from(half & 0xffff).unwrap_or(0);
        [
            SocketAddr::new(self.ip(offset_of!(RawSlot, local)), port(ports >> 16)),
            SocketAddr::new(self.ip(offset_of!(RawSlot, peer)), port(ports)),
        ]
    }

    fn ip(&self, at: usize) -> IpAddr {
        Ipv6Addr::from(self.array::<16>(at)).to_canonical()
    }

    fn array<const N: usize>(&self, at: usize) -> [u8; N] {
        let mut out = [0; N];
        out.copy_from_slice(&self.0[at..at + N]);
        out
    }
}
