//! What the threads of an end are at.

use super::world::{Endpoint, World};
use crate::switch::{Conditions, Seen};

/// A thread of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Thread {
    pub(super) job: Job,
    pub(super) seen: Seen,
    /// It has the lock that its job takes.
    pub(super) has_lock: bool,
    /// The ring has had news since the try began.
    pub(super) has_news: bool,
    /// The try looks at the socket although the ring does not ask for it.
    pub(super) is_due: bool,
    /// The last wait for the ring ended by its time.
    pub(super) is_impatient: bool,
}

/// What a thread is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Job {
    /// In the program.
    Idle,
    Read,
    Write,
    Count,
    Poll,
    /// Answers the peer before it sleeps.
    Answer(Sleep),
    /// After a pin: has the sending direction settle, then the receiving one.
    SettleSending,
    SettleReceiving,
    /// Hands the stream over.
    LeaveSending,
    LeaveReceiving,
    /// Has put the end of the direction on the ring; TCP's comes next.
    EndTcp,
    Asleep(Sleep),
    /// Comes to nothing more.
    Over,
}

/// What ends a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Sleep {
    /// What the peer asks: a call that waits for input that does not come.
    Listening,
    /// Input on the kernel's socket; news on the ring as well if `hears`.
    Tcp {
        hears: bool,
    },
    TcpOrRing,
    /// News on the ring, or the end of TCP.
    Ring,
    /// Anything at all on the ring, or the end of TCP.
    RingLevel,
    /// Room in the kernel's socket, or news on the ring.
    RoomOnTcp,
    /// News on the ring, or time.
    RoomOnRing,
    /// Time.
    Moment,
    /// News on the ring, or time, for a handover.
    Handover,
}

impl Thread {
    pub(super) const IDLE: Self = Self::at(Job::Idle);

    pub(super) const fn at(job: Job) -> Self {
        Self {
            job,
            seen: Seen::new(Conditions::NONE),
            has_lock: false,
            has_news: false,
            is_due: false,
            is_impatient: false,
        }
    }

    /// Notes news on the ring, if they mean anything to it.
    pub(super) fn hear_news(&mut self) {
        self.has_news |= !matches!(self.job, Job::Idle | Job::Over | Job::EndTcp);
    }
}

impl Sleep {
    /// Whether it also ends by time.
    pub(super) fn has_timer(self) -> bool {
        matches!(self, Self::RoomOnRing | Self::Moment | Self::Handover)
    }

    /// Whether something has ended it.
    pub(super) fn is_over(self, world: &World, e: usize, thread: &Thread, tcp_room: u8) -> bool {
        let end: &Endpoint = &world.ends[e];
        match self {
            Self::Tcp { hears } => world.tcp_is_readable(e) || hears && thread.has_news,
            Self::TcpOrRing => world.tcp_is_readable(e) || thread.has_news,
            Self::Ring => world.tcp_has_ended(e) || thread.has_news,
            Self::RingLevel => {
                let lane = &world.lanes[1 - e];
                let has_any = end.inbox.len() != 0 || end.inbox_ended || lane.is_dead;
                world.tcp_has_ended(e) || thread.has_news || lane.n_arrived != 0 || has_any
            }
            Self::RoomOnTcp => {
                let socket = &end.socket;
                let is_over = socket.was_reset || socket.is_shut;
                let has_room = world.tcp[e].queue.len() < tcp_room || is_over;
                has_room || thread.has_news && end.is_paired
            }
            Self::RoomOnRing | Self::Handover => thread.has_news,
            Self::Moment => false,
            // It is over when there is something to answer: see `Stage::go`.
            Self::Listening => false,
        }
    }
}
