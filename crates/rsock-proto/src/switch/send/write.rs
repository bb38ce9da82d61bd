//! The query of a call that sends.

use super::{Sender, Sink};
use crate::switch::rules::is_mistaken;
use crate::switch::seen::Known;
use crate::switch::{
    Conditions, Fault, FlagConditions, Message, Observation, ReceivedMessages, Rules, Seen, Step,
};

/// What a sending call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Write to the kernel's socket, which also returns every error of the connection. Report bytes
    /// with [`Sender::took_tcp`]; without room, report that fact and ask again.
    Tcp,
    /// Write to the ring. Report bytes with [`Sender::took_ring`]; if there is no room, or the ring
    /// is closed, report that fact and ask again. A [call for the kernel](Conditions::KERNEL_CALL)
    /// writes nothing there: it reports whether the ring is closed or has failed, and otherwise
    /// that there is no room.
    Ring,
    /// No room. Wait, if the call may, and begin a new try.
    Wait(Room),
    /// The peer has gone and left bytes unread: a reset, as TCP would have it (`ECONNRESET`).
    Reset,
    /// The ring failed with bytes under way: break the connection off.
    BreakOff,
    /// The ring reported an error: return it.
    Fail,
    /// The stream cannot go on.
    Fault(Fault),
}

/// What a sending call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// Room in the kernel's send buffer; and messages of the peer on the ring, unless the direction
    /// is settled.
    Tcp,
    /// Room on the ring, no longer than until a spill: then the next try may leave for TCP.
    Ring,
    /// Completions of the peer's device, which has not received everything yet. A bounded time, as
    /// no event announces a failure.
    Device,
}

impl From<Fault> for Write {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl<R: Rules> Sender<R> {
    /// Whether [`Self::write`] would answer [`Write::Ring`] at once, if `messages` have been
    /// received so far. A shortcut for most calls, which need no other observation.
    #[inline]
    #[must_use]
    pub fn writes_ring(&self, now: FlagConditions, messages: ReceivedMessages) -> bool {
        use FlagConditions as C;
        let asks_more = C::SOCKET_CHECK_DUE.with(C::PINNED).with(C::KERNEL_CALL);
        self.sink == Sink::Ring
            && now.has(C::PAIRED)
            && !now.has(asks_more)
            && messages.counts.leaves() == self.leaves
    }

    /// What a sending call does next.
    #[must_use]
    pub fn write(&mut self, seen: &mut Seen) -> Step<Write> {
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        if seen.is(Conditions::KERNEL_CALL) && is_mistaken!(R, KernelCallOvertakes) {
            return self.write_tcp(seen);
        }
        if self.sink == Sink::Tcp
            && let Some(first) = self.move_up(seen)
        {
            return first.into();
        }
        match self.sink {
            Sink::Tcp => self.write_tcp(seen),
            Sink::Ring => self.write_ring(seen),
            Sink::DrainingRing if Self::is_lost(seen) => Step::Done(Write::BreakOff),
            Sink::DrainingRing => Step::Done(Write::Wait(Room::Device)),
        }
    }

    fn write_tcp(&self, seen: &Seen) -> Step<Write> {
        if seen.knows(Known::TCP_FULL) {
            return Step::Done(Write::Wait(Room::Tcp));
        }
        if self.ring_bytes != 0
            && seen.is(Conditions::PAIRED)
            && !seen.knows(Known::UNREAD.or(Known::NONE_UNREAD))
        {
            return Step::Observe(Observation::LeftUnread);
        }
        Step::Done(if seen.knows(Known::UNREAD) { Write::Reset } else { Write::Tcp })
    }

    fn write_ring(&mut self, seen: &mut Seen) -> Step<Write> {
        let is_remote = seen.is(Conditions::BETWEEN_HOSTS);
        if seen.knows(Known::RING_FAILED) {
            // Between hosts, sent bytes may not have arrived, which the kernel cannot know.
            return Step::Done(if is_remote { Write::BreakOff } else { Write::Fail });
        }
        if seen.knows(Known::RING_CLOSED) {
            // The connection has ended: a write to the kernel's socket returns the right error.
            self.set_sink(Sink::Tcp, seen);
            return self.write_tcp(seen);
        }
        if !seen.knows(Known::RING_FULL) {
            return Step::Done(Write::Ring);
        }
        if seen.is(Conditions::SPILL_DUE) && !seen.knows(Known::NO_DOWN) {
            return Step::Send(Message::Down);
        }
        if is_remote && Self::is_silent(seen) {
            return Step::Done(Write::BreakOff);
        }
        Step::Done(Write::Wait(Room::Ring))
    }

    /// Whether the arrival of bytes that were sent to another host will never be confirmed.
    fn is_lost(seen: &Seen) -> bool {
        seen.is(Conditions::RING_FAILED) || Self::is_silent(seen)
    }

    fn is_silent(seen: &Seen) -> bool {
        seen.is(Conditions::DEVICE_SILENT) && !is_mistaken!(R, SilenceIgnored)
    }
}
