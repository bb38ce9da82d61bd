//! The header in front of each datagram in shared memory: its source, as the kernel would have
//! shown it.
//!
//! | off | size | field |
//! |---|---|---|
//! | 0 | 1 | 4 or 6 |
//! | 1 | 1 | flags: 1, a datagram went by the kernel since the last one by this route |
//! | 2 | 2 | port, big-endian |
//! | 4 | 4 or 16 | address |

#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Length of the longest header.
pub(super) const MAX: usize = 20;
/// Length of the shortest header.
pub(super) const MIN: usize = 8;
/// The first byte of that one, with an address of IPv4.
pub(super) const V4: u8 = 4;
const AFTER_KERNEL: u8 = 1;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// The canonical source.
    pub(super) from: SocketAddr,
    /// Whether a datagram went by the kernel since the last one by this route.
    pub(super) is_after_kernel: bool,
}

/// An encoded header.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bytes {
    bytes: [u8; MAX],
    len: usize,
}

impl Bytes {
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The same header with another value of `is_after_kernel`.
    pub(super) fn after_kernel(mut self, is_after_kernel: bool) -> Self {
        self.bytes[1] = if is_after_kernel { AFTER_KERNEL } else { 0 };
        self
    }
}

impl Header {
    pub(super) fn encode(self) -> Bytes {
        let mut bytes = [0; MAX];
        bytes[2..4].copy_from_slice(&self.from.port().to_be_bytes());
        let len = match self.from.ip() {
            IpAddr::V4(ip) => {
                bytes[0] = V4;
                bytes[4..8].copy_from_slice(&ip.octets());
                MIN
            }
            IpAddr::V6(ip) => {
                bytes[0] = 6;
                bytes[4..20].copy_from_slice(&ip.octets());
                MAX
            }
        };
        Bytes { bytes, len }.after_kernel(self.is_after_kernel)
    }

    /// Parses a header. Returns it with the offset of the payload; `None` for bytes that no valid
    /// header begins with.
    pub(super) fn parse(front: &[u8]) -> Option<(Self, usize)> {
        let &[family, flags, high, low, ref rest @ ..] = front else { return None };
        let port = u16::from_be_bytes([high, low]);
        let (ip, len): (IpAddr, usize) = match family {
            V4 => (Ipv4Addr::from(*rest.first_chunk::<4>()?).into(), MIN),
            6 => (Ipv6Addr::from(*rest.first_chunk::<16>()?).into(), MAX),
            _ => return None,
        };
        if flags & !AFTER_KERNEL != 0 {
            return None;
        }
        let from = SocketAddr::new(ip, port);
        Some((Self { from, is_after_kernel: flags != 0 }, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn encoded_headers_parse_to_themselves(
            ip: IpAddr, port: u16, is_after_kernel: bool, more in 0usize..9,
        ) {
            let header = Header { from: SocketAddr::new(ip, port), is_after_kernel };
            let encoded = header.encode();
            let mut bytes = encoded.as_bytes().to_vec();
            bytes.resize(bytes.len() + more, 0xff);
            prop_assert_eq!(Header::parse(&bytes), Some((header, encoded.as_bytes().len())));
        }

        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes: Vec<u8>) {
            if let Some((_, at)) = Header::parse(&bytes) {
                prop_assert!(at <= bytes.len());
            }
        }
    }
}
