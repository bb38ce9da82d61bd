//! Flow control of an incast: a receiver tells each of its senders how far it may go.
//!
//! Sans-IO: no clock, socket or thread; `now` is an argument. Sequence numbers count the datagrams of one
//! sender to one receiver, from 0. A [`Receiver`] hears of each that arrives and sends [`Feedback`]; a
//! [`Sender`] sends while its next number is below the limit that it was told last.
//!
//! How much room there is a receiver knows roughly or not at all, and learns. Where it knows, it begins there
//! and never goes beyond; else what it gives leave for doubles as long as nothing is lost. Where something was
//! lost it stays below that, and tries one more now and then.
//! Datagrams of one sender arrive in order, so a gap is a loss; one that is late after all was counted as
//! lost too early, and costs a little room.
//!
//! Invariants: what a receiver has given leave for, and not seen, is at most its window, as long as all of
//! its senders are heard from. A limit never falls. A sender that may not send asks again, and so cannot
//! wait for ever, whatever is lost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// What a receiver tells a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Feedback {
    /// Below this, datagrams have arrived or are lost.
    pub(super) seen: u64,
    /// Datagrams below this may be sent.
    pub(super) limit: u64,
}

/// Whose room it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Every sender has room of its own.
    Each,
    /// All share one.
    Shared,
}

/// A receiver's part.
#[derive(Debug)]
pub(super) struct Receiver {
    room: Room,
    flows: Vec<Flow>,
    /// One, or one of each sender.
    windows: Vec<Window>,
    /// Senders that were told of no room, in the order in which they will be.
    starved: VecDeque<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    seen: u64,
    limit: u64,
    /// When it was heard from; nothing if never, or not for long.
    heard: Option<Instant>,
    is_starved: bool,
}

/// How many datagrams may be under way.
#[derive(Clone, Copy, Debug)]
struct Window {
    size: u64,
    /// It never goes beyond.
    most: u64,
    /// The least that was lost at.
    ceiling: Option<(u64, Instant)>,
    /// How long the ceiling is believed.
    patience: Duration,
    /// Whether the ceiling was raised since something was lost.
    is_trying: bool,
    /// Arrived in a row since the size was changed.
    n_arrived: u64,
    /// So many more were under way at the size before, and what is lost of them says nothing new.
    n_old: u64,
}

/// A sender that is silent for this long has no share, and what it was given leave for is given to others.
const SILENCE: Duration = Duration::from_millis(500);
/// Where a window begins, and how far it goes.
const FIRST: u64 = 4;
const MOST: u64 = 512;
/// How long a ceiling is believed at first, and at most.
const PATIENCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

impl Window {
    /// For a queue that has room for so many, if that is known.
    fn new(known: Option<u64>) -> Self {
        // One who asks sends without leave.
        let known = known.map(|n| n.saturating_sub(1).max(1));
        let (size, most) = (known.unwrap_or(FIRST), known.unwrap_or(MOST));
        Self {
            size,
            most,
            ceiling: None,
            patience: PATIENCE[0],
            is_trying: false,
            n_arrived: 0,
            n_old: 0,
        }
    }

    /// The next one has arrived.
    fn note_arrived(&mut self, now: Instant) {
        self.n_old = self.n_old.saturating_sub(1);
        self.n_arrived += 1;
        if self.n_arrived < self.size {
            return;
        }
        self.n_arrived = 0;
        self.size = match self.ceiling {
            _ if self.size >= self.most => self.most,
            None => (self.size * 2).min(self.most),
            Some((ceiling, _)) if self.size + 1 < ceiling => self.size + 1,
            Some((ceiling, since)) if now.saturating_duration_since(since) >= self.patience => {
                // Nothing was lost for long: the last try went well, if there was one.
                self.patience = PATIENCE[0];
                self.ceiling = Some((ceiling + (ceiling / 4).max(1), now));
                self.is_trying = true;
                self.size
            }
            Some(_) => self.size,
        };
    }

