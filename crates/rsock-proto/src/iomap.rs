//! iomaps: buffers that each end opens to the other, for writes that no message announces.
//!
//! The side that calls `riomap` fills a 24-byte entry in the *other* side's table, which lies right
//! behind that side's table of announced buffers; the owner of the table then writes (`riowrite`)
//! into the buffers it finds there. The engine copies an entry out of its table when the message
//! about it arrives and keeps the copy: what the peer may write is never used in place.
//!
//! # Source
//! rdma-core v64.0, librdmacm/rsocket.c: `struct rs_iomap`, `rs_send_iomaps`, `rs_find_iomap`,
//! `riomap`, `riounmap`, `riowrite`.

use super::conn_data::{ConnData, ConnFlags, iomap_size_from_wire};
use super::error::PeerError;
use super::imm::Imm;
use super::sgl::iomap_table_offset;
use rsock_verbs::{RKey, RemoteAddr};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Size of an iomap table entry, in bytes.
pub const IOMAP_ENTRY: usize = 24;

/// A buffer of the peer that this end may write to, under the name `offset`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "rs_iomap")]
pub struct IomapEntry {
    /// The application's name for the buffer's first byte; the following bytes count up.
    pub offset: u64,
    /// Where the buffer is at the peer.
    pub addr: RemoteAddr,
    /// The key of its region.
    pub rkey: RKey,
    /// Bytes; 0 in an entry that is not used.
    pub len: u32,
}

/// Where a write to an iomap goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IomapTarget {
    /// Address at the peer.
    pub remote: RemoteAddr,
    /// Its key.
    pub rkey: RKey,
    /// Bytes that fit, at least one and at most as many as were asked for.
    pub len: u32,
}

impl IomapEntry {
    /// As an entry of a table. `swap` is set when its owner has the other byte order.
    #[must_use]
    pub fn to_table_bytes(self, swap: bool) -> [u8; IOMAP_ENTRY] {
        let wire =
            WireIomap { offset: self.offset, addr: self.addr.0, key: self.rkey.0, len: self.len };
        zerocopy::transmute!(if swap { wire.swapped() } else { wire })
    }

    /// From an entry of a local table.
    #[must_use]
    pub fn from_table_bytes(bytes: &[u8; IOMAP_ENTRY]) -> Self {
        let wire: WireIomap = zerocopy::transmute!(*bytes);
        Self {
            offset: wire.offset,
            addr: RemoteAddr(wire.addr),
            rkey: RKey(wire.key),
            len: wire.len,
        }
    }

    /// Where the first of `want` bytes at `offset` go, if this entry covers that byte.
    #[inline]
    #[must_use]
    pub fn target(&self, offset: u64, want: usize) -> Option<IomapTarget> {
        let skip = offset.checked_sub(self.offset)?;
        let room = u64::from(self.len).checked_sub(skip)?;
        let len = u32::try_from(room.min(want as u64)).ok().filter(|len| *len != 0)?;
        Some(IomapTarget { remote: self.addr.wrapping_add(skip), rkey: self.rkey, len })
    }
}

/// Where `want` bytes at `offset` go: the first entry that covers the first byte. The write ends
/// with that entry; ask again for the rest.
///
/// COMPAT: an entry ends before `offset + len`. C takes that byte for part of it and then writes
/// nothing for ever.
#[must_use]
#[doc(alias = "rs_find_iomap")]
pub fn lookup(table: &[IomapEntry], offset: u64, want: usize) -> Option<IomapTarget> {
    table.iter().find_map(|entry| entry.target(offset, want))
}

/// The entry of the local table of `n_entries` that an iomap message is about.
///
/// # Errors
/// [`PeerError::IomapIndex`] if there is no such entry.
pub fn checked_index(index: u32, n_entries: usize) -> Result<usize, PeerError> {
    usize::try_from(index).ok().filter(|i| *i < n_entries).ok_or(PeerError::IomapIndex(index))
}

/// The peer's iomap table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteIomap {
    addr: RemoteAddr,
    rkey: RKey,
    n_entries: u16,
    swap: bool,
}

/// One iomap message: a write with immediate of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IomapWrite {
    /// Where the entry goes.
    pub remote: RemoteAddr,
    /// The key of the peer's table.
    pub rkey: RKey,
    /// The entry.
    pub bytes: [u8; IOMAP_ENTRY],
    /// The word that announces it. It costs no credit, only a receive.
    pub imm: Imm,
}

