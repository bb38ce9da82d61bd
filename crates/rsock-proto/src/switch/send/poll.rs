//! The query of a call that waits for room: `poll`, `select`, an epoll set.

use super::{Sender, Sink};
use crate::switch::seen::Known;
use crate::switch::{Conditions, Fault, Rules, Seen, Step, Write};

/// What tells of room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// The kernel's socket.
    Kernel,
    /// The ring: room on it is output. Answer with
    /// [`Fact::RingFull`](crate::switch::Fact::RingFull) if there is none, and ask again.
    Ring,
    /// Nothing now; to be asked again when the ring has news, or its patience is over.
    News,
    /// A send would return an error at once.
    Now,
}

impl From<Fault> for Output {
    fn from(_: Fault) -> Self {
        Self::Now
    }
}

impl<R: Rules> Sender<R> {
    /// What tells of room. It leaves a full ring as a send would, but does not move to the ring:
    /// that takes a byte to be worth it.
    #[must_use]
    pub fn poll_output(&mut self, seen: &mut Seen) -> Step<Output> {
        if self.sink == Sink::Tcp {
            return Step::Done(Output::Kernel);
        }
        if !seen.is(Conditions::PAIRED) {
            return Step::Done(Output::Now);
        }
        if self.sink == Sink::Ring && !seen.knows(Known::RING_FULL) {
            return Step::Done(Output::Ring);
        }
        match self.write(seen) {
            Step::Look(look) => Step::Look(look),
            Step::Say(message) => Step::Say(message),
            Step::Pin(cause) => Step::Pin(cause),
            Step::Done(Write::Tcp) => Step::Done(Output::Kernel),
            Step::Done(Write::Wait(_)) => Step::Done(Output::News),
            Step::Done(_) => Step::Done(Output::Now),
        }
    }
}
