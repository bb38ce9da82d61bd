//! The metrics that `rsock stat` shows: one table of counters per process, in a memfd that other
//! processes read through `/proc/PID/fd` without waking its owner.
//!
//! The layout below is shared between a process and readers of any later build, so it is versioned
//! and every offset is asserted. [`StreamSlot`] and [`UdpSlot`] write it, [`read_process`] reads
//! it. The writer never waits and takes no other process's word: no lock, no allocation, relaxed
//! stores only. If the table cannot be created, nothing is counted.

mod bytes;
mod datagrams;
mod fallback_reason;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod reader;
mod writer;

use rsock_verbs::rdma::UsageBoard;
use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

pub use datagrams::{DatagramEvent, ReceivePath, UdpSlot, UdpSocketMetrics};
pub use fallback_reason::FallbackReason;
pub use reader::{DirectionCounters, Process, StreamMetrics, read_all, read_process};
pub use writer::{Direction, StreamSlot, descriptor};

/// Name given to `memfd_create(2)`; `/proc/PID/fd` shows it as `/memfd:rsock-stat (deleted)`.
pub const MEMFD_NAME: &str = "rsock-stat";
/// Sockets that one process can show; further ones are only counted.
pub const N_SLOTS: u32 = 1024;

const MAGIC: u64 = u64::from_be_bytes(*b"rsockst\0");
const VERSION: u32 = 1;
/// Bytes before the first slot.
const SLOTS_AT: usize = 4096;
const SLOT_LEN_WORD: u32 = 192;
const SLOT_LEN: usize = SLOT_LEN_WORD as usize;
const TABLE_LEN: usize = SLOTS_AT + N_SLOTS as usize * SLOT_LEN;

/// The transport of one direction's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Transport {
    /// The kernel's TCP.
    Tcp = 0,
    /// Shared memory on this host.
    Soft = 1,
    /// An RDMA device.
    Rdma = 2,
}

impl Transport {
    /// Every transport, in the order of the counters.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Soft, Self::Rdma];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|transport| *transport as u8 == byte)
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Soft => "soft",
            Self::Rdma => "rdma",
        })
    }
}

/// First bytes of the table.
#[repr(C)]
struct RawHeader {
    magic: AtomicU64,
    version: AtomicU32,
    /// The process that owns the table, by the id that it sees. A forked child still has its
    /// parent's table.
    pid: AtomicU32,
    n_slots: AtomicU32,
    slot_len: AtomicU32,
    /// Sockets that found no free slot, since the start.
    n_dropped: AtomicU64,
    /// The process's objects on RDMA devices; zero in tables of older builds.
    rdma: UsageBoard,
}

/// One connection: a cache line that identifies it, and one of counters for each direction.
#[repr(C, align(64))]
struct RawSlot {
    /// Bits 1:0 are one of the `STATE_` values, the rest counts uses of this slot.
    seq: AtomicU32,
    tx_transport: AtomicU8,
    rx_transport: AtomicU8,
    /// A [`FallbackReason`].
    fallback: AtomicU8,
    /// Reserved, zero.
    flags: AtomicU8,
    /// IPv6 addresses in network order; IPv4 ones are mapped.
    local: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    /// Local port in the upper half, the peer's in the lower.
    ports: AtomicU32,
    /// The peer's process if it is known to be on this host, else 0.
    peer_pid: AtomicU32,
    /// Inode of the kernel socket.
    inode: AtomicU64,
    /// Keepalive probes sent on an RDMA device; zero in tables of older builds.
    probes: AtomicU64,
    tx: RawCounters,
    rx: RawCounters,
}

#[repr(C, align(64))]
struct RawCounters {
    /// Indexed by [`Transport`].
    bytes: [AtomicU64; 3],
    wakeups: AtomicU64,
    spins: AtomicU64,
}

/// The slot of a UDP socket. The fields that it shares with [`RawSlot`] have the same offsets.
#[repr(C, align(64))]
struct RawUdpSlot {
    seq: AtomicU32,
    receives: AtomicU8,
    /// Reserved, zero.
    spare: AtomicU8,
    fallback: AtomicU8,
    flags: AtomicU8,
    local: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    ports: AtomicU32,
    n_queue_peers: AtomicU32,
    inode: AtomicU64,
    n_kernel_peers: AtomicU32,
    spare_too: AtomicU32,
    /// Indexed by [`DatagramEvent`]. Each direction has a cache line of its own.
    counts: [AtomicU64; N_DATAGRAM_COUNTS],
}

/// Counters of a [`RawUdpSlot`].
const N_DATAGRAM_COUNTS: usize = 16;

const STATE_MASK: u32 = 3;
const STATE_FREE: u32 = 0;
const STATE_OPENING: u32 = 1;
const STATE_LIVE: u32 = 2;
/// Live, and a [`UdpSlot`]: builds that do not know this state ignore the slot.
const STATE_DATAGRAMS: u32 = 3;
/// Added to `seq` at each use of a slot.
const SEQ_STEP: u32 = 4;

const _: () = {
    assert!(size_of::<RawHeader>() <= SLOTS_AT);
    assert!(offset_of!(RawHeader, version) == 8);
    assert!(offset_of!(RawHeader, pid) == 12);
    assert!(offset_of!(RawHeader, n_slots) == 16);
    assert!(offset_of!(RawHeader, slot_len) == 20);
    assert!(offset_of!(RawHeader, n_dropped) == 24);
    assert!(offset_of!(RawHeader, rdma) == 32 && size_of::<UsageBoard>() == 32);
    assert!(size_of::<RawSlot>() == SLOT_LEN);
    assert!(offset_of!(RawSlot, tx_transport) == 4);
    assert!(offset_of!(RawSlot, local) == 8);
    assert!(offset_of!(RawSlot, peer) == 24);
    assert!(offset_of!(RawSlot, ports) == 40);
    assert!(offset_of!(RawSlot, peer_pid) == 44);
    assert!(offset_of!(RawSlot, inode) == 48);
    assert!(offset_of!(RawSlot, probes) == 56);
    assert!(offset_of!(RawSlot, tx) == 64);
    assert!(offset_of!(RawSlot, rx) == 128);
    assert!(offset_of!(RawCounters, wakeups) == 24);
    assert!(offset_of!(RawCounters, spins) == 32);
};

const _: () = {
    assert!(size_of::<RawUdpSlot>() == SLOT_LEN);
    assert!(align_of::<RawUdpSlot>() == align_of::<RawSlot>());
    assert!(offset_of!(RawUdpSlot, fallback) == offset_of!(RawSlot, fallback));
    assert!(offset_of!(RawUdpSlot, local) == offset_of!(RawSlot, local));
    assert!(offset_of!(RawUdpSlot, peer) == offset_of!(RawSlot, peer));
    assert!(offset_of!(RawUdpSlot, ports) == offset_of!(RawSlot, ports));
    assert!(offset_of!(RawUdpSlot, inode) == offset_of!(RawSlot, inode));
    assert!(offset_of!(RawUdpSlot, n_kernel_peers) == 56);
    assert!(offset_of!(RawUdpSlot, counts) == 64);
};

#[cfg(test)]
mod tests;
