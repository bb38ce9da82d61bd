//! Flow control of an incast: a receiver grants each of its senders a limit.
//!
//! Sans-IO: no clock, socket or thread; `now` is an argument. Sequence numbers count the datagrams
//! of one sender to one receiver, from 0. A [`Receiver`] is fed with each datagram that arrives and
//! sends [`Feedback`]; a [`Sender`] sends while its next number is below the last limit.
//!
//! A receiver knows the room of its queue roughly or not at all, and learns it. If it knows the
//! room, its window starts there and never exceeds it; else the window doubles as long as nothing
//! is lost. After a loss the window stays below that size, and tries one datagram more now and
//! then. Datagrams of one sender arrive in order, so a gap is a loss; a datagram that arrives late
//! after all was counted as lost too early, and costs a little room.
//!
//! Invariants: what a receiver has granted and not seen is at most its window, as long as it hears
//! from all of its senders. A limit never falls. A sender without a grant probes again and again,
//! so it does not wait for ever, whatever is lost.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// When a receiver sends feedback.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reply {
    /// If the limit rises.
    #[default]
    IfGranted,
    /// In any case, since the sender probes.
    Always,
}

/// A message from a receiver to a sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Feedback {
    /// All datagrams below this have arrived or are lost.
    pub(super) seen: u64,
    /// The sender may send datagrams below this.
    pub(super) limit: u64,
}

/// How senders use the room of a receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    /// Every sender has room of its own.
    Each,
    /// All senders share the room.
    Shared,
}

/// The receiver's side of the flow control.
#[derive(Debug)]
pub(super) struct Receiver {
    room: Room,
    flows: Vec<Flow>,
    /// One window, or one for each sender.
    windows: Vec<Window>,
    /// Senders without a grant, in the order in which they get one.
    starved: VecDeque<usize>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flow {
    seen: u64,
    limit: u64,
    /// When a datagram last came from it; `None` if none did within [`SILENCE`].
    heard: Option<Instant>,
    is_starved: bool,
}

/// How many datagrams may be in flight.
#[derive(Clone, Copy, Debug)]
struct Window {
    size: u64,
    /// The size never exceeds this.
    most: u64,
    /// The size at which datagrams were lost last, and since when it counts.
    ceiling: Option<(u64, Instant)>,
    /// How long the ceiling holds before a larger window is tried.
    hold_time: Duration,
    /// Whether the ceiling was raised since the last loss.
    is_trying: bool,
    /// Datagrams that arrived in a row since the size changed.
    n_arrived: u64,
    /// Datagrams that may be in flight since before the size changed; their losses are old news.
    n_old: u64,
}

/// A sender that is silent for this long loses its share, and its grant goes to others.
const SILENCE: Duration = Duration::from_millis(500);
/// The first and the greatest size of a window.
const FIRST: u64 = 4;
const MOST: u64 = 512;
/// How long a ceiling holds at first, and at most.
const HOLD_TIME: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(8)];

impl Window {
    /// The window for a queue that has room for `known` datagrams, if that is known.
    fn new(known: Option<u64>) -> Self {
        // One place is kept for a probe, which needs no grant.
        let known = known.map(|n| n.saturating_sub(1).max(1));
        let (size, most) = (known.unwrap_or(FIRST), known.unwrap_or(MOST));
        Self {
            size,
            most,
            ceiling: None,
            hold_time: HOLD_TIME[0],
            is_trying: false,
            n_arrived: 0,
            n_old: 0,
        }
    }

    /// The next datagram has arrived.
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
            Some((ceiling, since)) if now.saturating_duration_since(since) >= self.hold_time => {
                // No loss for so long means that the last try went well, if there was one.
                self.hold_time = HOLD_TIME[0];
                self.ceiling = Some((ceiling + (ceiling / 4).max(1), now));
                self.is_trying = true;
                self.size
            }
            Some(_) => self.size,
        };
    }

    /// `n` datagrams are lost, and the one after them has arrived.
    fn note_lost(&mut self, n: u64, now: Instant) {
        self.n_arrived = 0;
        let is_old = self.n_old > 0;
        self.n_old = self.n_old.saturating_sub(n + 1);
        if !is_old {
            self.n_old = self.size;
            self.ceiling = Some((self.size, now));
            self.hold_time =
                if self.is_trying { (self.hold_time * 2).min(HOLD_TIME[1]) } else { HOLD_TIME[0] };
            self.is_trying = false;
            let less = n.clamp(self.size.div_ceil(8), self.size.div_ceil(2));
            self.size = (self.size - less).max(1);
        }
    }
}

impl Receiver {
    /// A receiver whose queue has room for `known` datagrams, of each sender or of all.
    pub(super) fn new(n_senders: usize, room: Room, known: Option<u64>) -> Self {
        let n_windows = if room == Room::Each { n_senders } else { 1 };
        Self {
            room,
            flows: vec![Flow::default(); n_senders],
            windows: vec![Window::new(known); n_windows],
            starved: VecDeque::new(),
        }
    }

