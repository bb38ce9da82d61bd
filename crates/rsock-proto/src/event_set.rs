//! What an epoll set reports of a stream on the ring: the rules of `EPOLL_CTL_ADD`, `EPOLL_CTL_MOD`
//! and of one look at a watch by `epoll_wait`.
//!
//! The rules are Linux's (`epoll(7)`; `ep_insert`, `ep_modify`, `ep_poll_callback` and
//! `ep_send_events` in `fs/eventpoll.c`, `tcp_poll` in `net/ipv4/tcp.c`). The kernel has each watch
//! in a list of those that may be ready; a callback puts it there. Here news is counted instead: an
//! [`ReadinessSnapshot`] has counts that only grow, and a watch keeps those of the last time it was
//! looked at. So nothing has to run when bytes arrive, and news that comes twice before a wait is
//! reported once, as in the kernel.
//!
//! | watch | reported | afterwards |
//! | --- | --- | --- |
//! | level | while an event that it asks for holds | comes again, after the others |
//! | edge | with news since the last look, if an event that it asks for holds | silent until news |
//! | one-shot | as the above | silent until `EPOLL_CTL_MOD` |
//!
//! News of bytes concerns those that ask for input, news of room those that ask for output, and an
//! end or a reset every watch. With news, every event that holds is reported, not only the new one.

use std::ops::{BitAnd, BitOr};

/// Bits of `epoll_event.events`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Events(u32);

impl Events {
    /// None.
    pub const NONE: Self = Self(0);
    /// `EPOLLIN | EPOLLRDNORM`, which hold together.
    pub const INPUT: Self = Self(0x41);
    /// `EPOLLPRI`.
    pub const URGENT: Self = Self(0x2);
    /// `EPOLLOUT | EPOLLWRNORM`, which hold together.
    pub const OUTPUT: Self = Self(0x104);
    /// `EPOLLERR`.
    pub const ERROR: Self = Self(0x8);
    /// `EPOLLHUP`.
    pub const HANG_UP: Self = Self(0x10);
    /// `EPOLLRDHUP`.
    pub const PEER_ENDED: Self = Self(0x2000);
    /// `EPOLLONESHOT`.
    pub const ONE_SHOT: Self = Self(1 << 30);
    /// `EPOLLET`.
    pub const EDGE: Self = Self(1 << 31);

    /// Every watch asks for these.
    const ALWAYS: Self = Self(Self::ERROR.0 | Self::HANG_UP.0);
    /// What a callback with bytes says in the kernel, with `EPOLLRDBAND`.
    const OF_BYTES: Self = Self(Self::INPUT.0 | Self::URGENT.0 | 0x80);
    /// What a callback with room says, with `EPOLLWRBAND`.
    const OF_ROOM: Self = Self(Self::OUTPUT.0 | 0x200);
    /// `EPOLLEXCLUSIVE`, `EPOLLWAKEUP`, `EPOLLONESHOT`, `EPOLLET`.
    const FLAGS: Self = Self(0xf << 28);

    /// From `epoll_event.events`.
    #[must_use]
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// As `epoll_event.events`.
    #[must_use]
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether one of `others` is among these.
    #[must_use]
    pub const fn has(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }

    const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

impl BitOr for Events {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitAnd for Events {
    type Output = Self;

    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }
}

/// What happened to a stream so far. The counts only grow, and wrap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct News {
    /// Arrivals: any number that changes with each.
    pub arrivals: u32,
    /// Times that room came after a send or a poll had found none.
    pub room: u32,
    /// Ends, of either direction and by either end, and resets.
    pub changes: u32,
}

/// What holds of a stream now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ReadinessSnapshot {
    /// Whether as many bytes as `SO_RCVLOWAT` asks for can be received.
    pub is_readable: bool,
    /// Whether a third of the room for sending is free.
    pub has_room: bool,
    /// Whether an urgent byte has not been received yet.
    pub is_urgent: bool,
    /// Whether nothing more comes: the peer has ended, or this end has shut down receiving.
    pub input_ended: bool,
    /// Whether this end has shut down sending.
    pub output_ended: bool,
    /// Whether an error waits to be reported: a reset.
    pub has_error: bool,
    /// What happened so far.
    pub news: News,
}

