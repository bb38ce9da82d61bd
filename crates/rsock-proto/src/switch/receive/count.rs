//! The query of a call that asks how much can be read (`FIONREAD`), or whether more follows.

use super::{Receiver, Source};
use crate::switch::seen::Known;
use crate::switch::{Fault, Observation, Rules, Seen, Step};

/// How much can be read without another move of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Readable {
    /// So many bytes.
    Bytes(u64),
    /// The stream cannot go on: none.
    Fault(Fault),
}

impl From<Fault> for Readable {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl<R: Rules> Receiver<R> {
    /// How many bytes reads could return now, on TCP, on the ring, and on TCP after it.
    #[must_use]
    pub fn count_readable(&mut self, seen: &mut Seen) -> Step<Readable> {
        // Before it is observed whether the peer has moved to the ring: so bytes that the peer
        // writes to TCP after a later `Down` are not among these.
        if !seen.knows(Known::QUEUED) {
            return Step::Observe(Observation::Queued);
        }
        if let Some(first) = self.advance(seen) {
            return first.into();
        }
        let before_ring = match self.source {
            Source::Tcp | Source::Invited => return Step::Done(Readable::Bytes(seen.queued)),
            Source::DrainingTcp => self.limit.wrapping_sub(self.tcp_bytes),
            Source::Ring => 0,
        };
        if seen.queued < before_ring {
            return Step::Done(Readable::Bytes(seen.queued));
        }
        self.count_from_ring(seen, before_ring)
    }

    /// As many as `before_ring` are on TCP, then the ring follows.
    fn count_from_ring(&self, seen: &Seen, before_ring: u64) -> Step<Readable> {
        // In this order: once `Down` has arrived, the bytes before it are all counted.
        if !seen.knows(Known::ALL_MESSAGES) {
            return Step::Observe(Observation::AllMessages);
        }
        if !seen.knows(Known::RING) {
            return Step::Observe(Observation::RingBytes);
        }
        if seen.messages.counts.downs() == self.downs {
            return Step::Done(Readable::Bytes(seen.ring + before_ring));
        }
        if !seen.knows(Known::LATE_QUEUED) {
            return Step::Observe(Observation::Queued);
        }
        // The bytes of TCP that come before the ring are in its queue as well.
        Step::Done(Readable::Bytes(seen.ring + seen.late_queued.max(before_ring)))
    }
}
