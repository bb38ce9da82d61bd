//! The resolution of peers: the destinations to which a socket knows a faster route.
//!
//! A destination is unknown until a UDP packet *from its own address and port* tells the number of
//! its queue. Then the caller opens a route to that queue, and uses UDP until the route is open.
//! This module uses no clock, no descriptor and no route: `now` is an argument, and a route is any
//! `W` ([`PeerRoute`]).
//!
//! INVARIANT: the table is bounded. A source that this socket has not sent to never displaces a
//! destination. A route leads to the number that its destination told last.

use crate::datagram::lru::LruMap;
use rsock_verbs::QpNum;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Sizes and times of a [`Table`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Destinations that this socket sends to.
    pub(super) n_spoken: usize,
    /// Sources that have sent to this socket and got no answer.
    pub(super) n_heard: usize,
    /// How long a number is valid while a route is in use that does not detect the peer's exit.
    /// After that, one datagram per such time goes by UDP and so asks again. A destination that has
    /// not answered for three times as long becomes unknown; the route to one that answers is
    /// opened again.
    pub(super) confirm: Duration,
    /// Time from a failure to the next try, at first; doubles up to [`Self::retry_max`].
    pub(super) retry_min: Duration,
    /// Longest time between two tries.
    pub(super) retry_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            n_spoken: 4096,
            n_heard: 1024,
            confirm: Duration::from_secs(1),
            retry_min: Duration::from_millis(20),
            retry_max: Duration::from_secs(2),
        }
    }
}

/// A route to a destination.
pub(super) trait PeerRoute {
    /// Whether sending by this route reports that the peer is gone, or has moved to another queue.
    fn detects_peer_exit(&self) -> bool;
}

/// How the next datagram is sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Selection<'a, W> {
    /// Through the UDP socket, which also asks the destination for its number.
    Udp,
    /// As [`Selection::Udp`], and the caller opens a route to this queue, which ends with
    /// [`Table::opened`] or [`Table::failed`]. Returned once per number.
    Open(QpNum),
    /// By this route.
    Route(&'a W),
}

/// Destinations, and what is known of them.
#[derive(Debug)]
pub(super) struct Table<W> {
    spoken: LruMap<SocketAddr, Entry<W>>,
    heard: LruMap<SocketAddr, QpNum>,
    limits: Limits,
    n_unsolicited: u64,
}

#[derive(Debug)]
struct Entry<W> {
    /// The number that the destination told last; none if it has told none, or has no queue.
    number: Option<QpNum>,
    state: State<W>,
    /// When the destination last told its number.
    confirmed: Instant,
    /// When it was last asked to confirm the number.
    asked: Option<Instant>,
    /// Time from the next failure to the next try.
    pause: Duration,
}

#[derive(Debug)]
enum State<W> {
    /// No route; the next try is not before this time.
    None(Instant),
    Opening,
    /// An open route, and when it was opened.
    Open(W, Instant),
}

