//! What both directions answer about themselves.

use super::{Conditions, Message, Seen};

/// The switch of one direction: a [`Receiver`](super::Receiver) or a [`Sender`](super::Sender).
pub trait DirectionSwitch {
    /// Whether bytes go through the ring. Of a receiver: also if they will without another move of
    /// the peer.
    #[must_use]
    fn is_on_ring(&self) -> bool;

    /// Whether the direction is on TCP now.
    #[must_use]
    fn is_on_tcp(&self) -> bool;

    /// Whether the kernel alone serves this direction from now on. Until a sender is settled, the
    /// ring has to wake waiting threads as well: the peer may send a `Leave`, and waits for the
    /// answer.
    #[must_use]
    fn is_settled(&self, now: Conditions) -> bool;

    /// Notes that `message`, which a step asked for, was sent, or that there was no room for it.
    fn note_send(&mut self, message: Message, is_sent: bool, seen: &mut Seen);
}
