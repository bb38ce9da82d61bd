//! The mutable state of a stream, in family memory: parent and forked child share it.

use crate::engine::wait::HoldBack;
use crate::engine::wait::coalesce::WakeCoalescing;
use crate::engine::wait::event_count::EventCount;
use crate::engine::wait::spin::Spin;
use crate::engine::working_set::WorkingSet;
use rsock_proto::switch::{Counts, Message, ReceivedMessages};
use rsock_proto::{CtrlWindow, Lifecycle, RecvHalf, SendHalf, UP_BITS, UP_MASK};
use rsock_verbs::family::{FamilySafe, Lock};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// State of the sending direction, behind the `send` lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendState {
    pub(super) half: SendHalf,
    /// Value of [`Mailbox::credits`] that was taken last.
    pub(super) credits_seen: u64,
    /// Bytes of the program that were sent.
    pub(super) sent: u64,
}

/// State of the receiving direction and of the pump, behind the `recv` lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecvState {
    pub(super) half: RecvHalf,
    pub(super) life: Lifecycle,
    pub(super) set: WorkingSet,
    /// Bytes of the rings that have been written since their pages were released, at most all.
    pub(super) dirty: usize,
    /// The device took no grant when one was due: the pump tries again.
    pub(super) is_grant_due: bool,
    /// Receives that messages have used and that are not posted again yet.
    pub(super) n_owed: u32,
    /// Control messages under way, where their number is
    /// [limited](crate::engine::QpStream::limits_ctrl).
    pub(super) ctrl: CtrlWindow,
    pub(super) coalescing: WakeCoalescing,
    pub(super) hold_back: HoldBack,
}

/// What the pump leaves for other threads, readable without its lock.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    /// Number of credit messages (upper 48 bits) and the newest limit (lower 16).
    pub(super) credits: AtomicU64,
    pub(super) events: EventCount,
    /// Bits of `FLAG_*`.
    pub(super) flags: AtomicU32,
    /// `errno` of a failure, or 0.
    pub(super) error: AtomicU32,
    /// Messages of the switch received: [`Counts`], which only the pump changes.
    pub(super) messages: AtomicU32,
    /// Low 52 bits of the offset that the last `Ext::UpHigh` and `Ext::Up` named.
    pub(super) ext_up: AtomicU64,
    /// Sends of the program, wrapping. Changed under the `send` lock.
    n_sends: AtomicU32,
    /// Spin budgets of the reader and the writer.
    pub(super) recv_spin: Spin,
    pub(super) send_spin: Spin,
}

/// The peer reads nothing more, or this end has ended its writing direction.
pub(super) const FLAG_SEND_CLOSED: u32 = 1;
/// The peer writes nothing more.
pub(super) const FLAG_EOF: u32 = 1 << 1;
/// Both directions are over.
pub(super) const FLAG_DISCONNECTED: u32 = 1 << 2;

/// The state of both directions.
#[repr(C)]
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) send: CacheAligned<Lock<SendState>>,
    pub(super) recv: CacheAligned<Lock<RecvState>>,
    pub(super) mail: Mailbox,
}

// SAFETY: locks around plain values and atomics; no pointer, reference or descriptor.
unsafe impl FamilySafe for Shared {}

/// Keeps a value on cache lines of its own (two: neighbouring lines are fetched in pairs).
#[repr(C, align(128))]
#[derive(Debug)]
pub(super) struct CacheAligned<T>(pub(super) T);

impl Mailbox {
    pub(super) fn raise(&self, flag: u32) {
        self.flags.fetch_or(flag, Ordering::Release);
    }

    #[inline]
    pub(super) fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Counts a message of the switch. The caller holds the lock of the pump.
    pub(super) fn put_message(&self, message: Message) {
        let counts = Counts::from_bits(self.messages.load(Ordering::Relaxed)).after(message);
        // SYNC(switch): the offset that an `Up` names is stored before. Pairs with the Acquire in
        // `messages`.
        self.messages.store(counts.to_bits(), Ordering::Release);
    }

    /// The messages of the switch that have arrived so far.
    pub(super) fn messages(&self) -> ReceivedMessages {
        // SYNC(switch): in this order. Pairs with the Release in `put_message`.
        let counts = Counts::from_bits(self.messages.load(Ordering::Acquire));
        ReceivedMessages { counts, up_offset: self.ext_up.load(Ordering::Acquire) }
    }

    /// Counts a send of `n` bytes, unless that is none. The caller holds the `send` lock.
    #[inline]
    pub(super) fn count_send(&self, send: &mut SendState, n: usize) {
        if n == 0 {
            return;
        }
        send.sent += n as u64;
        // PERF: no locked instruction.
        self.n_sends.store(self.n_sends.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Sends so far, wrapping: whether this end has sent anything since an earlier look.
    #[inline]
    pub(super) fn n_sends(&self) -> u32 {
        self.n_sends.load(Ordering::Relaxed)
    }

    /// Records the first failure; later ones are its consequences.
    pub(super) fn fail(&self, errno: i32) {
        let _ = self.error.compare_exchange(
            0,
            errno.cast_unsigned(),
            Ordering::AcqRel,
            Ordering::Acquire,
        );
        self.raise(FLAG_DISCONNECTED | FLAG_SEND_CLOSED | FLAG_EOF);
    }

    /// Stores the upper half of an offset that an `Ext::Up` completes. Only the pump calls this.
    pub(super) fn put_up_high(&self, high26: u32) {
        self.ext_up.store(u64::from(high26) << UP_BITS, Ordering::Release);
    }

    /// Stores the lower half of an offset, which completes it. Only the pump calls this.
    pub(super) fn put_up_low(&self, offset26: u32) {
        let high = self.ext_up.load(Ordering::Relaxed) & !u64::from(UP_MASK);
        // SYNC(up): stored before the count that announces it. Pairs with the Acquire in
        // `messages`.
        self.ext_up.store(high | u64::from(offset26), Ordering::Release);
    }

    /// Leaves a credit message for the sender. Only the pump calls this.
    pub(super) fn put_credit(&self, limit: u16) {
        let count = (self.credits.load(Ordering::Relaxed) >> 16).wrapping_add(1);
        // SYNC(credit): publishes the table entry that the completion announced. Pairs with the
        // Acquire in `QpStream::take_credits`.
        self.credits.store((count << 16) | u64::from(limit), Ordering::Release);
    }
}
