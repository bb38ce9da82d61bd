//! The state of each direction of an accelerated stream, in memory shared with forked children.

use crate::accelerate::FallbackReason;
use crate::accelerate::full_sends::FullSends;
use crate::accelerate::holders::Holders;
use rsock_proto::switch::{FlagConditions, Receiver, Sender};
use rsock_verbs::family::{FamilySafe, Lock};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

/// State of the sending direction, behind its lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    /// Whether the next byte goes to TCP or to the ring.
    pub(super) switch: Sender,
    /// Calls so far; the schedule of discovery counts them.
    pub(super) calls: u32,
    /// Since when the ring has been full without progress.
    pub(super) full_since: Option<Instant>,
    /// What the program has been told of full channels.
    pub(super) full_sends: FullSends,
    /// Since when the peer's device is to deliver what was sent, before TCP may be used.
    pub(super) leaving_since: Option<Instant>,
    /// When a sender on the ring last checked the socket, or found that it need not
    /// ([`crate::sys::tick`]): the first send of each tick does.
    pub(super) socket_checked_at: u32,
    /// When the last byte was sent on the ring, on the same clock.
    pub(super) sent_at: u32,
    /// [`Directions::n_answers`] as of the last send.
    pub(super) answers_seen: u32,
    /// Ring bytes sent as of the last check that found the peer open.
    pub(super) ring_bytes_checked: u64,
}

/// State of the receiving direction, behind its lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Receiving {
    /// Whether the next byte comes from TCP or from the ring.
    pub(super) switch: Receiver,
    pub(super) calls: u32,
    /// Reads of the ring that found nothing since the last check of the socket.
    pub(super) idle_reads: u32,
    /// Since when the socket has ended without an end on the ring.
    pub(super) ended_since: Option<Instant>,
}

/// Both directions, and what is read without a lock.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Directions {
    pub(super) tx: Line<Lock<Sending>>,
    pub(super) rx: Line<Lock<Receiving>>,
    pub(super) shared: Line<Flags>,
    pub(super) holders: Line<Holders>,
}

/// State that all calls read and few write.
#[derive(Debug)]
pub(super) struct Flags {
    pub(super) bits: FlagBits,
    /// The first [`FallbackReason`] given.
    reason: AtomicU8,
    /// Threads that sleep where the ring cannot wake them: the peer is not invited meanwhile.
    pub(super) kernel_only_waiters: AtomicU32,
    /// Sends that found no room and did not wait.
    pub(super) full_sends: AtomicU32,
    /// Of the peer's requests to leave the ring, the number that the sender has answered, as its
    /// switch counts them.
    pub(super) leaves_answered: AtomicU32,
    /// Receives that found nothing at first, and then something.
    n_answers: AtomicU32,
    /// The mark and the flags of the last look that found nothing: see [`super::quiet`].
    pub(super) quiet: AtomicU64,
}

// SAFETY: locks around plain values and atomics; no pointer, reference or descriptor.
unsafe impl FamilySafe for Directions {}

/// A path exists.
pub(super) const FLAG_HAS_PATH: u32 = FlagConditions::PAIRED.bits();
/// The stream never moves to the ring (again).
pub(super) const FLAG_PINNED: u32 = FlagConditions::PINNED.bits();
/// The program has shut down the sending direction.
pub(super) const FLAG_TX_SHUT: u32 = FlagConditions::SENDING_ENDED.bits();
/// The program has shut down the receiving direction.
pub(super) const FLAG_RX_SHUT: u32 = FlagConditions::RECEIVING_ENDED.bits();
/// The path between hosts failed with bytes under way, and the connection with it.
pub(super) const FLAG_BROKEN: u32 = FlagConditions::BROKEN.bits();

/// The flags that are conditions of the switch.
const CONDITIONS: u32 = FLAG_HAS_PATH | FLAG_PINNED | FLAG_TX_SHUT | FLAG_RX_SHUT | FLAG_BROKEN;

/// The sending direction is on TCP and stays there.
pub(super) const FLAG_TX_PLAIN: u32 = 1 << 16;
/// The receiving direction is on TCP and stays there.
pub(super) const FLAG_RX_PLAIN: u32 = 1 << 17;
/// An epoll proxy is in an epoll set of the program.
pub(super) const FLAG_EPOLL_PROXY: u32 = 1 << 18;
/// The last wait for input was a long one: the next one watches descriptors at once.
pub(super) const FLAG_RX_SLEEPY: u32 = 1 << 19;

/// It is known whether the peer ended its direction by a reset: it did not, or its reset has been
/// reported.
pub(super) const FLAG_ENDED: u32 = 1 << 20;

/// A call has reported that the connection is over (`ECONNRESET`, `EPIPE`). The ring may still be
/// open for a moment, so that later calls ask the kernel: a send fails, and a read of an empty ring
/// finds the end, as on TCP.
pub(super) const FLAG_RESET: u32 = 1 << 21;

/// An epoll set of the program watches the stream by the kernel alone: neither direction moves to
/// the ring.
pub(super) const FLAG_HELD_ON_TCP: u32 = 1 << 22;

/// The last receive that found nothing was one that waits.
pub(super) const FLAG_RX_WAITS: u32 = 1 << 23;

/// The last send that found no room was one that waits.
pub(super) const FLAG_TX_WAITS: u32 = 1 << 24;

