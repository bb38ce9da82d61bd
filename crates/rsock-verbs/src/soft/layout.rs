//! The layout of a segment, and the encoding of a slot's entry.
//!
//! A segment belongs to one process and is written by exactly one other. Both map it, at different
//! addresses, so everything in it is an offset.
//!
//! WIRE: both processes must agree on every size and offset here; [`VERSION`] changes with them.

use crate::sync::copy_guard::CopyGuard;
use crate::sync::ready_set::ReadySet;
use crate::sync::room_request::RoomRequest;
use crate::sync::slot::Slot;
use crate::sync::versioned_words::VersionedWords;
use crate::sync::waiter::WaitLine;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// Layout version, exchanged in the handshake.
pub(super) const VERSION: u32 = 8;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// Granule of big allocations.
pub(super) const PAGE: u64 = 4096;
/// Regions of one segment.
pub(super) const REGIONS: u32 = 1 << 16;
/// Queue pairs of one process; the low bits of a queue pair number.
pub(super) const QPS: u32 = 1 << 16;
/// Entries of a connection table.
pub(super) const CONNECTIONS: u32 = 256;
/// Words of 64 bits in one of them.
pub(super) const CONNECTION_WORDS: usize = 13;

pub(super) const REGION_TABLE: u64 = PAGE;
pub(super) const QP_TABLE: u64 = REGION_TABLE + REGIONS as u64 * size_of::<RegionEntry>() as u64;
/// The connection table: see [`super::connection_table`].
pub(super) const CONNECTION_TABLE: u64 = QP_TABLE + QPS as u64 * size_of::<QpEntry>() as u64;
/// Where allocations begin.
pub(super) const DATA: u64 =
    CONNECTION_TABLE + CONNECTIONS as u64 * size_of::<ConnectionWords>() as u64;

/// Flag beside a queue pair's access bits: the queue takes datagrams. Its lane has no capacities;
/// the entry has the Q_Key in their place, and the count of receives in the lane's head is 1 while
/// the queue is open.
pub(super) const DATAGRAMS: u32 = 1 << 30;

/// Bytes of a lane's stage, where datagrams lie that do not fit a slot; streams leave it untouched.
/// This is the minimum; a power of two, as is [`MAX_STAGE`].
pub(super) const STAGE: u32 = 64 << 10;
pub(super) const MAX_STAGE: u32 = 4 << 20;
/// Most payload of one staged entry.
pub(super) const MAX_STAGED: u32 = 16 << 10;
/// Longest payload of one SEND of a stream: it lies in its slot.
pub(super) const MAX_SEND: u32 = 48;
/// Longest payload of one RDMA WRITE.
pub(super) const MAX_WRITE: u32 = 1 << 30;
/// Fewest and most slots of a lane.
pub(super) const MIN_SLOTS: u32 = 64;
pub(super) const MAX_SLOTS: u32 = 1 << 16;

/// Bytes that a datagram of `len` bytes takes up on the stage: whole cache lines, so that each one
/// begins with a line.
pub(super) fn staged_len(len: u64) -> u64 {
    len.next_multiple_of(LINE as u64)
}

/// An entry of a connection table. Written by the segment's owner, read by the peer.
pub(super) type ConnectionWords = VersionedWords<CONNECTION_WORDS>;

/// Types that may be used in place in memory that another process writes.
///
/// # Safety
/// Made of atomics only: every bit pattern is valid, and foreign stores are not data races.
pub(super) unsafe trait PeerWritable: Sync {}