    /// So many are lost, and the one after them has arrived.
    fn note_lost(&mut self, n: u64, now: Instant) {
        self.n_arrived = 0;
        let is_old = self.n_old > 0;
        self.n_old = self.n_old.saturating_sub(n + 1);
        if !is_old {
            self.n_old = self.size;
            self.ceiling = Some((self.size, now));
            self.patience =
                if self.is_trying { (self.patience * 2).min(PATIENCE[1]) } else { PATIENCE[0] };
            self.is_trying = false;
            let less = n.clamp(self.size.div_ceil(8), self.size.div_ceil(2));
            self.size = (self.size - less).max(1);
        }
    }
}

impl Receiver {
    /// For so many senders, and a queue that has room for `known` datagrams, of each or of all.
    pub(super) fn new(n_senders: usize, room: Room, known: Option<u64>) -> Self {
        let n_windows = if room == Room::Each { n_senders } else { 1 };
        Self {
            room,
            flows: vec![Flow::default(); n_senders],
            windows: vec![Window::new(known); n_windows],
            starved: VecDeque::new(),
        }
    }

    /// Datagram `seq` of `sender` has arrived. False if it came late or twice.
    pub(super) fn handle_data(&mut self, sender: usize, seq: u64, now: Instant) -> bool {
        let Some(flow) = self.flows.get_mut(sender) else { return false };
        flow.heard = Some(now);
        // No sender gets that far.
        if seq < flow.seen || seq > u64::MAX / 2 {
            return false;
        }
        let window = &mut self.windows[if self.room == Room::Each { sender } else { 0 }];
        if seq > flow.seen {
            window.note_lost(seq - flow.seen, now);
        } else {
            window.note_arrived(now);
        }
        flow.seen = seq + 1;
        flow.limit = flow.limit.max(flow.seen);
        true
    }

    /// Gives leave to `sender`, which asks, or has used most of what it had: what to tell it, if anything.
    pub(super) fn feedback(&mut self, sender: usize, asks: bool, now: Instant) -> Option<Feedback> {
        let share = self.share(sender, now);
        let flow = *self.flows.get(sender)?;
        let left = flow.limit - flow.seen;
        if left > share / 2 {
            return asks.then_some(Feedback { seen: flow.seen, limit: flow.limit });
        }
        // Who waits for room comes first.
        let granted = self.starved.is_empty() && self.grant(sender, share);
        let flow = &mut self.flows[sender];
        if !granted && flow.limit == flow.seen && !flow.is_starved {
            flow.is_starved = true;
            self.starved.push_back(sender);
        }
        let told = Feedback { seen: flow.seen, limit: flow.limit };
        (granted || asks).then_some(told)
    }

    /// A sender that was told of no room and has some now, and what to tell it; to be asked until there is
    /// none.
    pub(super) fn poll_feedback(&mut self, now: Instant) -> Option<(usize, Feedback)> {
        while let Some(&sender) = self.starved.front() {
            let flow = self.flows[sender];
            let is_silent = flow.heard.is_none();
            let share = self.share(sender, now);
            if !is_silent && flow.limit == flow.seen && !self.grant(sender, share) {
                return None;
            }
            self.starved.pop_front();
            self.flows[sender].is_starved = false;
            if !is_silent {
                let Flow { seen, limit, .. } = self.flows[sender];
                return Some((sender, Feedback { seen, limit }));
            }
        }
        None
    }

    /// What `sender` may have under way.
    fn share(&mut self, sender: usize, now: Instant) -> u64 {
        match self.room {
            Room::Each => self.windows.get(sender).map_or(0, |window| window.size),
            Room::Shared => {
                let mut n_heard = 0;
                for flow in &mut self.flows {
                    flow.heard =
                        flow.heard.filter(|at| now.saturating_duration_since(*at) < SILENCE);
                    n_heard += u64::from(flow.heard.is_some());
                }
                (self.windows[0].size / n_heard.max(1)).max(1)
            }
        }
    }

