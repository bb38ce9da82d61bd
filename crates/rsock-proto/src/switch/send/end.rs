//! What a sending direction has to say beside its bytes: that it is pinned, an answer to the
//! receiver, and its end.

use super::Sender;
use crate::switch::rules::is_mistaken;
use crate::switch::{Conditions, Fault, Heard, Rules, Seen, Step};

/// How far a sending direction is from the kernel alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Settled {
    /// The kernel alone serves it from now on.
    Yes,
    /// It is not, or not yet. News on the ring may change that.
    NotYet,
    /// The ring failed with bytes under way: break the connection off. The peer waits for them, and
    /// the program may not send again before it has an answer.
    BreakOff,
    /// The stream cannot go on.
    Fault(Fault),
}

impl From<Fault> for Settled {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Where the end of a sending direction is put, in this order, under one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Of the ring, then of the kernel's socket.
    RingThenTcp,
    /// Of the kernel's socket.
    Tcp,
}

impl<R: Rules> Sender<R> {
    /// Whether there is something to [settle](Self::settle), with what has been heard so far. A
    /// call that is about to wait takes the lock of this direction only then.
    #[must_use]
    pub fn is_asked_by(&self, now: Conditions, heard: Heard) -> bool {
        let is_asked = heard.counts.leaves() != self.leaves;
        let must_say = is_asked || now.has(Conditions::PINNED);
        self.misses_bytes(now) || !self.is_settled(now) && must_say
    }

    /// Does what a pinned direction, or one whose receiver has asked something, has to do. Every
    /// call that is about to wait asks this, a receiving one too; so does whatever pins a stream.
    #[must_use]
    pub fn settle(&mut self, seen: &mut Seen) -> Step<Settled> {
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        if self.misses_bytes(seen.now) {
            return Step::Done(Settled::BreakOff);
        }
        Step::Done(if self.is_settled(seen.now) { Settled::Yes } else { Settled::NotYet })
    }

    /// Whether bytes that were sent to another host may never arrive, as its ring has failed.
    fn misses_bytes(&self, now: Conditions) -> bool {
        let has_failed = now.has(Conditions::RING_FAILED) && now.has(Conditions::BETWEEN_HOSTS);
        has_failed && !self.is_on_tcp() && !is_mistaken!(R, FailureNotSettled)
    }

    /// How the program's end of this direction is said.
    ///
    /// The end goes to the ring before it reaches the kernel's socket, from TCP as well: then an
    /// end of TCP without one on the ring is a close or a death, and not a half-close. Both happen
    /// under the lock of the direction: a send of another thread that finds the ring closed asks
    /// the
    /// kernel's socket, which must refuse it by then.
    #[must_use]
    pub fn end(&self, now: Conditions) -> End {
        if !now.has(Conditions::PAIRED) {
            return End::Tcp;
        }
        if is_mistaken!(R, EndOnTcpFirst) { End::Tcp } else { End::RingThenTcp }
    }
}
