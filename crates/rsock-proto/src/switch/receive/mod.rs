//! The receiving direction: where the next byte comes from, and when that changes.

mod ahead;
mod count;
mod leave;
mod poll;
mod read;

pub use ahead::Ahead;
pub use count::Readable;
pub use leave::Left;
pub use poll::{Input, KernelInput, RingInput};
pub use read::{Read, WaitFor};

use super::rules::{is_mistaken, resolve};
use super::seen::Known;
use super::step::Move;
use super::{Cause, Conditions, Fault, Heard, Look, Message, Rules, Seen, Wire};
use std::marker::PhantomData;

/// Where the receiving direction reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(super) enum Source {
    /// TCP; the peer may not use the ring.
    Tcp = 0,
    /// TCP still, but the peer has been told that it may use the ring.
    Invited = 1,
    /// The rest of TCP up to the offset at which the peer moved; then the ring.
    Clamped = 2,
    /// The ring.
    Ring = 3,
}

/// The receiving direction of a stream.
///
/// Plain integers, for memory that a family of processes shares: 8-byte alignment, three counts of
/// 8 bytes, then six words of 4, 48 in all. The value lies behind the lock
/// of the direction; a query and all that it asks for happen under that lock, sleeps do not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Receiver<R: Rules = Wire> {
    /// Bytes that were read from TCP.
    pub(super) tcp_bytes: u64,
    /// Bytes that were read from the ring.
    pub(super) ring_bytes: u64,
    /// In `Clamped`: where TCP ends, counted as `tcp_bytes`.
    pub(super) limit: u64,
    pub(super) source: Source,
    /// `Up` messages that were taken, modulo 256.
    ups: u32,
    /// `Down` messages that were taken, modulo 256.
    downs: u32,
    /// The peer said that it will not come to the ring: 1.
    pub(super) is_declined: u32,
    /// The peer has been asked to leave the ring: 1.
    has_asked: u32,
    /// A look ahead took an error from the kernel's socket, which no call has returned yet: 1.
    owes_error: u32,
    rules: PhantomData<R>,
}