impl RemoteIomap {
    /// The table of a peer, `None` when it offers none.
    ///
    /// # Errors
    /// [`PeerError::RangeWraps`] if the table does not end inside the address space.
    pub fn new(peer: &ConnData) -> Result<Option<Self>, PeerError> {
        let n_entries = iomap_size_from_wire(peer.target_iomap_size);
        if n_entries == 0 || !peer.flags.contains(ConnFlags::IOMAP) {
            return Ok(None);
        }
        let sgl = peer.target_sgl;
        let before = iomap_table_offset(1) as u64 * u64::from(sgl.len);
        let bytes = IOMAP_ENTRY as u64 * u64::from(n_entries);
        let addr = sgl.addr.0.checked_add(before).ok_or(PeerError::RangeWraps)?;
        addr.checked_add(bytes).ok_or(PeerError::RangeWraps)?;
        Ok(Some(Self { addr: RemoteAddr(addr), rkey: sgl.key, n_entries, swap: peer.swaps() }))
    }

    /// Entries of the table.
    #[must_use]
    pub fn n_entries(&self) -> usize {
        self.n_entries.into()
    }

    /// The message that puts `entry` at `index`. An entry of length 0 takes a buffer back, which C
    /// never does but understands.
    ///
    /// # Panics
    /// If the table has no such entry: `index` is one that [`IomapSlots`] gave.
    #[must_use]
    pub fn write(&self, index: usize, entry: IomapEntry) -> IomapWrite {
        assert!(index < self.n_entries(), "no such iomap entry");
        #[expect(clippy::cast_possible_truncation, reason = "below n_entries, a u16")]
        let word = Imm::iomap(index as u32);
        IomapWrite {
            remote: self.addr.wrapping_add((index * IOMAP_ENTRY) as u64),
            rkey: self.rkey,
            bytes: entry.to_table_bytes(self.swap),
            imm: word,
        }
    }
}

/// Which entries of the peer's table this end uses: a view of one bit each, in words that the
/// engine owns.
#[derive(Debug)]
pub struct IomapSlots<'a> {
    words: &'a mut [u64],
    n_entries: usize,
}

impl<'a> IomapSlots<'a> {
    /// Words needed for `n_entries`.
    #[must_use]
    pub const fn n_words(n_entries: usize) -> usize {
        n_entries.div_ceil(64)
    }

    /// A view of `words`, all zero at first. As many entries as fit the words, if that is fewer.
    #[must_use]
    pub fn new(words: &'a mut [u64], n_entries: usize) -> Self {
        let n_entries = n_entries.min(words.len().saturating_mul(64));
        Self { words, n_entries }
    }

    /// Takes the first free entry; `None` when all are taken (`ENOMEM`).
    pub fn allocate(&mut self) -> Option<usize> {
        let (at, word) = self.words.iter_mut().enumerate().find(|(_, word)| **word != u64::MAX)?;
        let bit = word.trailing_ones() as usize;
        let index = at * 64 + bit;
        if index >= self.n_entries {
            return None;
        }
        *word |= 1 << bit;
        Some(index)
    }

    /// Gives an entry back; false if it was not taken.
    pub fn release(&mut self, index: usize) -> bool {
        let Some(word) = self.words.get_mut(index / 64) else { return false };
        let bit = 1 << (index % 64);
        let was_taken = *word & bit != 0;
        *word &= !bit;
        was_taken
    }
}

// WIRE: native order of the table's owner.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct WireIomap {
    offset: u64,
    addr: u64,
    key: u32,
    len: u32,
}

impl WireIomap {
    fn swapped(&self) -> Self {
        Self {
            offset: self.offset.swap_bytes(),
            addr: self.addr.swap_bytes(),
            key: self.key.swap_bytes(),
            len: self.len.swap_bytes(),
        }
    }
}

const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<WireIomap>() == IOMAP_ENTRY);
    assert!(offset_of!(WireIomap, offset) == 0);
    assert!(offset_of!(WireIomap, addr) == 8);
    assert!(offset_of!(WireIomap, key) == 16);
    assert!(offset_of!(WireIomap, len) == 20);
};
