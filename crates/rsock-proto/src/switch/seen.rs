//! The facts that one try of a call has observed so far.

use super::rules::is_mistaken;
use super::{Conditions, Counts, Message, ReceivedMessages, Rules};

/// The outcome of an observation, or of a read or write that an answer asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// For [`Messages`](super::Observation::Messages) and
    /// [`PolledMessages`](super::Observation::PolledMessages).
    Messages(ReceivedMessages),
    /// For [`AllMessages`](super::Observation::AllMessages).
    AllMessages(ReceivedMessages),
    /// For [`Queued`](super::Observation::Queued).
    Queued(u64),
    /// For [`KernelRead`](super::Observation::KernelRead) and
    /// [`KernelWritten`](super::Observation::KernelWritten). `None`: the kernel gives no reliable
    /// answer now, or the connection is over.
    KernelCount(Option<u64>),
    /// For [`TcpEnded`](super::Observation::TcpEnded).
    TcpEnded(bool),
    /// For [`Peek`](super::Observation::Peek).
    Peeked(Peeked),
    /// For [`TcpHasMore`](super::Observation::TcpHasMore).
    TcpHasMore(bool),
    /// For [`TcpEndsCall`](super::Observation::TcpEndsCall).
    TcpEndsCall(bool),
    /// For [`RingBytes`](super::Observation::RingBytes).
    RingBytes(u64),
    /// For [`RingEnd`](super::Observation::RingEnd): whether the peer's end is there.
    RingEnd(bool),
    /// For [`Drained`](super::Observation::Drained).
    Drained(bool),
    /// For [`LeftUnread`](super::Observation::LeftUnread).
    LeftUnread(bool),
    /// For [`PeerGone`](super::Observation::PeerGone).
    PeerGone(bool),
    /// A read of TCP found nothing.
    TcpEmpty,
    /// A read of TCP returned the end of the stream.
    TcpEof,
    /// A read of the ring found nothing.
    RingEmpty,
    /// A read of the ring returned the end of the stream.
    RingEof,
    /// A read of the ring found nothing, and the connection gone.
    RingBroke,
    /// A read of the ring, or a write to it, failed otherwise: the caller keeps the error.
    RingFailed,
    /// A write to TCP found no room.
    TcpFull,
    /// A write to the ring found no room.
    RingFull,
    /// A write to the ring found it closed; or on one host, that the connection has gone.
    RingClosed,
}

impl Fact {
    /// Whether the [`Conditions`] that a try began with may not hold any more because of this fact,
    /// or because of its cause: they are observed again then. Other changes may wait for the next
    /// try: the thread that makes them takes the lock of the direction afterwards, or wakes a
    /// sleeper.
    #[must_use]
    pub fn outdates_conditions<R: Rules>(self) -> bool {
        match self {
            // This observation may be the first to find that the ring has failed.
            Self::RingEnd(_) => !is_mistaken!(R, EndedByFailure),
            // The same: a ring that has failed counts as drained.
            Self::Drained(_) => !is_mistaken!(R, DrainedByFailure),
            // It may be this process's own end, which another thread has just put there.
            Self::TcpEof => !is_mistaken!(R, OwnEndUnnoticed),
            // The last observation before a move to the ring. Those before it may have been the
            // first to find that the ring has failed, and a halt may have begun.
            Self::KernelCount(_) => true,
            // The time for which the ring has been full may have begun just now.
            Self::RingFull | Self::RingClosed | Self::RingFailed => true,
            _ => false,
        }
    }
}

/// What a read of the kernel's socket would return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Peeked {
    /// Nothing yet.
    Nothing,
    /// At least a byte.
    Bytes,
    /// Nothing but an urgent byte, which a read skips and a peek does not.
    UrgentMark,
    /// The end.
    End,
    /// An error, which the caller keeps: the kernel reports it once.
    Error,
}

/// The facts that one try of a call has observed so far. It begins empty with each try, lives on
/// the stack, and keeps the order that the rules need: a new fact removes the older ones that it
/// outdates, so that the rules ask for them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// The conditions when the try began, or when a fact last outdated them.
    pub(super) now: Conditions,
    known: Known,
    peeked: Peeked,
    /// The messages that had been received from the ring.
    pub(super) messages: ReceivedMessages,
    pub(super) queued: u64,
    pub(super) late_queued: u64,
    pub(super) ring: u64,
    pub(super) kernel: Option<u64>,
}

/// Which fields of [`Seen`] have a value, and facts that have no other field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Known(u32);

