//! The query of a handover: whether the kernel's socket alone brings all that will come.

use super::{Receiver, Source};
use crate::switch::rules::is_mistaken;
use crate::switch::seen::Known;
use crate::switch::{Conditions, Fault, Look, Rules, Seen, Step};

/// How far a direction is from the kernel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Left {
    /// The kernel alone serves it from now on.
    Yes,
    /// Not yet: news on the ring may change that.
    NotYet,
    /// Not before bytes that lie on the ring have been read.
    BytesOnRing,
    /// The stream cannot go on.
    Fault(Fault),
}

impl From<Fault> for Left {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl<R: Rules> Receiver<R> {
    /// Does what a stream that was pinned has to say: asks the peer to leave the ring. Answers
    /// whether the kernel alone serves this direction.
    #[must_use]
    pub fn settle(&mut self, seen: &mut Seen) -> Step<Left> {
        if self.is_settled(seen.now) {
            return Step::Done(Left::Yes);
        }
        if seen.is(Conditions::PAIRED)
            && let super::Advance::First(first) = self.ask_to_leave(seen)
        {
            return first.into();
        }
        Step::Done(Left::NotYet)
    }

    /// Asks the peer to leave the ring although the stream is not pinned, once: what it sends from
    /// now on is not wanted, which the kernel says with a reset.
    #[must_use]
    pub fn decline_more(&self, seen: &Seen) -> Step<Left> {
        let is_asked = self.has_asked != 0 || seen.knows(Known::NO_LEAVE);
        if self.is_on_tcp() || is_asked || !seen.is(Conditions::PAIRED) {
            return Step::Done(Left::NotYet);
        }
        Step::Say(crate::switch::Message::Leave)
    }

    /// Whether the kernel's socket alone brings all that will come, of a pinned stream. The offset
    /// at which the peer moved to the ring does not matter any more once the ring is empty for
    /// good: TCP goes on where it was.
    #[must_use]
    pub fn leave(&mut self, seen: &mut Seen) -> Step<Left> {
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        if self.source == Source::Tcp {
            return Step::Done(if self.is_settled(seen.now) { Left::Yes } else { Left::NotYet });
        }
        // In this order: after either end of the ring, nothing more comes to it.
        if !seen.knows(Known::TCP_OPEN.or(Known::TCP_ENDED)) && Self::ends_with_tcp(seen) {
            return Step::Look(Look::TcpEnded);
        }
        if !seen.knows(Known::MESSAGES) {
            return Step::Look(Look::Messages);
        }
        if !seen.knows(Known::RING) {
            return Step::Look(Look::RingBytes);
        }
        let is_down = seen.heard.counts.downs() != self.downs;
        let is_last = is_down || seen.knows(Known::TCP_ENDED) || is_mistaken!(R, LeaveUnasked);
        match (seen.ring, is_last) {
            (1.., _) => return Step::Done(Left::BytesOnRing),
            (0, false) => return Step::Done(Left::NotYet),
            (0, true) => {}
        }
        self.ups = seen.heard.counts.ups();
        self.downs = seen.heard.counts.downs();
        self.limit = 0;
        self.go(Source::Tcp, seen);
        Step::Done(if self.is_settled(seen.now) { Left::Yes } else { Left::NotYet })
    }

    /// Whether the end of TCP is the end of the ring as well: on one host, unless it is our own.
    fn ends_with_tcp(seen: &Seen) -> bool {
        !seen.is(Conditions::BETWEEN_HOSTS.with(Conditions::RECEIVING_ENDED))
    }
}
