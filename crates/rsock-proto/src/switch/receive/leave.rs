//! The query of a handoff: whether all further bytes come from the kernel's socket.

use super::{Receiver, Source};
use crate::switch::rules::is_mistaken;
use crate::switch::seen::Known;
use crate::switch::{Conditions, DirectionSwitch, Fault, Observation, Rules, Seen, Step};

/// Whether the kernel alone serves a direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LeaveStatus {
    /// The kernel alone serves it from now on.
    Yes,
    /// Not yet: an arrival on the ring may change that.
    NotYet,
    /// Not before the bytes on the ring have been read.
    BytesOnRing,
    /// The stream cannot go on.
    Fault(Fault),
}

impl From<Fault> for LeaveStatus {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl<R: Rules> Receiver<R> {
    /// Asks the peer of a pinned stream to leave the ring. Answers whether the kernel alone serves
    /// this direction.
    #[must_use]
    pub fn settle(&mut self, seen: &mut Seen) -> Step<LeaveStatus> {
        if self.is_settled(seen.now) {
            return Step::Done(LeaveStatus::Yes);
        }
        if seen.is(Conditions::PAIRED)
            && let super::Advance::First(first) = self.leave_request(seen)
        {
            return first.into();
        }
        Step::Done(LeaveStatus::NotYet)
    }

    /// Asks the peer to leave the ring although the stream is not pinned, once: the program will
    /// not read what the peer sends from now on, and the kernel answers it with a reset.
    #[must_use]
    pub fn request_leave(&self, seen: &Seen) -> Step<LeaveStatus> {
        let is_leave_requested = self.has_requested_leave != 0 || seen.knows(Known::NO_LEAVE);
        if self.is_on_tcp() || is_leave_requested || !seen.is(Conditions::PAIRED) {
            return Step::Done(LeaveStatus::NotYet);
        }
        Step::Send(crate::switch::Message::Leave)
    }

    /// Whether all further bytes of a pinned stream come from the kernel's socket. The offset at
    /// which the peer moved to the ring does not matter any more once the ring is empty for good:
    /// TCP continues where it was.
    #[must_use]
    pub fn leave(&mut self, seen: &mut Seen) -> Step<LeaveStatus> {
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        if self.source == Source::Tcp {
            return Step::Done(if self.is_settled(seen.now) {
                LeaveStatus::Yes
            } else {
                LeaveStatus::NotYet
            });
        }
        // In this order: after `Down`, and after the end of TCP, no more bytes arrive on the ring.
        if !seen.knows(Known::TCP_OPEN.or(Known::TCP_ENDED)) && Self::ends_with_tcp(seen) {
            return Step::Observe(Observation::TcpEnded);
        }
        if !seen.knows(Known::ALL_MESSAGES) {
            return Step::Observe(Observation::AllMessages);
        }
        if !seen.knows(Known::RING) {
            return Step::Observe(Observation::RingBytes);
        }
        let is_down = seen.messages.counts.downs() != self.downs;
        let is_last =
            is_down || seen.knows(Known::TCP_ENDED) || is_mistaken!(R, EmptyRingCountsAsLeft);
        match (seen.ring, is_last) {
            (1.., _) => return Step::Done(LeaveStatus::BytesOnRing),
            (0, false) => return Step::Done(LeaveStatus::NotYet),
            (0, true) => {}
        }
        self.ups = seen.messages.counts.ups();
        self.downs = seen.messages.counts.downs();
        self.limit = 0;
        self.set_source(Source::Tcp, seen);
        Step::Done(if self.is_settled(seen.now) { LeaveStatus::Yes } else { LeaveStatus::NotYet })
    }

    /// Whether the end of TCP is the end of the ring as well: on one host, unless this process has
    /// made it.
    fn ends_with_tcp(seen: &Seen) -> bool {
        !seen.is(Conditions::BETWEEN_HOSTS.with(Conditions::RECEIVING_ENDED))
    }
}