impl<W: PeerRoute> Table<W> {
    /// An empty table.
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            spoken: LruMap::new(limits.n_spoken),
            heard: LruMap::new(limits.n_heard),
            limits,
            n_unsolicited: 0,
        }
    }

    /// Selects how the next datagram to `to` is sent, at time `now`.
    pub(super) fn select(&mut self, to: SocketAddr, now: Instant) -> Selection<'_, W> {
        if self.spoken.get_mut(&to).is_none() {
            let number = self.heard.remove(&to);
            let entry = Entry {
                number,
                state: State::None(now),
                confirmed: now,
                asked: None,
                pause: self.limits.retry_min,
            };
            self.spoken.insert(to, entry);
        }
        let confirm = self.limits.confirm;
        let Some(entry) = self.spoken.get_mut(&to) else { return Selection::Udp };
        if let State::Open(route, _) = &entry.state
            && !route.detects_peer_exit()
        {
            let unheard = now.saturating_duration_since(entry.confirmed);
            if unheard >= confirm * 3 && entry.asked.is_some_and(|asked| now >= asked + confirm) {
                entry.forget(now);
            } else if unheard >= confirm && entry.asked.is_none_or(|asked| now >= asked + confirm) {
                entry.asked = Some(now);
                return Selection::Udp;
            }
        }
        let Some(number) = entry.number else { return Selection::Udp };
        if matches!(entry.state, State::None(not_before) if now >= not_before) {
            entry.state = State::Opening;
            return Selection::Open(number);
        }
        match &entry.state {
            State::Open(route, _) => Selection::Route(route),
            State::None(_) | State::Opening => Selection::Udp,
        }
    }

    /// The route to `to`, if one is open. Does not count as a use.
    pub(super) fn route(&mut self, to: SocketAddr) -> Option<&W> {
        match &self.spoken.get_mut(&to)?.state {
            State::Open(route, _) => Some(route),
            State::None(_) | State::Opening => None,
        }
    }

    /// Handles a UDP packet with a datagram from `from`, whose queue is `number`. Returns a route
    /// that is no longer valid, if there is one. The caller answers with a control packet.
    pub(super) fn handle_data(
        &mut self,
        from: SocketAddr,
        number: QpNum,
        now: Instant,
    ) -> Option<W> {
        if let Some(entry) = self.spoken.get_mut(&from) {
            return entry.learn(number, now, self.limits.confirm);
        }
        if number == QpNum(0) {
            self.heard.remove(&from);
        } else {
            self.heard.insert(from, number);
        }
        None
    }

    /// Handles a control packet from `from`: as [`Self::handle_data`], but only destinations of
    /// this socket are believed.
    pub(super) fn handle_control(
        &mut self,
        from: SocketAddr,
        number: QpNum,
        now: Instant,
    ) -> Option<W> {
        match self.spoken.get_mut(&from) {
            Some(entry) => entry.learn(number, now, self.limits.confirm),
            None => {
                self.n_unsolicited += 1;
                None
            }
        }
    }

    /// Stores the route that the caller opened to queue `number` of `to`. Returns a route that is
    /// not needed.
    pub(super) fn opened(
        &mut self,
        to: SocketAddr,
        number: QpNum,
        route: W,
        now: Instant,
    ) -> Option<W> {
        match self.spoken.get_mut(&to) {
            Some(entry) if entry.number == Some(number) => {
                entry.pause = self.limits.retry_min;
                match std::mem::replace(&mut entry.state, State::Open(route, now)) {
                    State::Open(old, _) => Some(old),
                    State::None(_) | State::Opening => None,
                }
            }
            _ => Some(route),
        }
    }

    /// Notes that the caller could not open a route to queue `number` of `to`.
    pub(super) fn failed(&mut self, to: SocketAddr, number: QpNum, now: Instant) {
        let max = self.limits.retry_max;
        if let Some(entry) = self.spoken.get_mut(&to)
            && entry.number == Some(number)
            && matches!(entry.state, State::Opening)
        {
            entry.state = State::None(now + entry.pause);
            entry.pause = (entry.pause * 2).min(max);
        }
    }

    /// Notes that the route to `to` has failed: the destination is unknown until it tells a number
    /// again. Returns the route.
    pub(super) fn lost(&mut self, to: SocketAddr, now: Instant) -> Option<W> {
        self.spoken.get_mut(&to)?.forget(now)
    }

    /// Number of destinations and sources in the table.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.spoken.len() + self.heard.len()
    }

    /// Control packets from addresses that this socket never sent to.
    pub(super) fn n_unsolicited(&self) -> u64 {
        self.n_unsolicited
    }
}

impl<W: PeerRoute> Entry<W> {
    fn learn(&mut self, number: QpNum, now: Instant, confirm: Duration) -> Option<W> {
        let number = (number != QpNum(0)).then_some(number);
        self.confirmed = now;
        self.asked = None;
        if self.number == number {
            // The same number may belong to another queue by now.
            return self.close_if(now, |route, opened| {
                !route.detects_peer_exit() && now.saturating_duration_since(opened) >= confirm
            });
        }
        let old = self.forget(now);
        self.number = number;
        old
    }

    fn forget(&mut self, now: Instant) -> Option<W> {
        self.number = None;
        self.asked = None;
        self.confirmed = now;
        self.close(now)
    }

    /// Closes an open route if `f` returns true for it.
    fn close_if(&mut self, now: Instant, f: impl FnOnce(&W, Instant) -> bool) -> Option<W> {
        match &self.state {
            State::Open(route, opened) if f(route, *opened) => self.close(now),
            _ => None,
        }
    }

    fn close(&mut self, now: Instant) -> Option<W> {
        match std::mem::replace(&mut self.state, State::None(now)) {
            State::Open(route, _) => Some(route),
            State::None(_) | State::Opening => None,
        }
    }
}

#[cfg(test)]
mod tests;
