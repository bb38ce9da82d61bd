//! The query of a call that waits for room: `poll`, `select`, an epoll set.

use super::{Sender, Sink};
use crate::switch::seen::Known;
use crate::switch::{Conditions, Fault, Rules, Seen, Step, Write};

/// Which events of the two channels are output: room for a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Room in the kernel's socket.
    Kernel,
    /// Room on the ring. Report [`Fact::RingFull`](crate::switch::Fact::RingFull) if there is none,
    /// and ask again.
    Ring,
    /// There is no room now. Ask again after an event on the ring, or when the time for a spill has
    /// come.
    WaitForRing,
    /// A send would return an error at once.
    Now,
}

impl From<Fault> for Output {
    fn from(_: Fault) -> Self {
        Self::Now
    }
}

impl<R: Rules> Sender<R> {
    /// Which events are output. It leaves a full ring as a send would, but does not move to the
    /// ring: only a send with bytes does.
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
            Step::Observe(observation) => Step::Observe(observation),
            Step::Send(message) => Step::Send(message),
            Step::Pin(cause) => Step::Pin(cause),
            Step::Done(Write::Tcp) => Step::Done(Output::Kernel),
            Step::Done(Write::Wait(_)) => Step::Done(Output::WaitForRing),
            Step::Done(_) => Step::Done(Output::Now),
        }
    }
}
