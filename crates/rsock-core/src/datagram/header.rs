//! The two headers of datagrams: one on packets of the UDP socket, one on datagrams of queue pairs.
//!
//! Parsing is total: any bytes are either a header or rejected. The payload follows the header.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `struct ds_udp_header`, `struct ds_header`.

use rsock_verbs::{QKey, QpNum};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use zerocopy::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// WIRE: the Q_Key of every datagram rsocket.
pub(super) const KEY: QKey = QKey(0x0123_4567);

/// First word of every packet that the UDP sockets exchange.
const TAG: u32 = 0x5555_5555;
/// Longest header of a UDP packet, in bytes.
pub const MAX_UDP_HEADER: usize = 28;
/// Longest header in front of a queue pair's payload, in bytes.
pub const MAX_QUEUE_HEADER: usize = 24;

/// The purpose of a UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UdpOp {
    /// The packet carries a datagram, and asks for the receiver's queue pair.
    #[doc(alias = "RS_OP_DATA")]
    Data,
    /// The packet tells the sender's queue pair, and carries no datagram.
    #[doc(alias = "RS_OP_CTRL")]
    Control,
}

/// The header of a UDP packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ds_udp_header")]
pub struct UdpHeader {
    /// The purpose of the packet.
    pub op: UdpOp,
    /// The sender's queue pair; 0 if it has none.
    pub qp_num: QpNum,
    /// The sender's address. Receivers ignore it: the packet's own source counts.
    pub addr: IpAddr,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireUdp {
    tag: U32,
    version: u8,
    op: u8,
    len: u8,
    reserved: u8,
    qp_num: U32,
}

const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// A header's bytes.
#[derive(Clone, Copy, Debug)]
pub struct HeaderBytes<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> HeaderBytes<N> {
    const EMPTY: Self = Self { bytes: [0; N], len: 0 };

    fn put(&mut self, part: &[u8]) {
        let end = self.len + part.len();
        self.bytes[self.len..end].copy_from_slice(part);
        self.len = end;
    }

    /// The bytes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl UdpHeader {
    /// The wire format: 16 bytes for an IPv4 address, 28 for an IPv6 one.
    #[must_use]
    pub fn encode(&self) -> HeaderBytes<MAX_UDP_HEADER> {
        let (version, len) = match self.addr {
            IpAddr::V4(_) => (4, 16),
            IpAddr::V6(_) => (6, 28),
        };
        let op = match self.op {
            UdpOp::Data => DATA,
            UdpOp::Control => CONTROL,
        };
        let front = WireUdp {
            tag: TAG.into(),
            version,
            op,
            len,
            reserved: 0,
            qp_num: (self.qp_num.0 & QP_BITS).into(),
        };
        let mut out = HeaderBytes::EMPTY;
        out.put(front.as_bytes());
        match self.addr {
            IpAddr::V4(ip) => out.put(&ip.octets()),
            IpAddr::V6(ip) => out.put(&ip.octets()),
        }
        out
    }

