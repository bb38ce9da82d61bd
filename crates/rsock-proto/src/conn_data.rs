//! The 40 bytes that both ends exchange while they connect.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `struct rs_conn_data`, `rs_format_conn_data`,
//! `rs_save_conn_data`, `rs_scale_to_value`, `rs_value_to_scale`.

use super::error::PeerError;
use super::sgl::RemoteSge;
use bitflags::bitflags;
use rsock_verbs::{RKey, RemoteAddr};
use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of the connection data, in bytes.
pub const CONN_DATA_LEN: usize = 40;

/// The only version of the protocol there is.
pub const PROTOCOL_VERSION: u8 = 1;

bitflags! {
    /// What the sender of connection data is and understands.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct ConnFlags: u8 {
        /// Its byte order is big-endian, and so are its tables.
        #[doc(alias = "RS_CONN_FLAG_NET")]
        const NET = 1;
        /// It understands iomaps.
        #[doc(alias = "RS_CONN_FLAG_IOMAP")]
        const IOMAP = 1 << 1;
        /// It understands operation 2 as extension messages, and does not count the iomap messages
        /// it sends against its credits. C never sets it.
        const EXT = 1 << 2;
    }
}

impl ConnFlags {
    /// The flags that this implementation sends on this machine.
    pub const LOCAL: Self = if cfg!(target_endian = "big") {
        Self::NET.union(Self::IOMAP).union(Self::EXT)
    } else {
        Self::IOMAP.union(Self::EXT)
    };
}

/// What one end tells the other about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "rs_conn_data")]
pub struct ConnData {
    /// [`PROTOCOL_VERSION`].
    pub version: u8,
    /// Byte order and abilities; unknown bits are kept.
    pub flags: ConnFlags,
    /// Data messages that the sender of this block can take now.
    pub credits: u16,
    /// Entries of its iomap table, in the scaled form of [`iomap_size_to_wire`].
    pub target_iomap_size: u8,
    /// Its table of announced buffers; `len` counts entries.
    pub target_sgl: RemoteSge,
    /// Its first receive buffer.
    pub data_buf: RemoteSge,
}

impl ConnData {
    /// As private data of a connection request or reply.
    #[must_use]
    pub fn encode(&self) -> [u8; CONN_DATA_LEN] {
        zerocopy::transmute!(WireConnData {
            version: self.version,
            flags: self.flags.bits(),
            credits: U16::new(self.credits),
            reserved: [0; 3],
            target_iomap_size: self.target_iomap_size,
            target_sgl: WireSge::new(self.target_sgl),
            data_buf: WireSge::new(self.data_buf),
        })
    }

    /// From private data, which may be longer: connection managers pad it.
    ///
    /// # Errors
    /// [`PeerError::ShortConnData`] (`EPROTO`), [`PeerError::Version`] (`ENOTSUP`). Lengths and
    /// addresses are checked where they are used: [`SendHalf::new`](super::SendHalf::new),
    /// [`RecvHalf::set_peer`](super::RecvHalf::set_peer), [`RemoteIomap`](super::RemoteIomap::new).
    pub fn decode(bytes: &[u8]) -> Result<Self, PeerError> {
        let Ok((wire, _)) = WireConnData::read_from_prefix(bytes) else {
            return Err(PeerError::ShortConnData(bytes.len()));
        };
        if wire.version != PROTOCOL_VERSION {
            return Err(PeerError::Version(wire.version));
        }
        Ok(Self {
            version: wire.version,
            flags: ConnFlags::from_bits_retain(wire.flags),
            credits: wire.credits.get(),
            target_iomap_size: wire.target_iomap_size,
            target_sgl: wire.target_sgl.get(),
            data_buf: wire.data_buf.get(),
        })
    }

    /// Whether table entries written to this peer need their bytes swapped.
    #[must_use]
    pub fn swaps(&self) -> bool {
        self.flags.contains(ConnFlags::NET) != cfg!(target_endian = "big")
    }

    /// Whether this peer understands extension messages.
    #[must_use]
    pub fn has_ext(&self) -> bool {
        self.flags.contains(ConnFlags::EXT)
    }
}

/// The byte that names an iomap table of `n` entries.
///
/// Up to 128 the number itself, above that multiples of 256 up to 32512; a number in between is
/// rounded down.
#[must_use]
pub const fn iomap_size_to_wire(n: u32) -> u8 {
    match n.to_be_bytes() {
        [0, 0, 0, low @ 0..=128] => low,
        [0, 0, high @ 0..=0x7F, _] => 0x80 | high,
        _ => 0xFF,
    }
}

/// Entries of an iomap table, from the byte that names them.
#[must_use]
pub const fn iomap_size_from_wire(scaled: u8) -> u16 {
    if scaled <= 128 { scaled as u16 } else { ((scaled & 0x7F) as u16) << 8 }
}

// WIRE: everything big-endian, key before length.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct WireSge {
    addr: U64,
    key: U32,
    len: U32,
}

impl WireSge {
    fn new(sge: RemoteSge) -> Self {
        Self { addr: U64::new(sge.addr.0), key: U32::new(sge.key.0), len: U32::new(sge.len) }
    }