impl Known {
    const NONE: Self = Self(0);
    pub(super) const MESSAGES: Self = Self(1);
    pub(super) const ALL_MESSAGES: Self = Self(1 << 1);
    pub(super) const QUEUED: Self = Self(1 << 2);
    pub(super) const LATE_QUEUED: Self = Self(1 << 3);
    pub(super) const KERNEL: Self = Self(1 << 4);
    pub(super) const TCP_OPEN: Self = Self(1 << 5);
    pub(super) const TCP_ENDED: Self = Self(1 << 6);
    pub(super) const PEEKED: Self = Self(1 << 7);
    pub(super) const RING: Self = Self(1 << 8);
    pub(super) const RING_OPEN: Self = Self(1 << 9);
    pub(super) const RING_ENDED: Self = Self(1 << 10);
    pub(super) const UNDRAINED: Self = Self(1 << 11);
    pub(super) const DRAINED: Self = Self(1 << 12);
    pub(super) const NONE_UNREAD: Self = Self(1 << 13);
    pub(super) const UNREAD: Self = Self(1 << 14);
    pub(super) const PEER_THERE: Self = Self(1 << 15);
    pub(super) const PEER_GONE: Self = Self(1 << 16);
    // Outcomes of reads and writes that an answer asked for.
    pub(super) const TCP_EMPTY: Self = Self(1 << 17);
    pub(super) const TCP_EOF: Self = Self(1 << 18);
    pub(super) const RING_EMPTY: Self = Self(1 << 19);
    pub(super) const RING_CLOSED: Self = Self(1 << 20);
    pub(super) const RING_BROKE: Self = Self(1 << 21);
    pub(super) const TCP_FULL: Self = Self(1 << 22);
    pub(super) const RING_FULL: Self = Self(1 << 23);
    // Messages for which there was no room in this try.
    pub(super) const NO_READY: Self = Self(1 << 24);
    pub(super) const NO_UP: Self = Self(1 << 25);
    pub(super) const NO_DOWN: Self = Self(1 << 26);
    pub(super) const NO_LEAVE: Self = Self(1 << 27);

    pub(super) const TCP_HAS_MORE: Self = Self(1 << 28);
    pub(super) const TCP_ENDS_CALL: Self = Self(1 << 29);

    pub(super) const RING_FAILED: Self = Self(1 << 30);