    /// Parses a packet, whose source has an IPv6 address if `v6`. Returns the header and the offset
    /// of the payload. Tag, version, length and operation are checked; the high byte of the number
    /// is not.
    #[must_use]
    pub fn parse(packet: &[u8], v6: bool) -> Option<(Self, usize)> {
        let (front, rest) = WireUdp::read_from_prefix(packet).ok()?;
        let (version, len) = if v6 { (6, 28) } else { (4, 16) };
        if front.tag.get() != TAG || front.version != version || front.len != len {
            return None;
        }
        let op = match front.op {
            DATA => UdpOp::Data,
            CONTROL => UdpOp::Control,
            _ => return None,
        };
        let addr = if v6 {
            IpAddr::from(<[u8; 16]>::read_from_prefix(rest).ok()?.0)
        } else {
            IpAddr::from(<[u8; 4]>::read_from_prefix(rest).ok()?.0)
        };
        let qp_num = QpNum(front.qp_num.get() & QP_BITS);
        Some((Self { op, qp_num, addr }, len.into()))
    }
}

/// A queue pair's number on the wire has 24 bits.
const QP_BITS: u32 = 0xff_ffff;

/// The header of a datagram that a queue pair carries: it names the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ds_header")]
pub struct QueueHeader {
    /// Address and port of the sender's UDP socket. The scope of an IPv6 address is not
    /// transmitted.
    pub source: SocketAddr,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireV4 {
    version: u8,
    len: u8,
    port: U16,
    addr: [u8; 4],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireV6 {
    version: u8,
    len: u8,
    port: U16,
    flow: U32,
    addr: [u8; 16],
}

impl QueueHeader {
    /// The wire format: 8 bytes for an IPv4 address, 24 for an IPv6 one.
    #[must_use]
    pub fn encode(&self) -> HeaderBytes<MAX_QUEUE_HEADER> {
        let mut out = HeaderBytes::EMPTY;
        match self.source {
            SocketAddr::V4(at) => {
                let port = at.port().into();
                let addr = at.ip().octets();
                out.put(WireV4 { version: 4, len: 8, port, addr }.as_bytes());
            }
            SocketAddr::V6(at) => {
                let (port, flow) = (at.port().into(), at.flowinfo().into());
                let addr = at.ip().octets();
                out.put(WireV6 { version: 6, len: 24, port, flow, addr }.as_bytes());
            }
        }
        out
    }

    /// Parses the front of a datagram, of which at most [`MAX_QUEUE_HEADER`] bytes count. Returns
    /// the header and the offset of the payload.
    #[must_use]
    pub fn parse(front: &[u8]) -> Option<(Self, usize)> {
        match front.get(..2)? {
            [4, 8] => {
                let (wire, _) = WireV4::read_from_prefix(front).ok()?;
                let source = (IpAddr::from(wire.addr), wire.port.get()).into();
                Some((Self { source }, 8))
            }
            [6, 24] => {
                let (wire, _) = WireV6::read_from_prefix(front).ok()?;
                let source =
                    SocketAddrV6::new(wire.addr.into(), wire.port.get(), wire.flow.get(), 0);
                Some((Self { source: source.into() }, 24))
            }
            _ => None,
        }
    }
}

const _: () = {
    assert!(size_of::<WireUdp>() + 16 == MAX_UDP_HEADER);
    assert!(size_of::<WireV4>() == 8 && size_of::<WireV6>() == MAX_QUEUE_HEADER);
};

/// The fuzzer's function: every header that parses encodes to the bytes it was parsed from.
///
/// # Panics
/// If it does not.
#[cfg(any(test, fuzzing))]
pub fn check_any(bytes: &[u8]) {
    for v6 in [false, true] {
        if let Some((header, at)) = UdpHeader::parse(bytes, v6) {
            assert!(at <= bytes.len() && header.qp_num.0 <= QP_BITS && header.addr.is_ipv6() == v6);
            let again = header.encode();
            assert_eq!(UdpHeader::parse(again.as_bytes(), v6), Some((header, at)));
        }
    }
    if let Some((header, at)) = QueueHeader::parse(bytes) {
        assert!(at <= bytes.len());
        assert_eq!(header.encode().as_bytes(), &bytes[..at]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A packet as rdma-core sends it on a little-endian host: number 0x123456, from 10.9.0.1.
    const C_DATA: [u8; 18] =
        [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0x00, 0x12, 0x34, 0x56, 10, 9, 0, 1, b'h', b'i'];

    fn addr(text: &str) -> IpAddr {
        text.parse().expect("address")
    }

    #[test]
    fn a_packet_of_rdma_core_is_parsed_and_reproduced() {
        let (header, at) = UdpHeader::parse(&C_DATA, false).expect("header");
        let expected =
            UdpHeader { op: UdpOp::Data, qp_num: QpNum(0x12_3456), addr: addr("10.9.0.1") };
        assert_eq!((header, &C_DATA[at..]), (expected, &b"hi"[..]));
        assert_eq!(header.encode().as_bytes(), &C_DATA[..16]);
        let control = UdpHeader { op: UdpOp::Control, ..header };
        assert_eq!(control.encode().as_bytes()[5], 7);
    }

    #[test]
    fn the_high_byte_of_a_number_is_ignored_and_never_sent() {
        let mut packet = C_DATA;
        packet[8] = 0xff;
        let (header, _) = UdpHeader::parse(&packet, false).expect("header");
        assert_eq!(header.qp_num, QpNum(0x12_3456));
        let wide = UdpHeader { qp_num: QpNum(u32::MAX), ..header };
        assert_eq!(wide.encode().as_bytes()[8..12], [0, 0xff, 0xff, 0xff]);
    }

    #[test]
    fn a_damaged_packet_header_is_rejected() {
        for at in 0..7 {
            let mut packet = C_DATA;
            packet[at] ^= 0x40;
            assert_eq!(UdpHeader::parse(&packet, false), None, "byte {at}");
        }
        for len in 0..16 {
            assert_eq!(UdpHeader::parse(&C_DATA[..len], false), None);
        }
        assert_eq!(UdpHeader::parse(&C_DATA, true), None, "another family than its source's");
    }

    #[test]
    fn headers_of_queue_pairs_match_rdma_core() {
        let v4 = QueueHeader { source: "10.9.0.1:7174".parse().expect("address") };
        assert_eq!(v4.encode().as_bytes(), [4, 8, 0x1c, 0x06, 10, 9, 0, 1]);
        let v6 = QueueHeader { source: "[fd09::1]:7174".parse().expect("address") };
        let bytes = v6.encode();
        assert_eq!(bytes.as_bytes()[..8], [6, 24, 0x1c, 0x06, 0, 0, 0, 0]);
        assert_eq!(QueueHeader::parse(bytes.as_bytes()), Some((v6, 24)));
        for len in 0..24 {
            assert_eq!(QueueHeader::parse(&bytes.as_bytes()[..len]), None);
        }
        for (version, len) in [(4, 24), (6, 8), (0, 8), (4, 0), (255, 255)] {
            let mut bad = [0; 24];
            bad[..2].copy_from_slice(&[version, len]);
            assert_eq!(QueueHeader::parse(&bad), None);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_parsed_or_rejected(
            bytes in proptest::collection::vec(any::<u8>(), 0..64),
        ) {
            check_any(&bytes);
        }

        #[test]
        fn nearly_valid_packets_are_parsed_or_rejected(
            version in 3u8..8, op in 0u8..9, len in 0u8..32, v6: bool, cut in 0usize..40,
        ) {
            let mut packet = vec![0x55; 4];
            packet.extend([version, op, len, 0]);
            packet.resize(40, 1);
            packet.truncate(cut);
            check_any(&packet);
            if let Some((_, at)) = UdpHeader::parse(&packet, v6) {
                prop_assert_eq!((usize::from(len), version), (at, if v6 { 6 } else { 4 }));
            }
            check_any(packet.get(4..).unwrap_or_default());
        }

        #[test]
        fn encoded_headers_parse_to_themselves(
            ip: u128, v4: bool, port: u16, number in 0u32..1 << 24,
        ) {
            #[expect(clippy::cast_possible_truncation, reason = "any address will do")]
            let short = (ip as u32).to_be_bytes();
            let addr: IpAddr = if v4 { short.into() } else { ip.to_be_bytes().into() };
            let udp = UdpHeader { op: UdpOp::Control, qp_num: QpNum(number), addr };
            let bytes = udp.encode();
            let back = UdpHeader::parse(bytes.as_bytes(), !v4);
            prop_assert_eq!(back, Some((udp, bytes.as_bytes().len())));
            let queue = QueueHeader { source: (addr, port).into() };
            let bytes = queue.encode();
            let back = QueueHeader::parse(bytes.as_bytes());
            prop_assert_eq!(back, Some((queue, bytes.as_bytes().len())));
        }
    }
}
