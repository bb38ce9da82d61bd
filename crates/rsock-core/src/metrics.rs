//! What `rsock stat` shows: one page-backed table of counters per process, in a memfd that others
//! read through `/proc/PID/fd` without waking its owner.
//!
//! The layout below is shared between a process and readers of any later build, so it is versioned
//! and every offset is asserted. [`Slot`] writes it, [`read_process`] reads it. The writer trusts
//! nobody and waits for nobody: no lock, no allocation, relaxed stores only, and a failure to make
//! the table merely means that nothing is counted.

mod datagrams;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
mod reader;
mod writer;

use crate::accelerate::FallbackReason;
use rsock_verbs::rdma::UsageBoard;
use std::fmt;
use std::mem::offset_of;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

pub use datagrams::{DatagramSocket, Datagrams, Happened, Receives};
pub use reader::{Connection, Counters, Process, read_all, read_process};
pub use writer::{Direction, Slot, descriptor};

/// Name given to `memfd_create(2)`; `/proc/PID/fd` shows it as `/memfd:rsock-stat (deleted)`.
pub const MEMFD_NAME: &str = "rsock-stat";
/// Connections that one process can show; further ones are only counted.
pub const N_SLOTS: u32 = 1024;

const MAGIC: u64 = u64::from_be_bytes(*b"rsockst\0");
const VERSION: u32 = 1;
/// Bytes before the first slot.
const SLOTS_AT: usize = 4096;
const SLOT_LEN_WORD: u32 = 192;
const SLOT_LEN: usize = SLOT_LEN_WORD as usize;
const TABLE_LEN: usize = SLOTS_AT + N_SLOTS as usize * SLOT_LEN;

/// How bytes of one direction travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Path {
    /// The kernel's TCP.
    Tcp = 0,
    /// Shared memory on this host.
    Soft = 1,
    /// An RDMA device.
    Rdma = 2,
}

impl Path {
    /// Every path, in the order of its counters.
    pub const ALL: [Self; 3] = [Self::Tcp, Self::Soft, Self::Rdma];

    fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|path| *path as u8 == byte)
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Tcp => "tcp",
            Self::Soft => "soft",
            Self::Rdma => "rdma",
        })
    }
}

/// A short sentence for the operator: why a stream stays on TCP.
#[must_use]
pub fn describe(reason: FallbackReason) -> &'static str {
    match reason {
        FallbackReason::None => "",
        FallbackReason::Epoll => "in an epoll set",
        FallbackReason::Fork => "inherited by a forked process",
        FallbackReason::Stdio => "wrapped in a stdio stream",
        FallbackReason::StandardStream => "is standard input, output or error",
        FallbackReason::Option => "a socket option only the kernel can honour",
        FallbackReason::Passed => "passed to another process",
        FallbackReason::Resources => "descriptors or memory nearly exhausted",
        FallbackReason::ForeignWriter => "bytes written behind rsock's back",
        FallbackReason::Untrusted => "the peer is another user or unverified",
        FallbackReason::NoPeer => "no rsock at the other end",
        FallbackReason::Remote => "the peer is on another host",
        FallbackReason::PathFailed => "the fast path failed",
        FallbackReason::Configured => "switched off by configuration",
        FallbackReason::NoTrust => "no key shared with the peer's host, and no rule that trusts it",
        FallbackReason::PlainRsockets => {
            "the peer speaks rsockets alone, so there is no TCP to go back to"
        }
        FallbackReason::IoUring => "the program uses an io_uring",
        FallbackReason::Sandbox => "the program restricts its own system calls",
        FallbackReason::Aio => "read or written by asynchronous I/O",
    }
}

fn pin_reason(byte: u8) -> Option<FallbackReason> {
    /// Every reason; [`describe`] stops compiling when one is added.
    const ALL: [FallbackReason; 19] = [
        FallbackReason::None,
        FallbackReason::Epoll,
        FallbackReason::Fork,
        FallbackReason::Stdio,
        FallbackReason::StandardStream,
        FallbackReason::Option,
        FallbackReason::Passed,
        FallbackReason::Resources,
        FallbackReason::ForeignWriter,
        FallbackReason::Untrusted,
        FallbackReason::NoPeer,
        FallbackReason::Remote,
        FallbackReason::PathFailed,
        FallbackReason::Configured,
        FallbackReason::NoTrust,
        FallbackReason::PlainRsockets,
        FallbackReason::IoUring,
        FallbackReason::Sandbox,
        FallbackReason::Aio,
    ];
    ALL.into_iter().find(|reason| *reason as u8 == byte)
}

/// First bytes of the table.
#[repr(C)]
struct RawHeader {
    magic: AtomicU64,
    version: AtomicU32,
    /// Process that owns the table, as it sees itself. A forked child still has its parent's.
    pid: AtomicU32,
    n_slots: AtomicU32,
    slot_len: AtomicU32,
    /// Connections that found no free slot, since the start.
    n_dropped: AtomicU64,
    /// What the process has on RDMA devices; zero in tables of older builds.
    rdma: UsageBoard,
}

/// One connection: a line that says which it is, and a line of counters for each direction.
#[repr(C, align(64))]
struct RawSlot {
    /// Bits 1:0 are one of the `STATE_` values, the rest counts uses of this slot.
    seq: AtomicU32,
    tx_path: AtomicU8,
    rx_path: AtomicU8,
    /// A [`FallbackReason`].
    pin: AtomicU8,
    /// Reserved, zero.
    flags: AtomicU8,
    /// IPv6 addresses in network order; IPv4 ones are mapped.
    local: [AtomicU64; 2],
    peer: [AtomicU64; 2],
    /// Local port in the upper half, the peer's in the lower.
    ports: AtomicU32,
    /// Process at the other end if it is known to be on this host, else 0.
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
    /// Indexed by [`Path`].
    bytes: [AtomicU64; 3],
    wakeups: AtomicU64,
    spins: AtomicU64,
}

const STATE_MASK: u32 = 3;
const STATE_FREE: u32 = 0;
const STATE_OPENING: u32 = 1;
const STATE_LIVE: u32 = 2;
/// Live, and a [`Datagrams`]: builds that do not know them take the line for none.
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
    assert!(offset_of!(RawSlot, tx_path) == 4);
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

#[cfg(test)]
mod tests;
