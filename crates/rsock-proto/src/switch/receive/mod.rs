//! The receiving direction: whether the next byte comes from TCP or the ring, and when that
//! changes.

mod count;
mod leave;
mod peek;
mod poll;
mod read;

pub use count::Readable;
pub use leave::LeaveStatus;
pub use peek::PeekOrder;
pub use poll::{Input, KernelInput, RingInput};
pub use read::{Read, WaitFor};

use super::rules::{is_mistaken, resolve};
use super::seen::Known;
use super::step::Move;
use super::{
    Cause, Conditions, DirectionSwitch, Fault, Message, Observation, ReceivedMessages, Rules, Seen,
    Wire,
};
use std::marker::PhantomData;

/// Where the receiving direction reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub(super) enum Source {
    /// TCP; the peer may not use the ring.
    Tcp = 0,
    /// TCP; the peer has been invited to the ring.
    Invited = 1,
    /// The rest of TCP up to the offset at which the peer moved; then the ring.
    DrainingTcp = 2,
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
    /// In `DrainingTcp`: where TCP ends, counted as `tcp_bytes`.
    pub(super) limit: u64,
    pub(super) source: Source,
    /// `Up` messages that were followed, modulo 256.
    ups: u32,
    /// `Down` messages that were followed, modulo 256.
    downs: u32,
    /// The peer has refused the ring: 1.
    pub(super) was_refused: u32,
    /// The peer has been asked to leave the ring: 1.
    has_requested_leave: u32,
    /// A peek took an error from the kernel's socket, which no call has returned yet: 1.
    pending_error: u32,
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
            was_refused: 0,
            has_requested_leave: 0,
            pending_error: 0,
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

    /// Whether the peer has been invited to the ring, and has not answered yet.
    #[must_use]
    pub const fn is_inviting(&self) -> bool {
        matches!(self.source, Source::Invited)
    }

    /// Counts `n` bytes that were read from TCP. Returns whether all other threads of the family
    /// that wait for input have to try again: the next byte comes from the ring, where its arrival
    /// has been announced before.
    #[must_use]
    pub fn took_tcp(&mut self, n: u64) -> bool {
        self.tcp_bytes = self.tcp_bytes.wrapping_add(n);
        let is_at_limit = self.source == Source::DrainingTcp && self.tcp_bytes == self.limit;
        n != 0 && is_at_limit && !is_mistaken!(R, ReaderWakesNoOther)
    }

    /// Counts `n` bytes that were read from the ring.
    pub const fn took_ring(&mut self, n: u64) {
        self.ring_bytes = self.ring_bytes.wrapping_add(n);
    }

    /// Notes that the connection between hosts has been broken off: the ring is out of use.
    pub fn break_off(&mut self) {
        self.source = Source::Tcp;
        self.was_refused = 1;
    }

    /// Moves as far as it can now. `None` if nothing has to be done before a byte is read.
    fn advance(&mut self, seen: &mut Seen) -> Option<Move> {
        if !seen.is(Conditions::PAIRED) {
            // Another process has the ring, and only that process can read it.
            return (!self.is_on_tcp()).then_some(Move::Fault(Fault::Lost));
        }
        loop {
            let next = match self.source {
                Source::Tcp => self.invite(seen),
                Source::Invited => self.take_answer(seen),
                Source::DrainingTcp => self.reach_limit(seen),
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
        let over = C::PINNED.with(C::BROKEN).with(C::RING_DISCONNECTED).with(C::RECEIVING_ENDED);
        // A ring that has failed brings no answer, and an invited reader needs one to know what the
        // end of TCP means.
        let forbidden = over.with(C::HALTED).with(C::RING_FAILED);
        let has_kernel_only_waiter =
            seen.is(C::KERNEL_ONLY_WAITER) && !is_mistaken!(R, InviteWhileKernelOnlyWaits);
        let is_over = self.was_refused != 0 || self.has_requested_leave != 0;
        if seen.is(forbidden) || has_kernel_only_waiter || is_over || seen.knows(Known::NO_READY) {
            return Advance::Stay;
        }
        if !seen.knows(Known::MESSAGES) {
            return Advance::observe(Observation::PolledMessages);
        }
        if seen.messages.counts.downs() != self.downs {
            return self.take_refusal(seen);
        }
        if !seen.knows(Known::KERNEL) {
            return Advance::observe(Observation::KernelRead);
        }
        // In this order: the kernel counts the end as a byte.
        if !seen.knows(Known::TCP_OPEN.or(Known::TCP_ENDED)) {
            return Advance::observe(Observation::TcpEnded);
        }
        match seen.kernel {
            _ if seen.knows(Known::TCP_ENDED) => Advance::Stay,
            Some(n) if n == self.tcp_bytes => Advance::First(Move::Send(Message::Ready)),
            // Bytes were read without rsock.
            Some(n) if n > self.tcp_bytes => Advance::First(Move::Pin(Cause::ForeignUse)),
            Some(_) | None => Advance::Stay,
        }
    }

    /// Invited: follows the peer's answer, if it has arrived.
    fn take_answer(&mut self, seen: &mut Seen) -> Advance {
        if !seen.knows(Known::ALL_MESSAGES) {
            return Advance::observe(Observation::AllMessages);
        }
        let ReceivedMessages { counts, up_offset } = seen.messages;
        if counts.ups() != self.ups {
            let Some(limit) = resolve::<R>(up_offset, self.tcp_bytes) else {
                return Advance::First(Move::Fault(Fault::Violation));
            };
            self.ups = counts.ups();
            self.limit = limit;
            return self.moved_to(Source::DrainingTcp, seen);
        }
        if counts.downs() != self.downs {
            return self.take_refusal(seen);
        }
        self.leave_request(seen)
    }

    /// Draining TCP: moves to the ring once TCP has been read up to the offset.
    fn reach_limit(&mut self, seen: &mut Seen) -> Advance {
        if self.tcp_bytes != self.limit {
            // Receives messages that have arrived: they would end a wait for the ring at once.
            if !seen.knows(Known::MESSAGES) {
                return Advance::observe(Observation::PolledMessages);
            }
            return self.leave_request(seen);
        }
        self.limit = 0;
        self.moved_to(Source::Ring, seen)
    }

    /// On the ring: moves back to TCP once the peer has, and the ring is empty.
    fn leave_empty_ring(&mut self, seen: &mut Seen) -> Advance {
        if !seen.knows(Known::MESSAGES) {
            return Advance::observe(Observation::PolledMessages);
        }
        if seen.messages.counts.downs() == self.downs {
            return self.leave_request(seen);
        }
        let is_drained = seen.knows(Known::RING) && seen.ring == 0;
        if !is_drained && !is_mistaken!(R, DownBeforeRingIsEmpty) {
            if !seen.knows(Known::RING) {
                return Advance::observe(Observation::RingBytes);
            }
            // The bytes on the ring come first.
            if seen.knows(Known::RING_EMPTY) {
                seen.read_ring_again();
            }
            return Advance::Stay;
        }
        self.downs = if is_mistaken!(R, DownsMerge) {
            seen.messages.counts.downs()
        } else {
            (self.downs + 1) & 0xff
        };
        self.moved_to(Source::Tcp, seen)
    }

    /// A stream that is to stay on TCP asks the peer to leave the ring, once.
    fn leave_request(&self, seen: &Seen) -> Advance {
        let is_wanted = seen.is(Conditions::PINNED) && !seen.is(Conditions::BROKEN);
        if !is_wanted || self.has_requested_leave != 0 || seen.knows(Known::NO_LEAVE) {
            return Advance::Stay;
        }
        Advance::First(Move::Send(Message::Leave))
    }

    /// A `Down` without an `Up`: the peer refuses the ring.
    fn take_refusal(&mut self, seen: &mut Seen) -> Advance {
        self.downs = seen.messages.counts.downs();
        self.was_refused = 1;
        self.moved_to(Source::Tcp, seen)
    }

    fn moved_to(&mut self, source: Source, seen: &mut Seen) -> Advance {
        self.set_source(source, seen);
        Advance::Moved
    }

    fn set_source(&mut self, source: Source, seen: &mut Seen) {
        self.source = source;
        seen.moved();
    }
}

impl<R: Rules> DirectionSwitch for Receiver<R> {
    fn is_on_ring(&self) -> bool {
        matches!(self.source, Source::Ring | Source::DrainingTcp)
    }

    fn is_on_tcp(&self) -> bool {
        matches!(self.source, Source::Tcp)
    }

    fn is_settled(&self, now: Conditions) -> bool {
        let has_unreported_error = now.has(Conditions::BROKEN) || self.pending_error != 0;
        now.has(Conditions::PINNED) && !has_unreported_error && self.is_on_tcp()
    }

    fn note_send(&mut self, message: Message, is_sent: bool, seen: &mut Seen) {
        match message {
            _ if !is_sent => seen.refuse(message),
            Message::Ready => self.set_source(Source::Invited, seen),
            Message::Leave => self.has_requested_leave = 1,
            Message::Up { .. } | Message::Down => {}
        }
    }
}

impl<R: Rules> Default for Receiver<R> {
    fn default() -> Self {
        Self::new()
    }
}

/// The outcome of an attempt to move.
enum Advance {
    /// It moved; there may be more.
    Moved,
    /// It cannot move now.
    Stay,
    /// The caller has to do this first.
    First(Move),
}

impl Advance {
    fn observe(observation: Observation) -> Self {
        Self::First(Move::Observe(observation))
    }
}