    pub(super) const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Seen {
    /// Nothing yet.
    #[must_use]
    pub const fn new(now: Conditions) -> Self {
        Self {
            now,
            known: Known::NONE,
            peeked: Peeked::Nothing,
            messages: ReceivedMessages { counts: Counts::from_bits(0), up_offset: 0 },
            queued: 0,
            late_queued: 0,
            ring: 0,
            kernel: None,
        }
    }

    /// The conditions, as far as the try knows them.
    #[must_use]
    pub const fn now(&self) -> Conditions {
        self.now
    }

    /// The stream has been pinned, as a step asked for.
    pub const fn pinned(&mut self) {
        self.now = self.now.with(Conditions::PINNED);
    }

    /// Notes a fact, and observes the conditions again with `conditions` if the fact may have
    /// outdated them.
    pub fn note<R: Rules>(&mut self, fact: Fact, conditions: impl FnOnce() -> Conditions) {
        if fact.outdates_conditions::<R>() {
            self.now = conditions();
        }
        use Known as K;
        // Once a message has been received, all bytes before it on the ring can be counted: so a
        // new fact about messages outdates the count of bytes.
        const COUNTED: Known = Known::MESSAGES.or(Known::ALL_MESSAGES).or(Known::RING);
        const BROKE: Known = Known::RING_EMPTY.or(Known::RING_CLOSED).or(Known::RING_BROKE);
        match fact {
            Fact::Messages(messages) => {
                self.know(K::MESSAGES, |seen| seen.messages = messages, K::RING)
            }
            Fact::AllMessages(messages) => {
                self.know(
                    K::MESSAGES.or(K::ALL_MESSAGES),
                    |seen| seen.messages = messages,
                    K::RING,
                );
            }
            Fact::Queued(n) if self.knows(K::QUEUED) => {
                self.know(K::LATE_QUEUED, |seen| seen.late_queued = n, K::NONE);
            }
            // Bytes in the queue were written before any message that has not arrived yet. So the
            // queue is observed before the messages.
            Fact::Queued(n) => {
                let outdated = if is_mistaken!(R, QueueAfterMessages) { K::NONE } else { COUNTED };
                self.know(K::QUEUED, |seen| seen.queued = n, outdated);
            }
            Fact::KernelCount(n) => self.know(K::KERNEL, |seen| seen.kernel = n, K::NONE),
            Fact::TcpEnded(false) => self.add(K::TCP_OPEN),
            // All that the peer sent on the ring before it ended TCP has arrived by now.
            Fact::TcpEnded(true) => self.know(K::TCP_ENDED, |_| (), COUNTED),
            Fact::Peeked(Peeked::Nothing) => self.set_peeked(Peeked::Nothing, K::NONE),
            Fact::Peeked(peeked) => {
                let is_late = peeked == Peeked::End && is_mistaken!(R, NoSecondCheckAtEnd);
                let outdated = if is_late { K::NONE } else { COUNTED.or(K::QUEUED) };
                self.set_peeked(peeked, outdated);
            }
            Fact::TcpHasMore(goes_on) | Fact::TcpEndsCall(goes_on) => {
                let is = matches!(fact, Fact::TcpHasMore(_)) == goes_on;
                self.add(if is { K::TCP_HAS_MORE } else { K::TCP_ENDS_CALL });
            }
            Fact::RingBytes(n) => self.know(K::RING, |seen| seen.ring = n, K::NONE),
            Fact::RingEnd(false) => self.know(K::RING_OPEN, |_| (), COUNTED),
            Fact::RingEnd(true) => self.know(K::RING_ENDED, |_| (), COUNTED),
            Fact::Drained(is) => self.add(if is { K::DRAINED } else { K::UNDRAINED }),
            Fact::LeftUnread(is) => self.add(if is { K::UNREAD } else { K::NONE_UNREAD }),
            Fact::PeerGone(is) => self.add(if is { K::PEER_GONE } else { K::PEER_THERE }),
            Fact::TcpEmpty => self.add(K::TCP_EMPTY),
            Fact::TcpEof => self.know(K::TCP_EOF, |_| (), COUNTED),
            Fact::RingEmpty => self.know(K::RING_EMPTY, |_| (), COUNTED),
            Fact::RingEof => {
                let outdated = if is_mistaken!(R, RingEndIsTheEnd) { K::NONE } else { COUNTED };
                self.know(K::RING_EMPTY.or(K::RING_CLOSED), |_| (), outdated);
            }
            Fact::RingBroke => self.know(BROKE, |_| (), COUNTED),
            Fact::RingFailed => self.know(BROKE.or(K::RING_FAILED), |_| (), COUNTED),
            Fact::TcpFull => self.add(K::TCP_FULL),
            Fact::RingFull => self.add(K::RING_FULL),
            Fact::RingClosed => self.add(K::RING_FULL.or(K::RING_CLOSED)),
        }
    }

    /// There was no room for `message`: this try goes on without it.
    pub(super) fn refuse(&mut self, message: Message) {
        self.add(match message {
            Message::Ready => Known::NO_READY,
            Message::Up { .. } => Known::NO_UP,
            Message::Down => Known::NO_DOWN,
            Message::Leave => Known::NO_LEAVE,
        });
    }

    /// The direction has moved: only the facts about the queue and the messages still hold.
    pub(super) fn moved(&mut self) {
        let kept = Known::MESSAGES.or(Known::ALL_MESSAGES).or(Known::QUEUED);
        let refused = Known::NO_READY.or(Known::NO_UP).or(Known::NO_DOWN).or(Known::NO_LEAVE);
        self.known = Known(self.known.0 & kept.or(refused).0);
        self.peeked = Peeked::Nothing;
        self.forget_values();
    }

    /// The ring has bytes after all: it is read again.
    pub(super) fn read_ring_again(&mut self) {
        let broke = Known::RING_BROKE.or(Known::RING_FAILED);
        let outdated = Known::RING_EMPTY.or(Known::RING_CLOSED).or(broke);
        let ends = Known::PEEKED.or(Known::TCP_ENDED).or(Known::TCP_OPEN).or(Known::RING_ENDED);
        self.forget(outdated.or(ends).or(Known::RING_OPEN));
    }

    pub(super) const fn knows(&self, any: Known) -> bool {
        self.known.0 & any.0 != 0
    }

    pub(super) const fn is(&self, condition: Conditions) -> bool {
        self.now.has(condition)
    }

    /// The outcome of a peek, if there was one.
    pub(super) fn peeked(&self) -> Option<Peeked> {
        self.knows(Known::PEEKED).then_some(self.peeked)
    }

    fn set_peeked(&mut self, peeked: Peeked, outdated: Known) {
        self.know(Known::PEEKED, |seen| seen.peeked = peeked, outdated);
    }

    fn know(&mut self, known: Known, set: impl FnOnce(&mut Self), outdated: Known) {
        self.forget(outdated);
        self.add(known);
        set(self);
    }

    fn add(&mut self, known: Known) {
        self.known = self.known.or(known);
    }

    fn forget(&mut self, outdated: Known) {
        self.known = Known(self.known.0 & !outdated.0);
        self.forget_values();
    }

    /// Resets fields without a value to zero, so that equal states compare as equal.
    fn forget_values(&mut self) {
        if !self.knows(Known::QUEUED) {
            self.queued = 0;
        }
        if !self.knows(Known::LATE_QUEUED) {
            self.late_queued = 0;
        }
        if !self.knows(Known::RING) {
            self.ring = 0;
        }
        if !self.knows(Known::KERNEL) {
            self.kernel = None;
        }
        if !self.knows(Known::MESSAGES) {
            self.messages = ReceivedMessages::default();
        }
    }
}
