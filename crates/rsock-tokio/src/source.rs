//! A source of events that no socket of the runtime shows: the queue of a faster connection, of an
//! rsockets socket, or of a datagram socket.
//!
//! Below `waiter`. Each call is one of `rsock_core`'s; `waiter` keeps the order that they require:
//! take a mark, try, arm.

use rsock_core::accelerate::{self, AcceleratedStream};
use rsock_core::datagram::Datagram;
use rsock_core::rsocket::Socket;
use rsock_core::{Doorbell, ReadyNumber, SoftReadySet};
use std::io;
use std::sync::Arc;

/// See the module.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// The faster connection of a stream that began as TCP.
    Accelerated(Arc<AcceleratedStream>),
    /// A connected rsockets socket.
    Rsockets(Arc<Socket>),
    /// The queues that a datagram socket has besides its UDP socket.
    Datagram(Arc<Datagram>),
}

/// A position in a source's history of events, to be compared with a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark(u64);

impl Mark {
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl Source {
    /// Doorbells at most: each device that messages come over rings one.
    pub(crate) const DOORBELLS: usize = 2;

    /// Number of queues that messages may come through. It only grows; tasks that wait since before
    /// it grew do not watch the new queue.
    pub(crate) fn n_queues(&self) -> usize {
        match self {
            Self::Accelerated(stream) => stream.has_path().into(),
            Self::Rsockets(_) => 0,
            Self::Datagram(socket) => socket.n_remote_queues(),
        }
    }

    /// Whether anything can come through it now.
    pub(crate) fn is_open(&self) -> bool {
        match self {
            Self::Accelerated(stream) => stream.has_path(),
            Self::Rsockets(_) => true,
            Self::Datagram(socket) => socket.has_peers_past_udp(),
        }
    }

    pub(crate) fn mark(&self) -> Mark {
        Mark(match self {
            Self::Accelerated(stream) => stream.mark().to_bits(),
            Self::Rsockets(socket) => socket.mark().into(),
            Self::Datagram(socket) => socket.mark().into(),
        })
    }

    /// Whether anything has happened since `mark`.
    pub(crate) fn has_changed(&self, mark: Mark) -> bool {
        match self {
            Self::Accelerated(stream) => stream.has_changed(accelerate::Mark::from_bits(mark.0)),
            Self::Rsockets(socket) => socket.has_changed(low(mark)),
            Self::Datagram(socket) => socket.has_changed(low(mark)),
        }
    }

    /// Creates doorbell number `n`, below [`Self::DOORBELLS`]; `None` while there is no queue that
    /// would ring it.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn doorbell(&self, n: usize) -> io::Result<Option<Doorbell>> {
        match (self, n) {
            (Self::Accelerated(stream), 0) => stream.create_doorbell().map(Some),
            (Self::Rsockets(socket), 0) => socket.doorbell().map(Some),
            (Self::Datagram(socket), 0) => socket.local_doorbell(),
            (Self::Datagram(socket), 1) => socket.remote_doorbell(),
            _ => Ok(None),
        }
    }

    /// Gives the source a place in `set`, so that [`Self::announce`] replaces its doorbells. `None`
    /// if its device cannot announce it, or if another set has it.
    pub(crate) fn join_set(&self, set: &SoftReadySet) -> Option<ReadyNumber> {
        match self {
            Self::Accelerated(stream) => stream.join_set(set),
            Self::Rsockets(socket) => socket.join_set(set),
            Self::Datagram(_) => None,
        }
    }

    /// Gives up the place that [`Self::join_set`] returned.
    pub(crate) fn leave_set(&self, set: &SoftReadySet, number: ReadyNumber) {
        match self {
            Self::Accelerated(stream) => stream.leave_set(set, number),
            Self::Rsockets(socket) => socket.leave_set(set, number),
            Self::Datagram(_) => {}
        }
    }

    /// Has the set told of what happens after `mark`. False, and nothing is armed, if something has
    /// happened already.
    pub(crate) fn announce(&self, mark: Mark) -> bool {
        match self {
            Self::Accelerated(stream) => stream.announce(accelerate::Mark::from_bits(mark.0)),
            Self::Rsockets(socket) => socket.announce(low(mark)),
            Self::Datagram(_) => false,
        }
    }

    /// Undoes a [`Self::announce`] that returned true. One announcement may still come.
    pub(crate) fn stop_announcing(&self) {
        match self {
            Self::Accelerated(stream) => stream.stop_announcing(),
            Self::Rsockets(socket) => socket.stop_announcing(),
            Self::Datagram(_) => {}
        }
    }

    /// Asks the peer to ring `bell`. False, and nothing is armed, if something has happened since
    /// `mark`.
    pub(crate) fn arm(&self, bell: &Doorbell, mark: Mark) -> bool {
        match self {
            Self::Accelerated(stream) => stream.arm(bell, accelerate::Mark::from_bits(mark.0)),
            Self::Rsockets(socket) => socket.arm(bell, low(mark)),
            Self::Datagram(socket) => socket.arm_doorbell(bell),
        }
    }

    pub(crate) fn disarm(&self, bell: &Doorbell) {
        match self {
            Self::Accelerated(stream) => stream.disarm(bell),
            Self::Rsockets(socket) => socket.disarm(bell),
            Self::Datagram(socket) => socket.disarm_doorbell(bell),
        }
    }
}

/// The marks of rsockets and datagram sockets have 32 bits.
fn low(mark: Mark) -> u32 {
    u32::try_from(mark.0 & u64::from(u32::MAX)).unwrap_or(0)
}