    /// Datagram `seq` of `sender` has arrived. Returns false if it came late or twice.
    pub(super) fn handle_data(&mut self, sender: usize, seq: u64, now: Instant) -> bool {
        let Some(flow) = self.flows.get_mut(sender) else { return false };
        flow.heard = Some(now);
        // Only a malformed number is that large.
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

    /// Raises the limit of `sender` if it has used most of it, and returns the feedback to send.
    pub(super) fn feedback(
        &mut self,
        sender: usize,
        reply: Reply,
        now: Instant,
    ) -> Option<Feedback> {
        let is_due = reply == Reply::Always;
        let share = self.share(sender, now);
        let flow = *self.flows.get(sender)?;
        let left = flow.limit - flow.seen;
        if left > share / 2 {
            return is_due.then_some(Feedback { seen: flow.seen, limit: flow.limit });
        }
        // Senders that wait for a grant come first.
        let granted = self.starved.is_empty() && self.grant(sender, share);
        let flow = &mut self.flows[sender];
        if !granted && flow.limit == flow.seen && !flow.is_starved {
            flow.is_starved = true;
            self.starved.push_back(sender);
        }
        let feedback = Feedback { seen: flow.seen, limit: flow.limit };
        (granted || is_due).then_some(feedback)
    }

    /// Returns a starved sender that has a grant now, and the feedback to send. The caller asks
    /// again until there is none.
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

    /// How many datagrams `sender` may have in flight.
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

    /// Grants `sender` up to `share` datagrams in flight, as far as there is room. Returns whether
    /// its limit rose.
    fn grant(&mut self, sender: usize, share: u64) -> bool {
        let room = match self.room {
            Room::Each => share,
            Room::Shared => {
                let heard = self.flows.iter().enumerate();
                let others = heard.filter(|(i, flow)| *i != sender && flow.heard.is_some());
                let granted: u64 = others.map(|(_, flow)| flow.limit - flow.seen).sum();
                self.windows[0].size.saturating_sub(granted)
            }
        };
        let flow = &mut self.flows[sender];
        let limit = flow.seen + share.min(room);
        let more = limit > flow.limit;
        flow.limit = flow.limit.max(limit);
        more
    }
}

/// The sender's side of the flow control.
#[derive(Debug)]
pub(super) struct Sender {
    next: u64,
    limit: u64,
    seen: u64,
    /// A datagram that was sent, and when: the feedback on it gives the round trip time.
    timed: Option<(u64, Instant)>,
    /// The smoothed round trip time, and its variation.
    trip: Option<(Duration, Duration)>,
    /// When something was last sent, or feedback last brought news.
    moved: Instant,
    /// Probes in a row without an answer.
    n_probes: u32,
    /// Spreads the probes of senders that began at the same time; it changes with every probe.
    jitter: u32,
}

/// The least and the greatest time after which a sender probes again.
const WAIT: [Duration; 2] = [Duration::from_millis(5), Duration::from_millis(200)];

impl Sender {
    /// A sender whose `number` differs from those of the others.
    pub(super) fn new(number: u32, now: Instant) -> Self {
        let jitter = number.wrapping_mul(0x9e37_79b9);
        Self {
            next: 0,
            limit: 0,
            seen: 0,
            timed: None,
            trip: None,
            moved: now,
            n_probes: 0,
            jitter,
        }
    }

    /// How many datagrams it may send now.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.next)
    }

    /// The number of the next datagram.
    pub(super) fn next_seq(&self) -> u64 {
        self.next
    }

    /// `n` datagrams were sent.
    pub(super) fn handle_sent(&mut self, n: u64, now: Instant) {
        if n != 0 && self.timed.is_none() {
            self.timed = Some((self.next, now));
        }
        self.next += n;
        self.moved = now;
    }

    /// Feedback has arrived.
    pub(super) fn handle_feedback(&mut self, feedback: Feedback, now: Instant) {
        if feedback.seen > self.next {
            // Only malformed feedback covers datagrams that were not sent.
            return;
        }
        if feedback.seen > self.seen || feedback.limit > self.limit {
            self.moved = now;
            self.n_probes = 0;
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

    /// When to probe, if it may send nothing until then.
    pub(super) fn next_timeout(&self) -> Instant {
        // The first probe is due at once.
        if self.next == 0 {
            return self.moved;
        }
        let usual = self.trip.map_or(WAIT[0], |(mean, spread)| mean + spread * 4);
        let wait = usual.max(WAIT[0]) * (1 << self.n_probes.min(10));
        let wait = wait.min(WAIT[1]);
        self.moved + wait + wait * (self.jitter >> 24) / 256
    }

    /// A probe was sent: one datagram beyond the limit.
    pub(super) fn handle_probed(&mut self, now: Instant) {
        self.n_probes += 1;
        self.jitter = self.jitter.wrapping_mul(0x0019_660d).wrapping_add(0x3c6e_f35f);
        // Datagrams before the probe may be lost, and then give no round trip time.
        self.timed = Some((self.next, now));
        self.handle_sent(1, now);
    }
}

#[cfg(test)]
mod tests;