    fn get(&self) -> RemoteSge {
        RemoteSge {
            addr: RemoteAddr(self.addr.get()),
            key: RKey(self.key.get()),
            len: self.len.get(),
        }
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct WireConnData {
    version: u8,
    flags: u8,
    credits: U16,
    reserved: [u8; 3],
    target_iomap_size: u8,
    target_sgl: WireSge,
    data_buf: WireSge,
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<WireConnData>() == CONN_DATA_LEN && align_of::<WireConnData>() == 1);
    assert!(offset_of!(WireConnData, version) == 0);
    assert!(offset_of!(WireConnData, flags) == 1);
    assert!(offset_of!(WireConnData, credits) == 2);
    assert!(offset_of!(WireConnData, reserved) == 4);
    assert!(offset_of!(WireConnData, target_iomap_size) == 7);
    assert!(offset_of!(WireConnData, target_sgl) == 8);
    assert!(offset_of!(WireConnData, data_buf) == 24);
    assert!(offset_of!(WireSge, addr) == 0);
    assert!(offset_of!(WireSge, key) == 8);
    assert!(offset_of!(WireSge, len) == 12);
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A little-endian host with the sizes that C uses by default.
    const GOLDEN: [u8; CONN_DATA_LEN] = [
        0x01, 0x02, 0x01, 0x80, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x7f, 0x00, 0x11, 0x22, 0x30,
        0x00, 0x00, 0x00, 0x12, 0x34, 0x00, 0x00, 0x00, 0x02, 0x00, 0x00, 0x7f, 0x00, 0x11, 0x30,
        0x00, 0x00, 0x00, 0x00, 0x12, 0x35, 0x00, 0x01, 0x00, 0x00,
    ];

    fn golden() -> ConnData {
        ConnData {
            version: 1,
            flags: ConnFlags::IOMAP,
            credits: 384,
            target_iomap_size: 0,
            target_sgl: RemoteSge { addr: RemoteAddr(0x7f00_1122_3000), key: RKey(0x1234), len: 2 },
            data_buf: RemoteSge {
                addr: RemoteAddr(0x7f00_1130_0000),
                key: RKey(0x1235),
                len: 65536,
            },
        }
    }

    #[test]
    fn the_block_of_a_c_host_is_understood_and_reproduced() {
        assert_eq!(ConnData::decode(&GOLDEN), Ok(golden()));
        assert_eq!(golden().encode(), GOLDEN);
    }

    #[test]
    fn padding_behind_the_block_is_ignored_and_a_short_block_refused() {
        let mut padded = GOLDEN.to_vec();
        padded.resize(56, 0xAA);
        assert_eq!(ConnData::decode(&padded), Ok(golden()));
        for len in 0..CONN_DATA_LEN {
            assert_eq!(ConnData::decode(&GOLDEN[..len]), Err(PeerError::ShortConnData(len)));
        }
    }

    #[test]
    fn other_versions_are_refused_as_unsupported() {
        for version in [0, 2, 255] {
            let mut block = GOLDEN;
            block[0] = version;
            let e = ConnData::decode(&block).unwrap_err();
            assert_eq!((e, e.errno()), (PeerError::Version(version), libc::ENOTSUP));
        }
    }

    #[test]
    fn reserved_bytes_are_sent_as_zero_and_not_looked_at() {
        let mut block = GOLDEN;
        block[4..7].fill(0xFF);
        assert_eq!(ConnData::decode(&block).map(|d| d.encode()), Ok(GOLDEN));
    }

    #[test]
    fn the_byte_order_flag_decides_about_swapping() {
        let mut peer = golden();
        assert_eq!(peer.swaps(), cfg!(target_endian = "big"));
        peer.flags |= ConnFlags::NET;
        assert_eq!(peer.swaps(), cfg!(target_endian = "little"));
        peer.flags = ConnFlags::LOCAL;
        assert!(!peer.swaps() && peer.has_ext());
    }

    #[test]
    fn iomap_sizes_scale_as_in_c() {
        for (n, wire, back) in [
            (0, 0, 0),
            (1, 1, 1),
            (128, 128, 128),
            (129, 128, 128),
            (255, 128, 128),
            (256, 0x81, 256),
            (511, 0x81, 256),
            (32512, 0xFF, 32512),
            (32767, 0xFF, 32512),
            (32768, 0xFF, 32512),
            (u32::MAX, 0xFF, 32512),
        ] {
            assert_eq!((iomap_size_to_wire(n), iomap_size_from_wire(wire)), (wire, back), "{n}");
        }
        for wire in 0..=u8::MAX {
            assert_eq!(iomap_size_to_wire(iomap_size_from_wire(wire).into()), wire);
        }
    }

    proptest! {
        #[test]
        fn any_block_of_version_1_survives_decoding(mut block: [u8; CONN_DATA_LEN]) {
            block[0] = PROTOCOL_VERSION;
            block[4..7].fill(0);
            prop_assert_eq!(ConnData::decode(&block).map(|d| d.encode()), Ok(block));
        }
    }
}
