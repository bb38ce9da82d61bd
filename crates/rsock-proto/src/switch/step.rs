//! What a query of the switch asks its caller to do.

use super::Message;

/// The next step of a query.
///
/// The caller takes it, reports the outcome to the switch, and asks the query again, until the step
/// is [`Self::Done`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step<D> {
    /// Make this observation; report it as a [`Fact`](super::Fact).
    Observe(Observation),
    /// Send this message; report it with `note_send`. It either goes out as a whole, or there is no
    /// room.
    Send(Message),
    /// Keep the stream on TCP for good: raise [`PINNED`](super::Conditions::PINNED), and report it
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
            Self::Observe(observation) => Step::Observe(observation),
            Self::Send(message) => Step::Send(message),
            Self::Pin(cause) => Step::Pin(cause),
            Self::Done(answer) => Step::Done(f(answer)),
        }
    }
}

/// An observation of the kernel's socket or of the ring, which the caller makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Observation {
    /// The messages that any thread has received from the ring so far. It only loads memory.
    Messages,
    /// The messages that have arrived on the ring. It dispatches arrivals first, unless another
    /// thread does so at the moment.
    PolledMessages,
    /// All messages that had arrived on the ring when the observation began. It dispatches arrivals
    /// first, and waits for the lock that this takes.
    AllMessages,
    /// Bytes in the kernel's receive queue, up to an urgent one (`FIONREAD`).
    Queued,
    /// Bytes that have been read from the kernel's socket, by the kernel's own count.
    KernelRead,
    /// Bytes that have been written to the kernel's socket, by the kernel's own count.
    KernelWritten,
    /// Whether the receiving direction of TCP has ended (`POLLRDHUP`).
    TcpEnded,
    /// What a read of the kernel's socket would return (`MSG_PEEK`).
    Peek,
    /// Whether the kernel's queue has bytes that the same call may take: the first is not urgent.
    TcpHasMore,
    /// Whether a call that has received something must end before the kernel's socket: at an urgent
    /// byte, and at an error, which the kernel reports once.
    TcpEndsCall,
    /// Bytes that a read of the ring would return. It dispatches arrivals first.
    RingBytes,
    /// Whether the peer's end has arrived on the ring, or the ring has failed. It dispatches
    /// arrivals first.
    RingEnd,
    /// Whether the peer's device has everything that was sent on the ring, or the ring has failed.
    /// It dispatches arrivals first.
    Drained,
    /// Whether the peer has gone and left bytes unread on the ring: TCP would have sent a reset.
    LeftUnread,
    /// Whether TCP says that the peer reads no more, while no end on the ring explains it.
    PeerGone,
}

/// Why the switch pins a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Bytes went through the kernel's socket without rsock: bare system calls, or another process.
    ForeignUse,
    /// The peer sends urgent data.
    Urgent,
    /// The ring has failed before it was used.
    RingFailed,
}

/// Why a stream cannot go on.
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
    Observe(Observation),
    Send(Message),
    Pin(Cause),
    Fault(Fault),
}

impl<D: From<Fault>> From<Move> for Step<D> {
    fn from(this: Move) -> Self {
        match this {
            Move::Observe(observation) => Self::Observe(observation),
            Move::Send(message) => Self::Send(message),
            Move::Pin(cause) => Self::Pin(cause),
            Move::Fault(fault) => Self::Done(fault.into()),
        }
    }
}