// SAFETY: an atomic.
unsafe impl PeerWritable for AtomicU32 {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for Header {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for Slot {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for ConnectionWords {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for WaitLine {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for ReadySet {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for LaneHead {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for RegionEntry {}
// SAFETY: all fields are atomics.
unsafe impl PeerWritable for QpEntry {}

/// Front of a segment.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Header {
    /// Whether the peer can write this process's foreign memory. Written by the peer.
    pub(super) foreign: AtomicU32,
}

/// A region that the peer may name. Written by the segment's owner, read by the peer.
#[repr(C)]
#[derive(Debug)]
pub(super) struct RegionEntry {
    /// Remote key, or 0. Stored last, cleared first.
    pub(super) key: AtomicU32,
    /// [`Access`](crate::Access) bits, and [`FOREIGN`].
    pub(super) access: AtomicU32,
    /// Its offset in the segment; unused for foreign memory.
    pub(super) offset: AtomicU64,
    pub(super) len: AtomicU64,
    /// Virtual address of its first byte in the owner's process.
    pub(super) addr: AtomicU64,
}

/// Region flag: ordinary memory of the owner, outside the segment.
pub(super) const FOREIGN: u32 = 1 << 31;

/// A queue pair that the peer may connect to. Written by the owner, read by the peer when it
/// connects.
#[repr(C, align(64))]
#[derive(Debug)]
pub(super) struct QpEntry {
    /// Number, or 0. Stored last, cleared first.
    pub(super) number: AtomicU32,
    /// Slots of its lane, a power of two.
    pub(super) slots: AtomicU32,
    /// What the peer may do.
    pub(super) access: AtomicU32,
    /// Entries of the table at `caps`, a power of two, or 0.
    pub(super) n_caps: AtomicU32,
    /// [`LaneHead`].
    pub(super) head_at: AtomicU64,
    /// The slots, then the stage.
    pub(super) slots_at: AtomicU64,
    /// Byte capacity of each posted receive, `u32` each: what a SEND may carry.
    pub(super) caps_at: AtomicU64,
    /// [`WaitLine`] of its pollers.
    pub(super) wait_at: AtomicU64,
    /// Bytes of the stage, a power of two.
    pub(super) stage: AtomicU32,
}

/// Front of a receive lane.
#[repr(C)]
#[derive(Debug)]
pub(super) struct LaneHead {
    pub(super) consumer: ConsumerLine,
    pub(super) producer: ProducerLine,
    pub(super) copier: CopierLine,
}

/// Bytes of a [`WaitLine`], to be allocated.
pub(super) const WAIT_LINE: u64 = size_of::<WaitLine>() as u64;
/// Bytes of a [`LaneHead`], to be allocated.
pub(super) const LANE_HEAD: u64 = size_of::<LaneHead>() as u64;

/// Written by the lane's owner, read by its sender when it runs short.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct ConsumerLine {
    /// Entries taken.
    pub(super) head: AtomicU32,
    /// Receives posted.
    pub(super) posted: AtomicU32,
    /// Staged bytes taken.
    pub(super) stage_head: AtomicU64,
    /// Received bytes that the program has consumed; the device itself does not use this.
    pub(super) consumed: AtomicU64,
}

/// Written by the lane's sender, read by its owner.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct ProducerLine {
    /// 0 at first; the sender's queue pair number once it has connected; [`REVOKED`] if the owner
    /// closed the lane before.
    pub(super) claim: AtomicU32,
    /// Not 0 once the sender's queue pair is in the error state.
    pub(super) closed: AtomicU32,
    /// Not 0 once the sender will never touch this lane or its wait lines again.
    pub(super) detached: AtomicU32,
    /// Set while the sender waits for room or for a receive.
    pub(super) room_request: RoomRequest,
}

/// Written by the lane's sender with every entry, read by its owner when memory is given back: on a
/// cache line of its own, apart from those that are read more often.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct CopierLine {
    /// Begun while the sender writes into a region or into the lane.
    pub(super) guard: CopyGuard,
}

pub(super) const REVOKED: u32 = u32::MAX;

const _: () = assert!(size_of::<Slot>() == 64);
const _: () = assert!((MIN_SLOTS as u64 * size_of::<Slot>() as u64).is_multiple_of(PAGE));
const _: () = assert!(MAX_SEND as usize == crate::sync::slot::INLINE);
const _: () = assert!(WAIT_LINE == 128);
const _: () = assert!(LANE_HEAD == 384);
const _: () = assert!(cfg!(all(test, loom)) || size_of::<ReadySet>() as u64 == PAGE);
const _: () = assert!(size_of::<RegionEntry>() == 32);
const _: () = assert!(size_of::<QpEntry>() == 64);
const _: () = assert!(size_of::<ConnectionWords>() == 128);
const _: () = assert!(DATA.is_multiple_of(PAGE));

/// A decoded slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// WRITE WITH IMMEDIATE whose payload of `len` bytes rides in the slot and goes to segment
    /// offset `at`.
    WriteImmInline { at: u64, len: u32 },
    /// WRITE WITH IMMEDIATE whose payload is in place.
    WriteImm { len: u32 },
    /// All of a SEND, in the slot.
    SendInline { len: u32 },
    /// A datagram, in the stage: at most [`MAX_STAGED`] bytes, and never empty.
    SendStaged { len: u32 },
    /// A SEND whose payload does not fit its receive; nothing follows.
    SendTooLong,
}

const OP_WRITE_IMM_INLINE: u64 = 1;
const OP_WRITE_IMM: u64 = 2;
const OP_SEND_INLINE: u64 = 3;
const OP_SEND_STAGED: u64 = 5;
const OP_SEND_TOO_LONG: u64 = 6;

impl Entry {
    /// Low 8 bits operation, 8 bits inline length, 48 bits offset; or 32 bits length from bit 16.
    #[inline(always)]
    pub(super) fn encode(self) -> u64 {
        match self {
            Self::WriteImmInline { at, len } => {
                OP_WRITE_IMM_INLINE | u64::from(len) << 8 | at << 16
            }
            Self::WriteImm { len } => OP_WRITE_IMM | u64::from(len) << 16,
            Self::SendInline { len } => OP_SEND_INLINE | u64::from(len) << 8,
            Self::SendStaged { len } => OP_SEND_STAGED | u64::from(len) << 16,
            Self::SendTooLong => OP_SEND_TOO_LONG,
        }
    }

