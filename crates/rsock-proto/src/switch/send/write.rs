//! The query of a call that sends.

use super::{Sender, Sink};
use crate::switch::rules::is_mistaken;
use crate::switch::seen::Known;
use crate::switch::{Conditions, Fault, Heard, Look, Message, Rules, Seen, Step};

/// What a sending call does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Write {
    /// Write to the kernel's socket, which also knows every error of the connection. Then
    /// [`Sender::took_tcp`], or the fact that there was no room and the query again.
    Tcp,
    /// Write to the ring. Then [`Sender::took_ring`], or the fact that there was no room, or that
    /// it is closed, and the query again. A [call for the kernel](Conditions::KERNEL_CALL) writes
    /// nothing there: it finds out whether the ring is closed or has failed, and otherwise that
    /// there was no room.
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
    /// In the kernel's send buffer; and for what the peer may ask on the ring, unless the direction
    /// is settled.
    Tcp,
    /// On the ring, no longer than its patience: then the next try may leave for TCP.
    Ring,
    /// For the peer's device, which has not got everything yet. A bounded time, as its failure
    /// announces nothing.
    Device,
}

impl From<Fault> for Write {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl<R: Rules> Sender<R> {
    /// Whether [`Self::write`] would answer [`Write::Ring`] at once, where `messages` were taken
    /// from the ring so far. For the calls that are many: no observation is needed then.
    #[inline]
    #[must_use]
    pub fn writes_ring(&self, now: Conditions, messages: Heard) -> bool {
        use Conditions as C;
        let asks_more = C::LOOK_DUE.with(C::PINNED).with(C::KERNEL_CALL);
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
            Sink::Leaving if Self::is_lost(seen) => Step::Done(Write::BreakOff),
            Sink::Leaving => Step::Done(Write::Wait(Room::Device)),
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
            return Step::Look(Look::LeftUnread);
        }
        Step::Done(if seen.knows(Known::UNREAD) { Write::Reset } else { Write::Tcp })
    }

    fn write_ring(&mut self, seen: &mut Seen) -> Step<Write> {
        let is_far = seen.is(Conditions::BETWEEN_HOSTS);
        if seen.knows(Known::RING_FAILED) {
            // Between hosts, what has been sent may not have arrived, and TCP cannot know.
            return Step::Done(if is_far { Write::BreakOff } else { Write::Fail });
        }
        if seen.knows(Known::RING_OVER) {
            // The end of the connection, seen from the ring: TCP knows what to answer.
            self.go(Sink::Tcp, seen);
            return self.write_tcp(seen);
        }
        if !seen.knows(Known::RING_FULL) {
            return Step::Done(Write::Ring);
        }
        if seen.is(Conditions::PATIENCE_OVER) && !seen.knows(Known::NO_DOWN) {
            return Step::Say(Message::Down);
        }
        if is_far && Self::is_silent(seen) {
            return Step::Done(Write::BreakOff);
        }
        Step::Done(Write::Wait(Room::Ring))
    }

    /// Whether what was sent to another host will never be known to have arrived.
    fn is_lost(seen: &Seen) -> bool {
        seen.is(Conditions::RING_FAILED) || Self::is_silent(seen)
    }

    fn is_silent(seen: &Seen) -> bool {
        seen.is(Conditions::DEVICE_SILENT) && !is_mistaken!(R, SilenceIgnored)
    }
}