impl<R: Rules> Receiver<R> {
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
            limit: 0,
            source: Source::Tcp,
            ups: 0,
            downs: 0,
            is_declined: 0,
            has_asked: 0,
            owes_error: 0,
            rules: PhantomData,
        }
    }

    /// Bytes that were read from TCP.
    #[must_use]
    pub const fn tcp_bytes(&self) -> u64 {
        self.tcp_bytes
    }

    /// Bytes that were read from the ring.
    #[must_use]
    pub const fn ring_bytes(&self) -> u64 {
        self.ring_bytes
    }

    /// Whether bytes come from the ring, or will without another move of the peer's.
    #[must_use]
    pub const fn is_on_ring(&self) -> bool {
        matches!(self.source, Source::Ring | Source::Clamped)
    }

    /// Whether the peer has been invited to the ring, and has not answered yet.
    #[must_use]
    pub const fn is_inviting(&self) -> bool {
        matches!(self.source, Source::Invited)
    }

    /// Whether the direction is on TCP now.
    #[must_use]
    pub const fn is_on_tcp(&self) -> bool {
        matches!(self.source, Source::Tcp)
    }

    /// Whether the kernel alone serves this direction, now and for ever.
    #[must_use]
    pub const fn is_settled(&self, now: Conditions) -> bool {
        let is_unsaid = now.has(Conditions::BROKEN) || self.owes_error != 0;
        now.has(Conditions::PINNED) && !is_unsaid && self.is_on_tcp()
    }

    /// A read of TCP took `n` bytes. Answers whether every other thread of the family that waits
    /// for input has to look again: the next byte comes from the ring, which has told of it before.
    #[must_use]
    pub fn took_tcp(&mut self, n: u64) -> bool {
        self.tcp_bytes = self.tcp_bytes.wrapping_add(n);
        let is_at_seam = self.source == Source::Clamped && self.tcp_bytes == self.limit;
        n != 0 && is_at_seam && !is_mistaken!(R, SeamWakesNoOther)
    }

    /// A read of the ring took `n` bytes.
    pub const fn took_ring(&mut self, n: u64) {
        self.ring_bytes = self.ring_bytes.wrapping_add(n);
    }

    /// `message`, which a step asked for, was sent; or there was no room for it.
    pub fn said(&mut self, message: Message, is_sent: bool, seen: &mut Seen) {
        match message {
            _ if !is_sent => seen.refuse(message),
            Message::Ready => self.go(Source::Invited, seen),
            Message::Leave => self.has_asked = 1,
            Message::Up { .. } | Message::Down => {}
        }
    }

    /// The connection between hosts has been broken off: nothing on the ring is waited for.
    pub fn break_off(&mut self) {
        self.source = Source::Tcp;
        self.is_declined = 1;
    }

    /// Moves as far as it can go now. `None` if it stands where a byte can be taken.
    fn advance(&mut self, seen: &mut Seen) -> Option<Move> {
        if !seen.is(Conditions::PAIRED) {
            // The ring is another process's, and only that one can go on with it.
            return (!self.is_on_tcp()).then_some(Move::Fault(Fault::Lost));
        }
        loop {
            let next = match self.source {
                Source::Tcp => self.invite(seen),
                Source::Invited => self.hear_answer(seen),
                Source::Clamped => self.reach_limit(seen),
                Source::Ring => self.leave_empty_ring(seen),
            };
            match next {
                Advance::Moved => {}
                Advance::Stay => return None,
                Advance::First(step) => return Some(step),
            }
        }
    }

    /// On TCP: invites the peer to the ring, if nothing forbids it.
    fn invite(&mut self, seen: &mut Seen) -> Advance {
        use Conditions as C;
        let over = C::PINNED.with(C::BROKEN).with(C::RING_CUT).with(C::RECEIVING_ENDED);
        // On a ring that has failed no answer comes, and an invited reader needs one to know what
        // the end of TCP means.
        let forbidden = over.with(C::HALTED).with(C::RING_FAILED);
        let deafened =
            seen.is(C::KERNEL_ONLY_WAITER) && !is_mistaken!(R, InviteWhileKernelOnlyWaits);
        let is_over = self.is_declined != 0 || self.has_asked != 0;
        if seen.is(forbidden) || deafened || is_over || seen.knows(Known::NO_READY) {
            return Advance::Stay;
        }
        if !seen.knows(Known::MAIL) {
            return Advance::look(Look::News);
        }
        if seen.heard.counts.downs() != self.downs {
            return self.take_refusal(seen);
        }
        if !seen.knows(Known::KERNEL) {
            return Advance::look(Look::KernelRead);
        }
        // In this order: the kernel counts the end as a byte.
        if !seen.knows(Known::TCP_OPEN.or(Known::TCP_ENDED)) {
            return Advance::look(Look::TcpEnded);
        }
        match seen.kernel {
            _ if seen.knows(Known::TCP_ENDED) => Advance::Stay,
            Some(n) if n == self.tcp_bytes => Advance::First(Move::Say(Message::Ready)),
            // Bytes that were read elsewhere, past us.
            Some(n) if n > self.tcp_bytes => Advance::First(Move::Pin(Cause::ForeignUse)),
            Some(_) | None => Advance::Stay,
        }
    }

    /// Invited: takes note of whether the peer comes.
    fn hear_answer(&mut self, seen: &mut Seen) -> Advance {
        if !seen.knows(Known::MESSAGES) {
            return Advance::look(Look::Messages);
        }
        let Heard { counts, up_offset } = seen.heard;
        if counts.ups() != self.ups {
            let Some(limit) = resolve::<R>(up_offset, self.tcp_bytes) else {
                return Advance::First(Move::Fault(Fault::Violation));
            };
            self.ups = counts.ups();
            self.limit = limit;
            return self.go_on(Source::Clamped, seen);
        }
        if counts.downs() != self.downs {
            return self.take_refusal(seen);
        }
        self.ask_to_leave(seen)
    }

    /// Clamped: goes to the ring once TCP has brought all that came before it.
    fn reach_limit(&mut self, seen: &mut Seen) -> Advance {
        if self.tcp_bytes != self.limit {
            // A wait for news of the ring would be over at once if some were there already.
            if !seen.knows(Known::MAIL) {
                return Advance::look(Look::News);
            }
            return self.ask_to_leave(seen);
        }
        self.limit = 0;
        self.go_on(Source::Ring, seen)
    }

    /// On the ring: goes back to TCP once the peer has, and the ring is empty.
    fn leave_empty_ring(&mut self, seen: &mut Seen) -> Advance {
        if !seen.knows(Known::MAIL) {
            return Advance::look(Look::News);
        }
        if seen.heard.counts.downs() == self.downs {
            return self.ask_to_leave(seen);
        }
        let is_drained = seen.knows(Known::RING) && seen.ring == 0;
        if !is_drained && !is_mistaken!(R, DownBeforeRingIsEmpty) {
            if !seen.knows(Known::RING) {
                return Advance::look(Look::RingBytes);
            }
            // There are bytes: they come first.
            if seen.knows(Known::RING_EMPTY) {
                seen.read_ring_again();
            }
            return Advance::Stay;
        }
        self.downs = if is_mistaken!(R, DownsMerge) {
            seen.heard.counts.downs()
        } else {
            (self.downs + 1) & 0xff
        };
        self.go_on(Source::Tcp, seen)
    }

    /// A stream that is to stay on TCP asks the peer to leave the ring, once.
    fn ask_to_leave(&self, seen: &Seen) -> Advance {
        let is_wanted = seen.is(Conditions::PINNED) && !seen.is(Conditions::BROKEN);
        if !is_wanted || self.has_asked != 0 || seen.knows(Known::NO_LEAVE) {
            return Advance::Stay;
        }
        Advance::First(Move::Say(Message::Leave))
    }

    /// A `Down` without an `Up`: the peer will not come.
    fn take_refusal(&mut self, seen: &mut Seen) -> Advance {
        self.downs = seen.heard.counts.downs();
        self.is_declined = 1;
        self.go_on(Source::Tcp, seen)
    }

    fn go_on(&mut self, source: Source, seen: &mut Seen) -> Advance {
        self.go(source, seen);
        Advance::Moved
    }

    fn go(&mut self, source: Source, seen: &mut Seen) {
        self.source = source;
        seen.moved();
    }
}

impl<R: Rules> Default for Receiver<R> {
    fn default() -> Self {
        Self::new()
    }
}

/// What came of trying to move.
enum Advance {
    /// It moved; there may be more.
    Moved,
    /// It cannot move now.
    Stay,
    /// This comes first.
    First(Move),
}

impl Advance {
    fn look(look: Look) -> Self {
        Self::First(Move::Look(look))
    }
}
