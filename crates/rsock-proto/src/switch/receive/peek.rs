//! The queries of a call that crosses the point where a stream changes between TCP and the ring:
//! one read on TCP would return the bytes of both sides.

use super::{Receiver, Source};
use crate::switch::seen::Known;
use crate::switch::{Conditions, FlagConditions, Observation, ReceivedMessages, Rules, Seen, Step};

/// The order of the bytes that can be peeked at without another move of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeekOrder {
    /// Bytes of TCP that come before the ring; `u64::MAX` if the ring is not in use.
    pub on_tcp: u64,
    /// Bytes on the ring that follow.
    pub on_ring: u64,
    /// TCP follows the ring: the bytes of its queue beyond `on_tcp`.
    pub tcp_follows: bool,
}

impl<R: Rules> Receiver<R> {
    /// The order of the bytes, for `MSG_PEEK`. It moves nothing: the caller has asked
    /// [`Self::read`] where the first byte is.
    #[must_use]
    pub fn peek_order(&self, seen: &Seen) -> Step<PeekOrder> {
        let on_tcp = match self.source {
            Source::Tcp | Source::Invited => {
                let order = PeekOrder { on_tcp: u64::MAX, on_ring: 0, tcp_follows: false };
                return Step::Done(order);
            }
            Source::DrainingTcp => self.limit.wrapping_sub(self.tcp_bytes),
            Source::Ring => 0,
        };
        // In this order: once `Down` has arrived, the bytes before it are all counted.
        if !seen.knows(Known::MESSAGES) {
            return Step::Observe(Observation::Messages);
        }
        if !seen.knows(Known::RING) {
            return Step::Observe(Observation::RingBytes);
        }
        let tcp_follows = seen.messages.counts.downs() != self.downs;
        Step::Done(PeekOrder { on_tcp, on_ring: seen.ring, tcp_follows })
    }

    /// Whether [`Self::read_continues`] would answer that a call which has read the ring alone ends
    /// here. A shortcut for most calls: the sender has not left the ring.
    #[inline]
    #[must_use]
    pub fn read_ends_on_ring(&self, now: FlagConditions, messages: ReceivedMessages) -> bool {
        self.reads_ring(now, messages) && !now.has(FlagConditions::CHANNEL_CHANGED)
    }

    /// Whether a call that has received bytes, and has room for more, reads again: it has reached
    /// the point where the stream changes between TCP and the ring, or has
    /// [crossed](Conditions::CHANNEL_CHANGED) one, and more bytes are there. It asks for bytes
    /// only, as an error would be lost.
    #[must_use]
    pub fn read_continues(&self, seen: &Seen) -> Step<bool> {
        let has_crossed = seen.is(Conditions::CHANNEL_CHANGED);
        let stays_on_tcp = matches!(self.source, Source::Tcp | Source::Invited);
        let is_before_limit = self.source == Source::DrainingTcp && self.tcp_bytes != self.limit;
        if is_before_limit || stays_on_tcp && !has_crossed {
            return Step::Done(false);
        }
        let order = match self.peek_order(seen) {
            Step::Done(order) => order,
            other => return other.map(|_| false),
        };
        let is_at_limit = self.source == Source::DrainingTcp || order.tcp_follows;
        if order.on_ring != 0 {
            return Step::Done(is_at_limit || has_crossed);
        }
        if !stays_on_tcp && !order.tcp_follows {
            return Step::Done(false);
        }
        if !seen.knows(Known::TCP_HAS_MORE.or(Known::TCP_ENDS_CALL)) {
            return Step::Observe(Observation::TcpHasMore);
        }
        Step::Done(seen.knows(Known::TCP_HAS_MORE))
    }
}
