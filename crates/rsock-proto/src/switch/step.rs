//! What a query of the switch asks its caller to do.

use super::Message;

/// The next thing to do for a query.
///
/// The caller does it, tells the switch what came of it, and asks the query again, until it is
/// [`Self::Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<D> {
    /// Make this observation; answer with a [`Fact`](super::Fact).
    Look(Look),
    /// Send this message; answer with `said`. It either goes out as a whole, or there is no room.
    Say(Message),
    /// Keep the stream on TCP for good: raise [`PINNED`](super::Conditions::PINNED), and answer
    /// with [`Seen::pinned`](super::Seen::pinned).
    Pin(Cause),
    /// The answer.
    Done(D),
}

impl<D> Step<D> {
    /// The same step with another answer.
    #[must_use]
    pub fn map<T>(self, f: impl FnOnce(D) -> T) -> Step<T> {
        match self {
            Self::Look(look) => Step::Look(look),
            Self::Say(message) => Step::Say(message),
            Self::Pin(cause) => Step::Pin(cause),
            Self::Done(answer) => Step::Done(f(answer)),
        }
    }
}

/// An observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Look {
    /// Messages that anything has taken from the ring so far. Loads of memory.
    Mail,
    /// Messages that have arrived on the ring: takes what waits there, unless another thread is
    /// doing so just now.
    News,
    /// All messages that had arrived on the ring when the look began: takes what waits there, under
    /// the lock under which it is taken.
    Messages,
    /// Bytes in the kernel's receive queue, up to an urgent one (`FIONREAD`).
    Queued,
    /// Bytes that the kernel's socket has given out, by the kernel's own count.
    KernelRead,
    /// Bytes that the kernel's socket has taken, by the kernel's own count.
    KernelWritten,
    /// Whether the receiving direction of TCP has ended (`POLLRDHUP`).
    TcpEnded,
    /// What a read of the kernel's socket would meet (`MSG_PEEK`).
    Peek,
    /// Whether the kernel's queue has bytes that the same call may take: the first is not urgent.
    TcpGoesOn,
    /// Whether a call that has received something must end before the kernel's socket: at an urgent
    /// byte, and at an error, which the kernel reports once.
    TcpStops,
    /// Bytes that a read of the ring would return. Takes what waits there first.
    RingBytes,
    /// Whether the ring carries the peer's end, or has failed. Takes what waits there first.
    RingEnd,
    /// Whether the peer's device has everything that was sent on the ring, or the ring has failed.
    /// Takes what waits there first.
    Drained,
    /// Whether the peer has gone and left bytes unread on the ring: TCP would have sent a reset.
    LeftUnread,
    /// Whether TCP says that the peer reads no more, while no end on the ring explains it.
    PeerGone,
}

/// Why the switch pins a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Bytes went through the kernel's socket that did not pass by here.
    ForeignUse,
    /// The peer sends urgent data.
    Urgent,
    /// The ring has failed before it was used.
    RingFailed,
}

/// What ends a stream for a query that cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The peer broke the protocol (`EPROTO`).
    Violation,
    /// Bytes that no [`Down`](Message::Down) announced are on TCP: their place in the stream is not
    /// known (`EPROTO`).
    ForeignBytes,
    /// Bytes that were announced do not come any more, or the ring is another process's
    /// (`ECONNRESET`).
    Lost,
}

/// What moving a direction takes, whatever the query.
pub(super) enum Move {
    Look(Look),
    Say(Message),
    Pin(Cause),
    Fault(Fault),
}

impl<D: From<Fault>> From<Move> for Step<D> {
    fn from(this: Move) -> Self {
        match this {
            Move::Look(look) => Self::Look(look),
            Move::Say(message) => Self::Say(message),
            Move::Pin(cause) => Self::Pin(cause),
            Move::Fault(fault) => Self::Done(fault.into()),
        }
    }
}
