//! The queries of a call that goes past the point where a stream changes between TCP and the ring:
//! one read on TCP would return what lies on both sides.

use super::{Receiver, Source};
use crate::switch::seen::Known;
use crate::switch::{Conditions, Look, Rules, Seen, Step};

/// In which order the bytes lie that can be looked at without another move of the peer's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ahead {
    /// Bytes of TCP that come before the ring; `u64::MAX` if the ring is not in use.
    pub on_tcp: u64,
    /// Bytes on the ring that follow.
    pub on_ring: u64,
    /// TCP goes on behind them: what its queue has beside `on_tcp`.
    pub has_tcp_behind: bool,
}

impl<R: Rules> Receiver<R> {
    /// In which order bytes lie, for a call that looks ahead (`MSG_PEEK`). Moves nothing: it comes
    /// after [`Self::read`] has said where the first byte is.
    #[must_use]
    pub fn look_ahead(&self, seen: &Seen) -> Step<Ahead> {
        let on_tcp = match self.source {
            Source::Tcp | Source::Invited => {
                let ahead = Ahead { on_tcp: u64::MAX, on_ring: 0, has_tcp_behind: false };
                return Step::Done(ahead);
            }
            Source::Clamped => self.limit.wrapping_sub(self.tcp_bytes),
            Source::Ring => 0,
        };
        // In this order: with `Down` seen, all that came before it is counted.
        if !seen.knows(Known::MAIL) {
            return Step::Look(Look::Mail);
        }
        if !seen.knows(Known::RING) {
            return Step::Look(Look::RingBytes);
        }
        let has_tcp_behind = seen.heard.counts.downs() != self.downs;
        Step::Done(Ahead { on_tcp, on_ring: seen.ring, has_tcp_behind })
    }

    /// Whether a call that has received something, and has room for more, goes on: it stands where
    /// the stream changes, or has [crossed](Conditions::SEAM_CROSSED) such a place, and more is
    /// there. Asks for bytes only, as an error would be lost.
    #[must_use]
    pub fn reads_on(&self, seen: &Seen) -> Step<bool> {
        let has_crossed = seen.is(Conditions::SEAM_CROSSED);
        let stays_on_tcp = matches!(self.source, Source::Tcp | Source::Invited);
        let is_before_seam = self.source == Source::Clamped && self.tcp_bytes != self.limit;
        if is_before_seam || stays_on_tcp && !has_crossed {
            return Step::Done(false);
        }
        let ahead = match self.look_ahead(seen) {
            Step::Done(ahead) => ahead,
            other => return other.map(|_| false),
        };
        let is_at_seam = self.source == Source::Clamped || ahead.has_tcp_behind;
        if ahead.on_ring != 0 {
            return Step::Done(is_at_seam || has_crossed);
        }
        if !stays_on_tcp && !ahead.has_tcp_behind {
            return Step::Done(false);
        }
        if !seen.knows(Known::TCP_GOES_ON.or(Known::TCP_STOPS)) {
            return Step::Look(Look::TcpGoesOn);
        }
        Step::Done(seen.knows(Known::TCP_GOES_ON))
    }
}
