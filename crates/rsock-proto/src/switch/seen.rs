//! What one try of a call has seen so far.

use super::rules::is_mistaken;
use super::{Conditions, Counts, Heard, Message, Rules};

/// The outcome of an observation, or of what an answer asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fact {
    /// For [`Look::Mail`](super::Look::Mail) and [`Look::News`](super::Look::News).
    Mail(Heard),
    /// For [`Look::Messages`](super::Look::Messages).
    Messages(Heard),
    /// For [`Look::Queued`](super::Look::Queued).
    Queued(u64),
    /// For [`Look::KernelRead`](super::Look::KernelRead) and
    /// [`Look::KernelWritten`](super::Look::KernelWritten). `None`: the kernel gives no answer that
    /// can be relied on now, or the connection is over.
    KernelCount(Option<u64>),
    /// For [`Look::TcpEnded`](super::Look::TcpEnded).
    TcpEnded(bool),
    /// For [`Look::Peek`](super::Look::Peek).
    Peeked(Peeked),
    /// For [`Look::TcpGoesOn`](super::Look::TcpGoesOn).
    TcpGoesOn(bool),
    /// For [`Look::TcpStops`](super::Look::TcpStops).
    TcpStops(bool),
    /// For [`Look::RingBytes`](super::Look::RingBytes).
    RingBytes(u64),
    /// For [`Look::RingEnd`](super::Look::RingEnd): whether the peer's end is there.
    RingEnd(bool),
    /// For [`Look::Drained`](super::Look::Drained).
    Drained(bool),
    /// For [`Look::LeftUnread`](super::Look::LeftUnread).
    LeftUnread(bool),
    /// For [`Look::PeerGone`](super::Look::PeerGone).
    PeerGone(bool),
    /// A read of TCP found nothing.
    TcpEmpty,
    /// A read of TCP returned its end.
    TcpEnd,
    /// A read of the ring found nothing.
    RingEmpty,
    /// A read of the ring returned its end.
    RingEnds,
    /// A read of the ring found nothing, and the connection broken.
    RingBroke,
    /// A read of the ring, or a write to it, failed otherwise: the caller keeps the error.
    RingFailed,
    /// A write to TCP found no room.
    TcpFull,
    /// A write to the ring found no room.
    RingFull,
    /// A write to the ring found it closed, or on one host broken by the end of the connection.
    RingClosed,
}

impl Fact {
    /// Whether the [`Conditions`] that a try began with may not hold any more because of this, or
    /// because of what made it so: they are taken anew then. Other changes may wait for the next
    /// try: what makes them takes the lock of the direction afterwards, or wakes a sleeper.
    #[must_use]
    pub fn outdates_conditions<R: Rules>(self) -> bool {
        match self {
            // This look may be the first to learn that the ring has failed.
            Self::RingEnd(_) => !is_mistaken!(R, EndedByFailure),
            // The same: then it is answered "drained".
            Self::Drained(_) => !is_mistaken!(R, DrainedByFailure),
            // It may be this process's own end, which another thread has just put there.
            Self::TcpEnd => !is_mistaken!(R, OwnEndUnnoticed),
            // The last look before a move to the ring. Looks before it may have been the first to
            // learn that the ring has failed, and a halt may have begun.
            Self::KernelCount(_) => true,
            // How long the ring has been full may have begun just now.
            Self::RingFull | Self::RingClosed | Self::RingFailed => true,
            _ => false,
        }
    }
}

/// What a read of the kernel's socket would meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Peeked {
    /// Nothing yet.
    Nothing,
    /// At least a byte.
    Bytes,
    /// Nothing but an urgent byte, which a read passes and a look ahead does not.
    Mark,
    /// The end.
    End,
    /// An error, which the caller keeps: the kernel reports it once.
    Error,
}

/// What one try of a call has seen so far. It begins empty with each try, lives on the stack, and
/// keeps observations in the order that the rules need: an older one that a newer one outdates is
/// forgotten, and so is asked for again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// What held when the try began, or when a fact last outdated that.
    pub(super) now: Conditions,
    known: Known,
    peeked: Peeked,
    /// What had arrived on the ring beside bytes.
    pub(super) heard: Heard,
    pub(super) queued: u64,
    pub(super) late_queued: u64,
    pub(super) ring: u64,
    pub(super) kernel: Option<u64>,
}

/// What of [`Seen`] means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Known(u32);

impl Known {
    const NONE: Self = Self(0);
    pub(super) const MAIL: Self = Self(1);
    pub(super) const MESSAGES: Self = Self(1 << 1);
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
    /// Outcomes of what an answer asked for.
    pub(super) const TCP_EMPTY: Self = Self(1 << 17);
    pub(super) const TCP_END: Self = Self(1 << 18);
    pub(super) const RING_EMPTY: Self = Self(1 << 19);
    pub(super) const RING_OVER: Self = Self(1 << 20);
    pub(super) const RING_BROKE: Self = Self(1 << 21);
    pub(super) const TCP_FULL: Self = Self(1 << 22);
    pub(super) const RING_FULL: Self = Self(1 << 23);
    /// Messages for which there was no room in this try.
    pub(super) const NO_READY: Self = Self(1 << 24);
    pub(super) const NO_UP: Self = Self(1 << 25);
    pub(super) const NO_DOWN: Self = Self(1 << 26);
    pub(super) const NO_LEAVE: Self = Self(1 << 27);

