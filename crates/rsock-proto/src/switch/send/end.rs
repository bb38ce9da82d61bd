//! The queries of a sending direction beside `write`: for a pinned stream, for an answer to the
//! receiver, and for the end of the direction.

use super::Sender;
use crate::switch::rules::is_mistaken;
use crate::switch::{Conditions, DirectionSwitch, Fault, Rules, Seen, Step};

/// Whether the kernel alone serves a sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SettleStatus {
    /// The kernel alone serves it from now on.
    Yes,
    /// It does not, or not yet: an arrival on the ring may change that.
    NotYet,
    /// The ring failed with bytes under way: break the connection off. The peer waits for them, and
    /// the program may not send again before the peer's reply.
    BreakOff,
    /// The stream cannot go on.
    Fault(Fault),
}

impl From<Fault> for SettleStatus {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Which channels a sending direction ends, in this order, under one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// The ring, then the kernel's socket.
    RingThenTcp,
    /// The kernel's socket.
    Tcp,
}

impl<R: Rules> Sender<R> {
    /// Does what is due for a direction that is pinned, or that the receiver has asked to leave.
    /// A call that is about to wait asks this, a receiving one too, if a `Leave` has no answer yet
    /// ([`Self::leaves_answered`]) or the ring has failed; so does a call that pins the stream.
    #[must_use]
    pub fn settle(&mut self, seen: &mut Seen) -> Step<SettleStatus> {
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        if self.has_lost_bytes(seen.now) {
            return Step::Done(SettleStatus::BreakOff);
        }
        Step::Done(if self.is_settled(seen.now) { SettleStatus::Yes } else { SettleStatus::NotYet })
    }

    /// Whether bytes that were sent to another host may never arrive, as the ring has failed.
    pub(in crate::switch) fn has_lost_bytes(&self, now: Conditions) -> bool {
        let has_failed = now.has(Conditions::RING_FAILED) && now.has(Conditions::BETWEEN_HOSTS);
        has_failed && !self.is_on_tcp() && !is_mistaken!(R, FailureNotSettled)
    }

    /// Which channels the program's end of this direction ends.
    ///
    /// The end goes to the ring before it goes to the kernel's socket, even if the direction is on
    /// TCP: so an end of TCP without an end of the ring is a close or a death, not a half-close.
    /// Both happen under the lock of the direction: a send of another thread that finds the ring
    /// closed writes to the kernel's socket, which must refuse it by then.
    #[must_use]
    pub fn end(&self, now: Conditions) -> End {
        if !now.has(Conditions::PAIRED) {
            return End::Tcp;
        }
        if is_mistaken!(R, EndOnTcpFirst) { End::Tcp } else { End::RingThenTcp }
    }
}
