//! The sending direction: whether the next byte goes to TCP or the ring, and when that changes.

mod end;
mod poll;
mod write;

pub use end::{End, SettleStatus};
pub use poll::Output;
pub use write::{Room, Write};

use super::rules::is_mistaken;
use super::seen::Known;
use super::step::Move;
use super::{Cause, Conditions, DirectionSwitch, Fault, Message, Observation, Rules, Seen, Wire};
use std::marker::PhantomData;

/// Where the sending direction writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(super) enum Sink {
    /// The kernel's socket.
    Tcp = 0,
    /// The ring.
    Ring = 1,
    /// Neither, until the peer's device has everything that was sent on the ring, `Down` included:
    /// bytes of TCP must not overtake it. Between hosts only. The peer's program need not make a
    /// call for it to end.
    DrainingRing = 2,
}

/// The sending direction of a stream.
///
/// Plain integers, for memory that a family of processes shares: 8-byte alignment, two counts of
/// 8 bytes, then four words of 4, 32 in all. The value lies behind the lock of the direction; a
/// query and all that it asks for happen under that lock, sleeps do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Sender<R: Rules = Wire> {
    /// Bytes that were written to TCP.
    pub(super) tcp_bytes: u64,
    /// Bytes that were written to the ring.
    pub(super) ring_bytes: u64,
    pub(super) sink: Sink,
    /// `Ready` messages that were used or are void, modulo 256.
    readies: u32,
    /// `Leave` messages that were answered, modulo 256.
    leaves: u32,
    /// This end has refused the ring for good: 1.
    pub(super) has_refused: u32,
    rules: PhantomData<R>,
}

impl<R: Rules> Sender<R> {
    /// A direction on TCP.
    #[must_use]
    pub const fn new() -> Self {
        Self::after(0)
    }

    /// A direction on TCP through which `bytes` have gone.
    #[must_use]
    pub const fn after(bytes: u64) -> Self {
        Self {
            tcp_bytes: bytes,
            ring_bytes: 0,
            sink: Sink::Tcp,
            readies: 0,
            leaves: 0,
            has_refused: 0,
            rules: PhantomData,
        }
    }

    /// How many `Leave` messages were answered, modulo 256.
    #[must_use]
    pub const fn leaves_answered(&self) -> u32 {
        self.leaves
    }

    /// Bytes that were written to TCP.
    #[must_use]
    pub const fn tcp_bytes(&self) -> u64 {
        self.tcp_bytes
    }

    /// Bytes that were written to the ring.
    #[must_use]
    pub const fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Counts `n` bytes that were written to TCP.
    pub const fn took_tcp(&mut self, n: u64) {
        self.tcp_bytes = self.tcp_bytes.wrapping_add(n);
    }

    /// Counts `n` bytes that were written to the ring.
    pub const fn took_ring(&mut self, n: u64) {
        self.ring_bytes = self.ring_bytes.wrapping_add(n);
    }

    /// Whether a connection between hosts that is broken off now has to be reset. A peer whose
    /// reader is on TCP would take TCP's end for the end of the stream. One whose reader waits for
    /// the ring does not, and TCP retransmits an end, but not a reset.
    #[must_use]
    pub fn breaks_by_reset(&self, now: Conditions) -> bool {
        let is_safe = self.sink == Sink::Ring || now.has(Conditions::SENDING_ENDED);
        !is_safe && !is_mistaken!(R, BreakIsAnEnd)
    }

    /// Notes that the connection between hosts has been broken off: the ring is out of use.
    pub fn break_off(&mut self) {
        self.sink = Sink::Tcp;
        self.has_refused = 1;
    }

    fn moved_up(&mut self, seen: &mut Seen) {
        if !is_mistaken!(R, ReadyUsedTwice) {
            self.readies = seen.messages.counts.readies();
        }
        self.set_sink(Sink::Ring, seen);
    }

    /// `Down` answers the messages that had been received before it was sent, and no later ones.
    fn moved_down(&mut self, seen: &mut Seen) {
        let counts = seen.messages.counts;
        if self.sink == Sink::Ring {
            let waits = seen.is(Conditions::BETWEEN_HOSTS) && !is_mistaken!(R, TcpOvertakesRing);
            self.set_sink(if waits { Sink::DrainingRing } else { Sink::Tcp }, seen);
            if is_mistaken!(R, RefusedByOneDown) && seen.is(Conditions::PINNED) {
                self.has_refused = 1;
            }
        } else {
            self.has_refused = u32::from(self.has_refused != 0 || seen.is(Conditions::PINNED));
        }
        if !is_mistaken!(R, ReadyUsedTwice) {
            self.readies = counts.readies();
        }
        self.leaves = counts.leaves();
    }

