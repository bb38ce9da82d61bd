//! A buffer at a peer, and the 16-byte table entries that announce it.
//!
//! A table lies in the memory of the side that *sends* stream bytes and is written by the side that
//! receives them. Its entries are in the native byte order of the table's owner; the connection
//! data alone is always big-endian.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `struct rs_sge`, `rs_send_credits`.

use rsock_verbs::{RKey, RemoteAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of a table entry, in bytes.
pub const TABLE_ENTRY: usize = 16;

/// What a slot of the local table holds while no entry is in it.
///
/// The first word of an entry, its address, and the last byte of its length never look like this:
/// so a slot shows whether all of an entry is there.
pub const EMPTY_SLOT: [u8; TABLE_ENTRY] = [0xFF; TABLE_ENTRY];

/// Offset of entry `slot` in a table, in bytes.
#[inline]
#[must_use]
pub const fn slot_offset(slot: usize) -> usize {
    slot * TABLE_ENTRY
}

/// Offset of the iomap table behind a table of `n_slots` entries, in bytes.
#[must_use]
pub const fn iomap_table_offset(n_slots: usize) -> usize {
    slot_offset(n_slots)
}

/// A range of the peer's memory that this end may write to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "rs_sge")]
pub struct RemoteSge {
    /// Where it starts.
    pub addr: RemoteAddr,
    /// The key of its region.
    pub key: RKey,
    /// Bytes; in [`ConnData::target_sgl`](super::ConnData::target_sgl) entries of the table.
    pub len: u32,
}

impl RemoteSge {
    /// As a table entry. `swap` is set when the owner of the table has the other byte order.
    #[must_use]
    pub fn to_table_bytes(self, swap: bool) -> [u8; TABLE_ENTRY] {
        let (addr, key, len) = (self.addr.0, self.key.0, self.len);
        zerocopy::transmute!(if swap {
            TableEntry { addr: addr.swap_bytes(), key: key.swap_bytes(), len: len.swap_bytes() }
        } else {
            TableEntry { addr, key, len }
        })
    }

    /// From an entry of a local table.
    #[must_use]
    pub fn from_table_bytes(bytes: &[u8; TABLE_ENTRY]) -> Self {
        let entry: TableEntry = zerocopy::transmute!(*bytes);
        Self { addr: RemoteAddr(entry.addr), key: RKey(entry.key), len: entry.len }
    }

    /// The entry in a slot of the local table that held [`EMPTY_SLOT`]; `None` while all of it is
    /// not there, and for an entry of length zero.
    ///
    /// A device may be writing the entry of a message that has not arrived yet, and writes it in
    /// pieces: its bytes upwards, or words of eight bytes in any order. So read the upper eight
    /// bytes first.
    #[must_use]
    pub fn from_slot(bytes: &[u8; TABLE_ENTRY]) -> Option<Self> {
        let sge = Self::from_table_bytes(bytes);
        let is_whole = sge.addr.0 != u64::MAX && sge.len <= MAX_BUF_LEN;
        (is_whole && sge.len != 0).then_some(sge)
    }

    /// Whether it ends inside the address space.
    pub(super) const fn is_in_address_space(&self) -> bool {
        self.addr.0.checked_add(self.len as u64).is_some()
    }
}

/// Longest buffer that an entry announces: the last byte of its length, in memory order on
/// little-endian hosts, differs from [`EMPTY_SLOT`].
const MAX_BUF_LEN: u32 = 0xFEFF_FFFF;

// WIRE: key before length; native order of the table's owner.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct TableEntry {
    addr: u64,
    key: u32,
    len: u32,
}

const _: () = {
    assert!(size_of::<TableEntry>() == TABLE_ENTRY);
    assert!(std::mem::offset_of!(TableEntry, addr) == 0);
    assert!(std::mem::offset_of!(TableEntry, key) == 8);
    assert!(std::mem::offset_of!(TableEntry, len) == 12);
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SGE: RemoteSge =
        RemoteSge { addr: RemoteAddr(0x0102_0304_0506_0708), key: RKey(0x1112_1314), len: 0x2122 };
    const BIG: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0, 0, 0x21, 0x22];
    const LITTLE: [u8; 16] = [8, 7, 6, 5, 4, 3, 2, 1, 0x14, 0x13, 0x12, 0x11, 0x22, 0x21, 0, 0];

    #[test]
    fn an_entry_has_the_byte_order_of_the_tables_owner() {
        let (native, foreign) =
            if cfg!(target_endian = "big") { (BIG, LITTLE) } else { (LITTLE, BIG) };
        assert_eq!(SGE.to_table_bytes(false), native);
        assert_eq!(SGE.to_table_bytes(true), foreign);
        assert_eq!(RemoteSge::from_table_bytes(&native), SGE);
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn an_entry_that_is_not_all_there_is_none() {
        for len in [1, 0xFF, 0x0801, 0x0001_2345, 0x00FF_FFFF, MAX_BUF_LEN] {
            let sge = RemoteSge { len, ..SGE };
            let bytes = sge.to_table_bytes(false);
            let mut slot = EMPTY_SLOT;
            for (i, byte) in bytes.into_iter().enumerate() {
                assert_eq!(RemoteSge::from_slot(&slot), None, "{i} bytes of {sge:?}");
                slot[i] = byte;
            }
            assert_eq!(RemoteSge::from_slot(&slot), Some(sge));
            let mut slot = EMPTY_SLOT;
            slot[8..].copy_from_slice(&bytes[8..]);
            assert_eq!(RemoteSge::from_slot(&slot), None, "the second word alone of {sge:?}");
        }
    }

    #[test]
    fn an_entry_of_no_bytes_or_of_too_many_is_none() {
        for len in [0, MAX_BUF_LEN + 1, u32::MAX] {
            let bytes = RemoteSge { len, ..SGE }.to_table_bytes(false);
            assert_eq!(RemoteSge::from_slot(&bytes), None, "{len:#x}");
        }
    }

    proptest! {
        #[test]
        fn entries_survive_the_table(addr: u64, key: u32, len: u32) {
            let sge = RemoteSge { addr: RemoteAddr(addr), key: RKey(key), len };
            prop_assert_eq!(RemoteSge::from_table_bytes(&sge.to_table_bytes(false)), sge);
        }
    }
}