    /// Lets `sender` have up to `share` under way, as far as there is room; whether that is more than before.
    fn grant(&mut self, sender: usize, share: u64) -> bool {
        let room = match self.room {
            Room::Each => share,
            Room::Shared => {
                let heard = self.flows.iter().enumerate();
                let others = heard.filter(|(i, flow)| *i != sender && flow.heard.is_some());
                let out: u64 = others.map(|(_, flow)| flow.limit - flow.seen).sum();
                self.windows[0].size.saturating_sub(out)
            }
        };
        let flow = &mut self.flows[sender];
        let limit = flow.seen + share.min(room);
        let more = limit > flow.limit;
        flow.limit = flow.limit.max(limit);
        more
    }
}

/// A sender's part.
#[derive(Debug)]
pub(super) struct Sender {
    next: u64,
    limit: u64,
    seen: u64,
    /// One that was sent, and when: its echo tells how long an answer takes.
    timed: Option<(u64, Instant)>,
    /// How long an answer takes, and how much that varies.
    trip: Option<(Duration, Duration)>,
    /// When something was last sent or heard.
    moved: Instant,
    /// Times in a row that it asked in vain.
    n_asked: u32,
    /// Changes with every question, otherwise for each sender: those that began together shall not ask
    /// together for ever.
    luck: u32,
}

/// Least and greatest time after which a sender asks again.
const WAIT: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

impl Sender {
    /// `number` is not that of another one.
    pub(super) fn new(number: u32, now: Instant) -> Self {
        let luck = number.wrapping_mul(0x9e37_79b9);
        Self { next: 0, limit: 0, seen: 0, timed: None, trip: None, moved: now, n_asked: 0, luck }
    }

    /// How many may be sent now.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// The number of the next datagram.
    pub(super) fn next_seq(&self) -> u64 {
        self.next
    }

    /// So many were sent.
    pub(super) fn handle_sent(&mut self, n: u64, now: Instant) {
        if n != 0 && self.timed.is_none() {
            self.timed = Some((self.next, now));
        }
        self.next += n;
        self.moved = now;
    }

    pub(super) fn handle_feedback(&mut self, feedback: Feedback, now: Instant) {
        if feedback.seen > self.next {
            // Nobody can have seen what was not sent.
            return;
        }
        if feedback.seen > self.seen || feedback.limit > self.limit {
            self.moved = now;
            self.n_asked = 0;
        }
        self.seen = self.seen.max(feedback.seen);
        self.limit = self.limit.max(feedback.limit);
        if let Some((seq, sent)) = self.timed
            && self.seen > seq
        {
            self.timed = None;
            let took = now.saturating_duration_since(sent);
            let (mean, spread) = self.trip.unwrap_or((took, took / 2));
            let spread = (spread * 3 + mean.abs_diff(took)) / 4;
            self.trip = Some(((mean * 7 + took) / 8, spread));
        }
    }

    /// When to ask, if it may send nothing until then.
    pub(super) fn next_timeout(&self) -> Instant {
        // Nothing was sent or heard yet: at once.
        if self.next == 0 {
            return self.moved;
        }
        let usual = self.trip.map_or(WAIT[0], |(mean, spread)| mean + spread * 4);
        let wait = usual.max(WAIT[0]) * (1 << self.n_asked.min(10));
        let wait = wait.min(WAIT[1]);
        self.moved + wait + wait * (self.luck >> 24) / 256
    }

    /// It has asked, with one datagram more.
    pub(super) fn handle_asked(&mut self, now: Instant) {
        self.n_asked += 1;
        self.luck = self.luck.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        // If what came before is lost, it tells nothing about how long an answer takes.
        self.timed = Some((self.next, now));
        self.handle_sent(1, now);
    }
}

#[cfg(test)]
mod tests;
