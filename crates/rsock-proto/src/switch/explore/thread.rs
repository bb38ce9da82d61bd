//! The threads of an end, and what they do.

use super::world::{Endpoint, World};
use crate::switch::{Conditions, Seen};

/// A thread of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) job: Job,
    pub(super) seen: Seen,
    /// It has the lock that its job takes.
    pub(super) has_lock: bool,
    /// The ring has had an event since the try began.
    pub(super) has_ring_event: bool,
    /// The try checks the socket although the ring gives no reason to.
    pub(super) is_due: bool,
    /// The last wait for the ring ended by its time.
    pub(super) is_impatient: bool,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Job {
    /// In the program.
    Idle,
    Read,
    Write,
    Count,
    Poll,
    /// Answers the peer's request before it sleeps.
    Answer(Sleep),
    /// After a pin: has the sending direction settle, then the receiving one.
    SettleSending,
    SettleReceiving,
    /// Hands the stream over.
    LeaveSending,
    LeaveReceiving,
    /// Has ended the direction on the ring; TCP is next.
    EndTcp,
    Asleep(Sleep),
    /// Nothing from now on.
    Over,
}

/// What ends a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sleep {
    /// A request of the peer: a call that waits for input that never comes.
    ForRequests,
    /// Input on the kernel's socket; an event on the ring as well if `ring_wakes`.
    Tcp {
        ring_wakes: bool,
    },
    TcpOrRing,
    /// An event on the ring, or the end of TCP.
    Ring,
    /// Bytes or an end on the ring, old or new, or the end of TCP.
    RingLevel,
    /// Room in the kernel's socket, or an event on the ring.
    RoomOnTcp,
    /// An event on the ring, or time.
    RoomOnRing,
    /// Time.
    Moment,
    /// An event on the ring, or time, for a handoff.
    Handoff,
}

impl Thread {
    pub(super) const IDLE: Self = Self::at(Job::Idle);

    pub(super) const fn at(job: Job) -> Self {
        Self {
            job,
            seen: Seen::new(Conditions::NONE),
            has_lock: false,
            has_ring_event: false,
            is_due: false,
            is_impatient: false,
        }
    }

    /// Notes an event on the ring, if the thread makes a call.
    pub(super) fn note_ring_event(&mut self) {
        self.has_ring_event |= !matches!(self.job, Job::Idle | Job::Over | Job::EndTcp);
    }
}

impl Sleep {
    /// Whether it also ends by time.
    pub(super) fn has_timer(self) -> bool {
        matches!(self, Self::RoomOnRing | Self::Moment | Self::Handoff)
    }

    /// Whether something has ended it.
    pub(super) fn is_over(self, world: &World, e: usize, thread: &Thread, tcp_room: u8) -> bool {
        let end: &Endpoint = &world.ends[e];
        match self {
            Self::Tcp { ring_wakes } => {
                world.tcp_is_readable(e) || ring_wakes && thread.has_ring_event
            }
            Self::TcpOrRing => world.tcp_is_readable(e) || thread.has_ring_event,
            Self::Ring => world.tcp_has_ended(e) || thread.has_ring_event,
            Self::RingLevel => {
                let lane = &world.lanes[1 - e];
                let has_any = end.inbox.len() != 0 || end.inbox_ended || lane.is_dead;
                world.tcp_has_ended(e) || thread.has_ring_event || lane.n_arrived != 0 || has_any
            }
            Self::RoomOnTcp => {
                let socket = &end.socket;
                let is_over = socket.was_reset || socket.is_shut;
                let has_room = world.tcp[e].queue.len() < tcp_room || is_over;
                has_room || thread.has_ring_event && end.is_paired
            }
            Self::RoomOnRing | Self::Handoff => thread.has_ring_event,
            Self::Moment => false,
            // It is over when there is something to answer: see `Transition::go`.
            Self::ForRequests => false,
        }
    }
}