    pub(super) const TCP_GOES_ON: Self = Self(1 << 28);
    pub(super) const TCP_STOPS: Self = Self(1 << 29);

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
            heard: Heard { counts: Counts::from_bits(0), up_offset: 0 },
            queued: 0,
            late_queued: 0,
            ring: 0,
            kernel: None,
        }
    }

    /// What holds, as far as the try knows.
    #[must_use]
    pub const fn now(&self) -> Conditions {
        self.now
    }

    /// The stream has been pinned, as a step asked for.
    pub const fn pinned(&mut self) {
        self.now = self.now.with(Conditions::PINNED);
    }

    /// Takes note of what an observation, or an answer, came to, and of what holds after it if
    /// that may be something else: then it asks for `conditions`.
    pub fn note<R: Rules>(&mut self, fact: Fact, conditions: impl FnOnce() -> Conditions) {
        if fact.outdates_conditions::<R>() {
            self.now = conditions();
        }
        use Known as K;
        // With a message seen, everything before it on the ring is counted: so bytes come after.
        const MAILS: Known = Known::MAIL.or(Known::MESSAGES).or(Known::RING);
        const BROKE: Known = Known::RING_EMPTY.or(Known::RING_OVER).or(Known::RING_BROKE);
        match fact {
            Fact::Mail(heard) => self.know(K::MAIL, |seen| seen.heard = heard, K::RING),
            Fact::Messages(heard) => {
                self.know(K::MAIL.or(K::MESSAGES), |seen| seen.heard = heard, K::RING);
            }
            Fact::Queued(n) if self.knows(K::QUEUED) => {
                self.know(K::LATE_QUEUED, |seen| seen.late_queued = n, K::NONE);
            }
            // Bytes in the queue were written before whatever message has not arrived yet. So the
            // queue comes first.
            Fact::Queued(n) => {
                let outdated = if is_mistaken!(R, QueueAfterMessages) { K::NONE } else { MAILS };
                self.know(K::QUEUED, |seen| seen.queued = n, outdated);
            }
            Fact::KernelCount(n) => self.know(K::KERNEL, |seen| seen.kernel = n, K::NONE),
            Fact::TcpEnded(false) => self.add(K::TCP_OPEN),
            // Whatever the peer did before it ended TCP is to be seen on the ring by now.
            Fact::TcpEnded(true) => self.know(K::TCP_ENDED, |_| (), MAILS),
            Fact::Peeked(Peeked::Nothing) => self.set_peeked(Peeked::Nothing, K::NONE),
            Fact::Peeked(peeked) => {
                let is_late = peeked == Peeked::End && is_mistaken!(R, NoSecondLookAtEnd);
                let outdated = if is_late { K::NONE } else { MAILS.or(K::QUEUED) };
                self.set_peeked(peeked, outdated);
            }
            Fact::TcpGoesOn(goes_on) | Fact::TcpStops(goes_on) => {
                let is = matches!(fact, Fact::TcpGoesOn(_)) == goes_on;
                self.add(if is { K::TCP_GOES_ON } else { K::TCP_STOPS });
            }
            Fact::RingBytes(n) => self.know(K::RING, |seen| seen.ring = n, K::NONE),
            Fact::RingEnd(false) => self.know(K::RING_OPEN, |_| (), MAILS),
            Fact::RingEnd(true) => self.know(K::RING_ENDED, |_| (), MAILS),
            Fact::Drained(is) => self.add(if is { K::DRAINED } else { K::UNDRAINED }),
            Fact::LeftUnread(is) => self.add(if is { K::UNREAD } else { K::NONE_UNREAD }),
            Fact::PeerGone(is) => self.add(if is { K::PEER_GONE } else { K::PEER_THERE }),
            Fact::TcpEmpty => self.add(K::TCP_EMPTY),
            Fact::TcpEnd => self.know(K::TCP_END, |_| (), MAILS),
            Fact::RingEmpty => self.know(K::RING_EMPTY, |_| (), MAILS),
            Fact::RingEnds => {
                let outdated = if is_mistaken!(R, RingEndIsTheEnd) { K::NONE } else { MAILS };
                self.know(K::RING_EMPTY.or(K::RING_OVER), |_| (), outdated);
            }
            Fact::RingBroke => self.know(BROKE, |_| (), MAILS),
            Fact::RingFailed => self.know(BROKE.or(K::RING_FAILED), |_| (), MAILS),
            Fact::TcpFull => self.add(K::TCP_FULL),
            Fact::RingFull => self.add(K::RING_FULL),
            Fact::RingClosed => self.add(K::RING_FULL.or(K::RING_OVER)),
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

    /// The direction has moved: of what was seen only the queue and the messages still mean the
    /// same.
    pub(super) fn moved(&mut self) {
        let kept = Known::MAIL.or(Known::MESSAGES).or(Known::QUEUED);
        let refused = Known::NO_READY.or(Known::NO_UP).or(Known::NO_DOWN).or(Known::NO_LEAVE);
        self.known = Known(self.known.0 & kept.or(refused).0);
        self.peeked = Peeked::Nothing;
        self.forget_values();
    }

    /// The ring has something after all: it is read again.
    pub(super) fn read_ring_again(&mut self) {
        let broke = Known::RING_BROKE.or(Known::RING_FAILED);
        let outdated = Known::RING_EMPTY.or(Known::RING_OVER).or(broke);
        let ends = Known::PEEKED.or(Known::TCP_ENDED).or(Known::TCP_OPEN).or(Known::RING_ENDED);
        self.forget(outdated.or(ends).or(Known::RING_OPEN));
    }

    pub(super) const fn knows(&self, any: Known) -> bool {
        self.known.0 & any.0 != 0
    }

    pub(super) const fn is(&self, condition: Conditions) -> bool {
        self.now.has(condition)
    }

    /// What a look ahead met, if there was one.
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

    /// Values that mean nothing are zero, so that equal states are equal.
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
        if !self.knows(Known::MAIL) {
            self.heard = Heard::default();
        }
    }
}