impl ReadinessSnapshot {
    /// What holds, as `poll` says it of a connected TCP socket.
    #[must_use]
    pub fn ready(&self) -> Events {
        let of = |holds: bool, events| if holds { events } else { Events::NONE };
        of(self.is_readable || self.input_ended, Events::INPUT)
            | of(self.input_ended, Events::PEER_ENDED)
            | of(self.has_room || self.output_ended, Events::OUTPUT)
            | of(self.is_urgent, Events::URGENT)
            | of(self.has_error, Events::ERROR)
            | of(self.input_ended && self.output_ended, Events::HANG_UP)
    }
}

/// One watch: a descriptor in an epoll set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    asked: Events,
    /// A one-shot watch has reported, and is silent until it is changed.
    is_spent: bool,
    /// It was ready when it was added or changed, which the next look reports like news.
    is_due: bool,
    seen: News,
}

/// What one look at a watch answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// What the wait returns of it: nothing if this is empty.
    pub report: Events,
    /// Where the watch is in the queue of those that waits look at.
    pub place: Place,
    /// The watch from now on.
    pub next: Watch,
}

/// Where a watch is after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Behind the others: the next wait looks at it again.
    Last,
    /// Not in the queue until there is news.
    Out,
}

impl Watch {
    /// `EPOLL_CTL_ADD`, and `EPOLL_CTL_MOD`, which begins anew: what was news and has not been
    /// reported is ready now, or will be with other news.
    #[must_use]
    pub fn new(asked: Events, now: &ReadinessSnapshot) -> Self {
        let asked = asked | Events::ALWAYS;
        Self { asked, is_spent: false, is_due: now.ready().has(asked.mask()), seen: now.news }
    }

    /// A watch that goes on: everything up to `seen` has been reported by the kernel.
    #[must_use]
    pub fn resumed(asked: Events, seen: News) -> Self {
        Self { asked: asked | Events::ALWAYS, is_spent: false, is_due: false, seen }
    }

    /// The same watch after a one-shot event.
    #[must_use]
    pub fn spent(self) -> Self {
        Self { is_spent: true, ..self }
    }

    /// Whether it is silent until it is changed.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.is_spent
    }

    /// Whether there is news since the last look that concerns this watch. A wait need not look at
    /// an edge-triggered watch without.
    #[must_use]
    pub fn has_news(&self, now: &ReadinessSnapshot) -> bool {
        let mask = self.asked.mask();
        !self.is_spent
            && (self.seen.changes != now.news.changes
                || self.seen.arrivals != now.news.arrivals && mask.has(Events::OF_BYTES)
                || self.seen.room != now.news.room && mask.has(Events::OF_ROOM))
    }

    /// One look, by a wait that has room for an event.
    #[must_use]
    pub fn inspect(self, now: &ReadinessSnapshot) -> Inspection {
        let seen = Self { is_due: false, seen: now.news, ..self };
        let holds = now.ready() & self.asked.mask();
        let is_edge = self.asked.has(Events::EDGE);
        let is_news = self.is_due || self.has_news(now);
        if self.is_spent || holds == Events::NONE || is_edge && !is_news {
            return Inspection { report: Events::NONE, place: Place::Out, next: seen };
        }
        let is_spent = self.asked.has(Events::ONE_SHOT);
        let place = if is_spent || is_edge { Place::Out } else { Place::Last };
        Inspection { report: holds, place, next: Self { is_spent, ..seen } }
    }
}

impl Events {
    /// Without the flags that are no events.
    fn mask(self) -> Self {
        self.without(Self::FLAGS)
    }
}

#[cfg(test)]
mod tests;