    /// `None` for a word that no honest sender writes. Offsets are not checked here.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "masked")]
    pub(super) fn decode(word: u64) -> Option<Self> {
        let inline = (word >> 8 & 0xff) as u32;
        let len = (word >> 16) as u32;
        match word & 0xff {
            OP_WRITE_IMM_INLINE if inline as usize <= crate::sync::slot::INLINE => {
                Some(Self::WriteImmInline { at: word >> 16, len: inline })
            }
            OP_WRITE_IMM => Some(Self::WriteImm { len }),
            OP_SEND_INLINE if inline as usize <= crate::sync::slot::INLINE => {
                Some(Self::SendInline { len: inline })
            }
            OP_SEND_STAGED if len != 0 && len <= MAX_STAGED => Some(Self::SendStaged { len }),
            OP_SEND_TOO_LONG => Some(Self::SendTooLong),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_survive_encoding(at in 0u64..1 << 48, len in 0u32..=48, n in 1u32..=MAX_STAGED) {
            for e in [
                Entry::WriteImmInline { at, len },
                Entry::WriteImm { len: n },
                Entry::SendInline { len },
                Entry::SendStaged { len: n },
                Entry::SendTooLong,
            ] {
                prop_assert_eq!(Entry::decode(e.encode()), Some(e));
            }
        }

        #[test]
        fn any_word_decodes_within_its_limits(word: u64) {
            match Entry::decode(word) {
                Some(Entry::WriteImmInline { at, len }) => prop_assert!(len <= 48 && at < 1 << 48),
                Some(Entry::SendInline { len }) => prop_assert!(len <= 48),
                Some(Entry::SendStaged { len }) => prop_assert!((1..=MAX_STAGED).contains(&len)),
                Some(Entry::WriteImm { .. } | Entry::SendTooLong) | None => {}
            }
        }
    }
}
