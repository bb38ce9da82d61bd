//! The sending direction: where the next byte goes, and when that changes.

mod end;
mod poll;
mod write;

pub use end::{End, Settled};
pub use poll::Output;
pub use write::{Room, Write};

use super::rules::is_mistaken;
use super::seen::Known;
use super::step::Move;
use super::{Cause, Conditions, Fault, Look, Message, Rules, Seen, Wire};
use std::marker::PhantomData;

/// Where the sending direction writes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(super) enum Sink {
    /// The kernel's socket.
    Tcp = 0,
    /// The ring.
    Ring = 1,
    /// Nothing, until the peer's device has everything that was sent on the ring, the last message
    /// included: what TCP brings must not overtake it. Between hosts only, and it takes no call of
    /// the peer's.
    Leaving = 2,
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
    /// The peer has been told that nothing more comes to the ring: 1.
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

    /// Whether bytes go to the ring.
    #[must_use]
    pub const fn is_on_ring(&self) -> bool {
        matches!(self.sink, Sink::Ring)
    }

    /// Whether the direction is on TCP now.
    #[must_use]
    pub const fn is_on_tcp(&self) -> bool {
        matches!(self.sink, Sink::Tcp)
    }

    /// Whether the kernel alone serves this direction, now and for ever. Until then whatever waits
    /// has to be woken by the ring as well: the peer may ask something, and waits for the answer.
    #[must_use]
    pub const fn is_settled(&self, now: Conditions) -> bool {
        let has_refused = self.has_refused != 0 || !now.has(Conditions::PAIRED);
        now.has(Conditions::PINNED) && self.is_on_tcp() && has_refused
    }

    /// A write to TCP took `n` bytes.
    pub const fn took_tcp(&mut self, n: u64) {
        self.tcp_bytes = self.tcp_bytes.wrapping_add(n);
    }

    /// A write to the ring took `n` bytes.
    pub const fn took_ring(&mut self, n: u64) {
        self.ring_bytes = self.ring_bytes.wrapping_add(n);
    }

    /// `message`, which a step asked for, was sent; or there was no room for it.
    pub fn said(&mut self, message: Message, is_sent: bool, seen: &mut Seen) {
        match message {
            _ if !is_sent => seen.refuse(message),
            Message::Up { .. } => self.moved_up(seen),
            Message::Down => self.moved_down(seen),
            Message::Ready | Message::Leave => {}
        }
    }

    /// Whether a connection between hosts that is broken off now has to be reset. A peer whose
    /// reader is on TCP would take TCP's end for the end of the stream. One whose reader waits for
    /// the ring does not, and TCP retransmits an end, but not a reset.
    #[must_use]
    pub fn breaks_by_reset(&self, now: Conditions) -> bool {
        let is_safe = self.sink == Sink::Ring || now.has(Conditions::SENDING_ENDED);
        !is_safe && !is_mistaken!(R, BreakIsAnEnd)
    }

    /// The connection between hosts has been broken off: nothing waits for the ring.
    pub fn break_off(&mut self) {
        self.sink = Sink::Tcp;
        self.has_refused = 1;
    }

    fn moved_up(&mut self, seen: &mut Seen) {
        if !is_mistaken!(R, ReadyUsedTwice) {
            self.readies = seen.heard.counts.readies();
        }
        self.go(Sink::Ring, seen);
    }

    /// What had been heard before `Down` was sent is answered by it. What comes later is not.
    fn moved_down(&mut self, seen: &mut Seen) {
        let counts = seen.heard.counts;
        if self.sink == Sink::Ring {
            let waits = seen.is(Conditions::BETWEEN_HOSTS) && !is_mistaken!(R, TcpOvertakesRing);
            self.go(if waits { Sink::Leaving } else { Sink::Tcp }, seen);
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

    /// Moves to TCP if it has to, and says what it has to. `None` if nothing is left of that.
    fn advance(&mut self, seen: &mut Seen) -> Option<Move> {
        if !seen.is(Conditions::PAIRED) {
            // The ring is another process's, and only that one can go on with it.
            return (!self.is_on_tcp()).then_some(Move::Fault(Fault::Lost));
        }
        if self.sink == Sink::Leaving {
            if !seen.knows(Known::DRAINED.or(Known::UNDRAINED)) {
                return Some(Move::Look(Look::Drained));
            }
            // A failure ends all waiting as well, and is none of this: see `write`.
            if seen.is(Conditions::RING_FAILED) || !seen.knows(Known::DRAINED) {
                return None;
            }
            self.go(Sink::Tcp, seen);
        }
        if self.is_settled(seen.now) {
            return None;
        }
        match self.sink {
            Sink::Ring => self.leave_ring(seen),
            Sink::Tcp | Sink::Leaving => self.answer(seen),
        }
    }

    /// On the ring: leaves it if it is pinned, was asked to, or the peer reads no more.
    fn leave_ring(&self, seen: &Seen) -> Option<Move> {
        let is_due = seen.is(Conditions::LOOK_DUE);
        if !seen.knows(Known::MAIL) {
            // A writer that has room has no other reason to take messages than to look for these.
            return Some(Move::Look(if is_due { Look::News } else { Look::Mail }));
        }
        if is_due && !seen.knows(Known::PEER_GONE.or(Known::PEER_THERE)) {
            return Some(Move::Look(Look::PeerGone));
        }
        let is_asked = self.is_asked(seen) || seen.knows(Known::PEER_GONE);
        let is_kernel_call = seen.is(Conditions::PINNED.with(Conditions::KERNEL_CALL));
        let must_leave = is_asked || is_kernel_call;
        (must_leave && !seen.knows(Known::NO_DOWN)).then_some(Move::Say(Message::Down))
    }

    /// On TCP: says that it stays there, if it is pinned or was asked to.
    fn answer(&self, seen: &Seen) -> Option<Move> {
        if !seen.knows(Known::MAIL) {
            return Some(Move::Look(Look::News));
        }
        let is_asked = self.is_asked(seen) && !is_mistaken!(R, LeaveNotAnswered);
        let must_answer = is_asked || seen.is(Conditions::PINNED);
        (must_answer && !seen.knows(Known::NO_DOWN)).then_some(Move::Say(Message::Down))
    }

    /// On TCP, with a byte to send: accepts an invitation to the ring.
    fn move_up(&self, seen: &Seen) -> Option<Move> {
        use Conditions as C;
        let forbidden = C::PINNED.with(C::SENDING_ENDED).with(C::RING_CUT).with(C::BROKEN);
        let is_invited = seen.heard.counts.readies() != self.readies;
        if !is_invited && !is_mistaken!(R, UpWithoutReady)
            || seen.is(forbidden.with(C::KERNEL_CALL).with(C::HALTED))
            || !seen.is(C::PAIRED)
            || self.is_asked(seen)
            || seen.knows(Known::NO_UP)
        {
            return None;
        }
        if seen.is(C::RING_FAILED) {
            return Some(Move::Pin(Cause::RingFailed));
        }
        self.say_up(seen)
    }

    fn say_up(&self, seen: &Seen) -> Option<Move> {
        if !seen.knows(Known::KERNEL) {
            return Some(Move::Look(Look::KernelWritten));
        }
        match seen.kernel {
            _ if is_mistaken!(R, KernelNotAsked) => {}
            Some(n) if n == self.tcp_bytes => {}
            Some(_) => return Some(Move::Pin(Cause::ForeignUse)),
            // The connection is over. The ring would take bytes that no peer reads; the socket
            // knows which error that is.
            None => return None,
        }
        let wrong = u64::from(is_mistaken!(R, OffsetOfRingAndTcp)) * self.ring_bytes;
        Some(Move::Say(Message::Up { offset: self.tcp_bytes.wrapping_add(wrong) }))
    }

    fn is_asked(&self, seen: &Seen) -> bool {
        seen.heard.counts.leaves() != self.leaves
    }

    fn go(&mut self, sink: Sink, seen: &mut Seen) {
        self.sink = sink;
        seen.moved();
    }
}

impl<R: Rules> Default for Sender<R> {
    fn default() -> Self {
        Self::new()
    }
}
