//! Where each direction of a twin is, in memory shared with forked children.

use crate::accelerate::FallbackReason;
use crate::accelerate::handoff::holders::Holders;
use rsock_verbs::family::{FamilySafe, Lock};
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use std::time::Instant;

/// What the sending direction writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TxMode {
    /// The kernel's TCP socket.
    Tcp,
    /// The ring.
    Ring,
    /// Nothing, until the peer's device has taken what we sent on the ring, the last word included:
    /// what TCP brings must not overtake it. Between hosts only; it takes no call of the peer's.
    Leaving,
}

/// State of the sending direction, behind its lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tx {
    pub(super) mode: TxMode,
    /// Bytes that we wrote to TCP.
    pub(super) tcp_bytes: u64,
    /// Bytes that we wrote to the ring.
    pub(super) ring_bytes: u64,
    /// Calls so far; looking for the peer follows them.
    pub(super) calls: u32,
    /// Since when the ring has been full without progress.
    pub(super) full_since: Option<Instant>,
    /// In `Leaving`: since when.
    pub(super) leaving_since: Option<Instant>,
    /// When a sender on the ring last looked at the socket ([`crate::sys::tick`]), as each does first in a tick.
    pub(super) looked_at: u32,
    /// When the last byte was sent on the ring, on the same clock.
    pub(super) sent_at: u32,
    /// Of `ring_bytes`, those that had been sent when somebody looked, and the peer had not ended.
    pub(super) met_bytes: u64,
}

/// What the receiving direction reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RxMode {
    /// The kernel's TCP socket; the peer may not use the ring.
    Tcp,
    /// TCP still, but the peer has been told that it may move.
    Invited,
    /// The rest of TCP up to the offset at which the peer moved; then the ring.
    Clamped,
    /// The ring.
    Ring,
}

/// State of the receiving direction, behind its lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rx {
    pub(super) mode: RxMode,
    /// Bytes that we read from TCP.
    pub(super) tcp_bytes: u64,
    /// Bytes that we read from the ring.
    pub(super) ring_bytes: u64,
    /// In `Clamped`: where TCP ends, counted as `tcp_bytes`.
    pub(super) limit: u64,
    pub(super) calls: u32,
    /// Empty-handed reads of the ring since somebody last looked at the socket.
    pub(super) idle_reads: u32,
    /// The peer said that it will not come to the ring.
    pub(super) is_declined: bool,
    /// We asked the peer to leave the ring.
    pub(super) has_asked: bool,
    /// Since when the socket has ended without an end on the ring.
    pub(super) ended_since: Option<Instant>,
}

/// Both directions, and what is read without a lock.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Directions {
    pub(super) tx: Line<Lock<Tx>>,
    pub(super) rx: Line<Lock<Rx>>,
    pub(super) shared: Line<Flags>,
    pub(super) holders: Line<Holders>,
}

/// What everybody reads and few write.
#[derive(Debug)]
pub(super) struct Flags {
    /// Bits of `FLAG_*`.
    bits: AtomicU32,
    /// The first [`FallbackReason`] given.
    reason: AtomicU8,
    /// Threads in a kernel wait for input that lacks the doorbell: no invitation meanwhile.
    pub(super) deaf_waiters: AtomicU32,
}

// SAFETY: locks around plain values and atomics; no pointer, reference or descriptor.
unsafe impl FamilySafe for Directions {}

/// Never move up (again).
pub(super) const FLAG_PINNED: u32 = 1;
/// The sending direction is on TCP and stays there.
pub(super) const FLAG_TX_PLAIN: u32 = 1 << 1;
/// The receiving direction is on TCP and stays there.
pub(super) const FLAG_RX_PLAIN: u32 = 1 << 2;
/// A path exists.
pub(super) const FLAG_PAIRED: u32 = 1 << 3;
/// We shut down our sending direction.
pub(super) const FLAG_TX_SHUT: u32 = 1 << 4;
/// We shut down our receiving direction.
pub(super) const FLAG_RX_SHUT: u32 = 1 << 7;
/// A stand-in is in somebody's epoll set.
pub(super) const FLAG_STANDIN: u32 = 1 << 6;
/// The last wait for input was a long one: watch descriptors at once.
pub(super) const FLAG_RX_SLEEPY: u32 = 1 << 5;

/// The path between hosts failed with bytes under way, and the connection with it.
pub(super) const FLAG_BROKEN: u32 = 1 << 8;

/// How the peer ended its direction is known: it is there still, or its reset has been told of.
pub(super) const FLAG_ENDED: u32 = 1 << 9;

/// Keeps a value on cache lines of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Line<T>(pub(super) T);

impl Directions {
    pub(super) fn new() -> Self {
        Self {
            tx: Line(Lock::new(Tx {
                mode: TxMode::Tcp,
                tcp_bytes: 0,
                ring_bytes: 0,
                calls: 0,
                full_since: None,
                leaving_since: None,
                looked_at: 0,
                sent_at: 0,
                met_bytes: 0,
            })),
            rx: Line(Lock::new(Rx {
                mode: RxMode::Tcp,
                tcp_bytes: 0,
                ring_bytes: 0,
                limit: 0,
                calls: 0,
                idle_reads: 0,
                is_declined: false,
                has_asked: false,
                ended_since: None,
            })),
            shared: Line(Flags {
                bits: AtomicU32::new(0),
                reason: AtomicU8::new(0),
                deaf_waiters: AtomicU32::new(0),
            }),
            holders: Line(Holders::new()),
        }
    }

    pub(super) fn has(&self, flag: u32) -> bool {
        self.shared.0.bits.load(Ordering::Acquire) & flag != 0
    }

    pub(super) fn has_all(&self, flags: u32) -> bool {
        self.shared.0.bits.load(Ordering::Acquire) & flags == flags
    }

    pub(super) fn lower(&self, flag: u32) {
        self.shared.0.bits.fetch_and(!flag, Ordering::AcqRel);
    }

    pub(super) fn raise(&self, flag: u32) {
        self.shared.0.bits.fetch_or(flag, Ordering::AcqRel);
    }

    /// Pins, and remembers the first reason.
    pub(super) fn pin(&self, reason: FallbackReason) {
        let _ = self.shared.0.reason.compare_exchange(
            0,
            reason as u8,
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        self.raise(FLAG_PINNED);
    }

    pub(super) fn pin_reason(&self) -> FallbackReason {
        FallbackReason::from_u8(self.shared.0.reason.load(Ordering::Acquire))
    }
}