/// The last `poll` or `select` that named the stream asked for room too.
pub(super) const FLAG_POLLED_FOR_ROOM: u32 = 1 << 25;

/// An epoll set of the program watches the stream for room too.
pub(super) const FLAG_WATCHED_FOR_ROOM: u32 = 1 << 26;

/// The caller waits for room after each send that finds none.
pub(super) const FLAG_WAITS_FOR_ROOM: u32 = 1 << 27;

const _: () = assert!(CONDITIONS < FLAG_TX_PLAIN);

/// Bits of `FLAG_*`.
#[derive(Debug)]
pub(super) struct FlagBits(AtomicU32);

impl FlagBits {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    #[inline]
    pub(super) fn has(&self, flag: u32) -> bool {
        self.0.load(Ordering::Acquire) & flag != 0
    }

    pub(super) fn raise(&self, flag: u32) {
        self.0.fetch_or(flag, Ordering::AcqRel);
    }

    pub(super) fn lower(&self, flag: u32) {
        self.0.fetch_and(!flag, Ordering::AcqRel);
    }
}

/// Keeps a value on cache lines of its own.
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct Line<T>(pub(super) T);

/// What has gone through a socket before it was adopted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Before {
    /// Calls, of both directions.
    pub calls: u64,
    /// Bytes.
    pub sent: u64,
    /// Bytes.
    pub received: u64,
}

impl Directions {
    /// Goes on after what the caller has done with the socket.
    pub(super) fn go_on_after(&self, before: Before) {
        // Each direction counts its own calls, and begins to search after some of them.
        let calls = u32::try_from(before.calls.div_ceil(2)).unwrap_or(u32::MAX);
        let mut tx = self.tx.0.lock();
        (tx.switch, tx.calls) = (Sender::after(before.sent), calls);
        drop(tx);
        let mut rx = self.rx.0.lock();
        (rx.switch, rx.calls) = (Receiver::after(before.received), calls);
    }

    pub(super) fn new() -> Self {
        Self {
            tx: Line(Lock::new(Sending {
                switch: Sender::new(),
                calls: 0,
                full_since: None,
                full_sends: FullSends::default(),
                leaving_since: None,
                socket_checked_at: 0,
                sent_at: 0,
                answers_seen: 0,
                ring_bytes_checked: 0,
            })),
            rx: Line(Lock::new(Receiving {
                switch: Receiver::new(),
                calls: 0,
                idle_reads: 0,
                ended_since: None,
            })),
            shared: Line(Flags {
                bits: FlagBits::new(),
                reason: AtomicU8::new(0),
                kernel_only_waiters: AtomicU32::new(0),
                full_sends: AtomicU32::new(0),
                leaves_answered: AtomicU32::new(0),
                n_answers: AtomicU32::new(0),
                quiet: AtomicU64::new(0),
            }),
            holders: Line(Holders::new()),
        }
    }

    /// The conditions of the switch that the flags mean.
    #[inline]
    pub(super) fn conditions(&self) -> FlagConditions {
        FlagConditions::of_bits(self.flags() & CONDITIONS)
    }

    #[inline]
    pub(super) fn has(&self, flag: u32) -> bool {
        self.shared.0.bits.has(flag)
    }

    /// Counts a receive that found nothing at first, and then something. The caller holds the lock
    /// of the receiving direction.
    #[inline]
    pub(super) fn note_answer(&self) {
        let n = self.n_answers().wrapping_add(1);
        self.shared.0.n_answers.store(n, Ordering::Relaxed);
    }

    /// What [`Self::note_answer`] has counted, wrapping.
    #[inline]
    pub(super) fn n_answers(&self) -> u32 {
        self.shared.0.n_answers.load(Ordering::Relaxed)
    }

    /// All flags.
    #[inline]
    pub(super) fn flags(&self) -> u32 {
        self.shared.0.bits.0.load(Ordering::Acquire)
    }

    pub(super) fn has_all(&self, flags: u32) -> bool {
        self.flags() & flags == flags
    }

    pub(super) fn lower(&self, flag: u32) {
        self.shared.0.bits.lower(flag);
    }

    pub(super) fn raise(&self, flag: u32) {
        self.shared.0.bits.raise(flag);
    }

    /// Notes that the kernel alone serves a direction.
    pub(super) fn raise_plain(&self, flag: u32) {
        self.raise(flag);
        // A thread that breaks the connection off raises that flag first, then lowers this one. All
        // are bits of one word, so one of the two threads sees what the other has done.
        if flag == FLAG_RX_PLAIN && self.has(FLAG_BROKEN) {
            self.lower(flag);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receiving_from_a_broken_connection_is_not_left_to_the_kernel() {
        let dirs = Directions::new();
        dirs.raise_plain(FLAG_RX_PLAIN | FLAG_TX_PLAIN);
        assert!(dirs.has_all(FLAG_RX_PLAIN | FLAG_TX_PLAIN));
        dirs.raise(FLAG_BROKEN);
        dirs.lower(FLAG_RX_PLAIN | FLAG_TX_PLAIN);
        dirs.raise_plain(FLAG_RX_PLAIN);
        dirs.raise_plain(FLAG_TX_PLAIN);
        assert!(!dirs.has(FLAG_RX_PLAIN) && dirs.has(FLAG_TX_PLAIN));
    }
}