    /// Moves to TCP if it has to, and sends the messages that are due. `None` once that is done.
    fn advance(&mut self, seen: &mut Seen) -> Option<Move> {
        if !seen.is(Conditions::PAIRED) {
            // Another process has the ring, and only that process can write it.
            return (!self.is_on_tcp()).then_some(Move::Fault(Fault::Lost));
        }
        if self.sink == Sink::DrainingRing {
            if !seen.knows(Known::DRAINED.or(Known::UNDRAINED)) {
                return Some(Move::Observe(Observation::Drained));
            }
            // `write` handles a failure.
            if seen.is(Conditions::RING_FAILED) || !seen.knows(Known::DRAINED) {
                return None;
            }
            self.set_sink(Sink::Tcp, seen);
        }
        if self.is_settled(seen.now) {
            return None;
        }
        match self.sink {
            Sink::Ring => self.leave_ring(seen),
            Sink::Tcp | Sink::DrainingRing => self.answer(seen),
        }
    }

    /// On the ring: leaves it if the stream is pinned, the receiver has asked for it, or the peer
    /// has stopped reading.
    fn leave_ring(&self, seen: &Seen) -> Option<Move> {
        let is_due = seen.is(Conditions::SOCKET_CHECK_DUE);
        if !seen.knows(Known::MESSAGES) {
            // A writer that has room has no other reason to dispatch arrivals than these messages.
            return Some(Move::Observe(if is_due {
                Observation::PolledMessages
            } else {
                Observation::Messages
            }));
        }
        if is_due && !seen.knows(Known::PEER_GONE.or(Known::PEER_THERE)) {
            return Some(Move::Observe(Observation::PeerGone));
        }
        let is_leave_requested = self.is_leave_requested(seen) || seen.knows(Known::PEER_GONE);
        let is_kernel_call = seen.is(Conditions::PINNED.with(Conditions::KERNEL_CALL));
        let must_leave = is_leave_requested || is_kernel_call;
        (must_leave && !seen.knows(Known::NO_DOWN)).then_some(Move::Send(Message::Down))
    }

    /// On TCP: refuses the ring, if the stream is pinned or the receiver has asked for it.
    fn answer(&self, seen: &Seen) -> Option<Move> {
        if !seen.knows(Known::MESSAGES) {
            return Some(Move::Observe(Observation::PolledMessages));
        }
        let is_leave_requested =
            self.is_leave_requested(seen) && !is_mistaken!(R, LeaveNotAnswered);
        let must_answer = is_leave_requested || seen.is(Conditions::PINNED);
        (must_answer && !seen.knows(Known::NO_DOWN)).then_some(Move::Send(Message::Down))
    }

    /// On TCP, with a byte to send: accepts an invitation to the ring.
    fn move_up(&self, seen: &Seen) -> Option<Move> {
        use Conditions as C;
        let forbidden = C::PINNED.with(C::SENDING_ENDED).with(C::RING_DISCONNECTED).with(C::BROKEN);
        let is_invited = seen.messages.counts.readies() != self.readies;
        if !is_invited && !is_mistaken!(R, UpWithoutReady)
            || seen.is(forbidden.with(C::KERNEL_CALL).with(C::HALTED))
            || !seen.is(C::PAIRED)
            || self.is_leave_requested(seen)
            || seen.knows(Known::NO_UP)
        {
            return None;
        }
        if seen.is(C::RING_FAILED) {
            return Some(Move::Pin(Cause::RingFailed));
        }
        self.send_up(seen)
    }

    fn send_up(&self, seen: &Seen) -> Option<Move> {
        if !seen.knows(Known::KERNEL) {
            return Some(Move::Observe(Observation::KernelWritten));
        }
        match seen.kernel {
            _ if is_mistaken!(R, KernelNotAsked) => {}
            Some(n) if n == self.tcp_bytes => {}
            Some(_) => return Some(Move::Pin(Cause::ForeignUse)),
            // The connection is over. The ring would take bytes that no peer reads; a write to the
            // socket returns the right error.
            None => return None,
        }
        let wrong = u64::from(is_mistaken!(R, OffsetOfRingAndTcp)) * self.ring_bytes;
        Some(Move::Send(Message::Up { offset: self.tcp_bytes.wrapping_add(wrong) }))
    }

    fn is_leave_requested(&self, seen: &Seen) -> bool {
        seen.messages.counts.leaves() != self.leaves
    }

    fn set_sink(&mut self, sink: Sink, seen: &mut Seen) {
        self.sink = sink;
        seen.moved();
    }
}

impl<R: Rules> DirectionSwitch for Sender<R> {
    fn is_on_ring(&self) -> bool {
        matches!(self.sink, Sink::Ring)
    }

    fn is_on_tcp(&self) -> bool {
        matches!(self.sink, Sink::Tcp)
    }

    fn is_settled(&self, now: Conditions) -> bool {
        let has_refused = self.has_refused != 0 || !now.has(Conditions::PAIRED);
        now.has(Conditions::PINNED) && self.is_on_tcp() && has_refused
    }

    fn note_send(&mut self, message: Message, is_sent: bool, seen: &mut Seen) {
        match message {
            _ if !is_sent => seen.refuse(message),
            Message::Up { .. } => self.moved_up(seen),
            Message::Down => self.moved_down(seen),
            Message::Ready | Message::Leave => {}
        }
    }
}

impl<R: Rules> Default for Sender<R> {
    fn default() -> Self {
        Self::new()
    }
}
