//! Senders and a receiver on a virtual clock, with a queue between them that drops datagrams when
//! it is full.

use super::*;

/// The network. Times are in steps.
#[derive(Clone, Copy, Debug)]
struct Net {
    n_senders: usize,
    room: Room,
    /// Datagrams that the queue, or the queue of each sender, has room for.
    capacity: usize,
    /// Datagrams that the receiver takes in a step.
    rate: usize,
    /// Steps from a feedback to its sender.
    delay: u32,
    /// Losses on the way, of 1000 datagrams and of 1000 feedbacks.
    lost: [u64; 2],
}

const STEP: Duration = Duration::from_micros(10);

struct Sim {
    net: Net,
    now: Instant,
    receiver: Receiver,
    senders: Vec<Sender>,
    queues: Vec<VecDeque<(usize, u64, Reply)>>,
    feedbacks: VecDeque<(Instant, usize, Feedback)>,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// The queue that is served next.
    turn: usize,
    random: u64,
    is_silent: Vec<bool>,
}

impl Sim {
    fn new(net: Net, seed: u64) -> Self {
        Self::knowing(None, net, seed)
    }

    fn knowing(known: Option<u64>, net: Net, seed: u64) -> Self {
        let now = Instant::now();
        let n = net.n_senders;
        Self {
            net,
            now,
            receiver: Receiver::new(n, net.room, known),
            senders: (0u32..).take(n).map(|number| Sender::new(number, now)).collect(),
            queues: vec![VecDeque::new(); if net.room == Room::Each { n } else { 1 }],
            feedbacks: VecDeque::new(),
            sent: vec![0; n],
            received: vec![0; n],
            turn: 0,
            random: seed | 1,
            is_silent: vec![false; n],
        }
    }

    fn happens(&mut self, per_thousand: u64) -> bool {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % 1000 < per_thousand
    }

    fn send(&mut self, i: usize, reply: Reply) {
        let seq = self.senders[i].next_seq();
        if reply == Reply::Always {
            self.senders[i].handle_probed(self.now);
        } else {
            self.senders[i].handle_sent(1, self.now);
        }
        self.sent[i] += 1;
        let is_lost = self.happens(self.net.lost[0]);
        let at = i % self.queues.len();
        if !is_lost && self.queues[at].len() < self.net.capacity {
            self.queues[at].push_back((i, seq, reply));
        }
    }

    fn tell(&mut self, i: usize, feedback: Feedback) {
        if !self.happens(self.net.lost[1]) {
            self.feedbacks.push_back((self.now + STEP * self.net.delay, i, feedback));
        }
    }

    /// Datagrams granted and not seen, of senders that are not silent.
    fn granted(&self) -> u64 {
        let speaking = self.receiver.flows.iter().filter(|flow| flow.heard.is_some());
        speaking.map(|flow| flow.limit - flow.seen).sum()
    }

    fn step(&mut self) {
        self.now += STEP;
        while let Some(&(due, i, feedback)) = self.feedbacks.front()
            && due <= self.now
        {
            self.feedbacks.pop_front();
            self.senders[i].handle_feedback(feedback, self.now);
        }
        for i in 0..self.senders.len() {
            if self.is_silent[i] {
                continue;
            }
            while self.senders[i].room() > 0 {
                self.send(i, Reply::IfGranted);
            }
            if self.now >= self.senders[i].next_timeout() {
                self.send(i, Reply::Always);
            }
        }
        let mut touched: Vec<(usize, Reply)> = Vec::new();
        let n_queues = self.queues.len();
        let mut n_taken = 0;
        for i in 0..n_queues * self.net.rate {
            let at = (self.turn + i) % n_queues;
            if n_taken == self.net.rate {
                break;
            }
            let Some((i, seq, reply)) = self.queues[at].pop_front() else { continue };
            n_taken += 1;
            assert!(self.receiver.handle_data(i, seq, self.now), "in order");
            self.received[i] += 1;
            touched.push((i, reply));
        }
        self.turn += 1;
        let before: u64 = self.receiver.flows.iter().map(|flow| flow.limit).sum();
        for (i, reply) in touched {
            if let Some(feedback) = self.receiver.feedback(i, reply, self.now) {
                self.tell(i, feedback);
            }
        }
        while let Some((i, feedback)) = self.receiver.poll_feedback(self.now) {
            self.tell(i, feedback);
        }
        let after: u64 = self.receiver.flows.iter().map(|flow| flow.limit).sum();
        let windows: u64 = self.receiver.windows.iter().map(|window| window.size).sum();
        assert!(after == before || self.granted() <= windows, "{} of {windows}", self.granted());
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Datagrams sent, and received or still in the queue.
    fn totals(&self) -> (u64, u64) {
        let queued: usize = self.queues.iter().map(VecDeque::len).sum();
        (self.sent.iter().sum(), self.received.iter().sum::<u64>() + queued as u64)
    }
}

const SECOND: Duration = Duration::from_secs(1);

fn net(n_senders: usize, room: Room, capacity: usize) -> Net {
    Net { n_senders, room, capacity, rate: 4, delay: 1, lost: [0, 0] }
}

#[test]
fn little_is_lost_and_the_receiver_is_kept_busy() {
    for (n, room, capacity) in [
        (1, Room::Each, 15),
        (4, Room::Each, 15),
        (9, Room::Each, 63),
        (3, Room::Each, 5000),
        (1, Room::Shared, 64),
        (4, Room::Shared, 25),
        (9, Room::Shared, 64),
        (64, Room::Shared, 64),
    ] {
        let mut sim = Sim::new(net(n, room, capacity), 7);
        sim.run(3 * SECOND);
        let (sent, received) = sim.totals();
        let most = 4 * (3 * SECOND).as_nanos() / STEP.as_nanos();
        let what = format!("{n} {room:?} {capacity}: {received} of {sent}, at most {most}");
        assert!((sent - received) * 1000 < sent, "{what}");
        assert!(u128::from(received) * 10 >= most * 9, "{what}");
        let (least, greatest) = (sim.received.iter().min(), sim.received.iter().max());
        let (Some(least), Some(greatest)) = (least, greatest) else { panic!("{what}") };
        assert!(greatest < &(least * 2), "{what}: {least} to {greatest}");
    }
}

#[test]
fn more_senders_than_room_all_get_their_turn() {
    let mut sim = Sim::knowing(Some(16), net(200, Room::Shared, 16), 3);
    sim.run(4 * SECOND);
    let (sent, received) = sim.totals();
    assert!(sim.received.iter().all(|n| *n > 3000), "{:?}", sim.received);
    // Many probe at the same time when they begin.
    assert!((sent - received) * 100 < sent, "{received} of {sent}");
}

#[test]
fn every_sender_goes_on_whatever_is_lost() {
    for seed in 1u32..60 {
        for room in [Room::Each, Room::Shared] {
            let n_senders = 1 + seed as usize % 7;
            let lost = [[300, 0], [0, 300], [200, 500]][seed as usize % 3];
            let delay = 1 + seed % 50;
            let capacity = 1 + seed as usize % 20;
            let net = Net { delay, lost, ..net(n_senders, room, capacity) };
            let mut sim = Sim::new(net, u64::from(seed) * 0x9e37_79b9);
            for round in 0..4 {
                let before = sim.received.clone();
                sim.run(2 * SECOND);
                let moved = sim.received.iter().zip(&before).all(|(now, before)| now > before);
                assert!(moved, "{seed} {round} {net:?}: {:?}", sim.received);
            }
        }
    }
}

#[test]
fn the_grant_of_a_silent_sender_goes_to_others() {
    let mut sim = Sim::new(net(4, Room::Shared, 64), 5);
    sim.run(SECOND / 2);
    sim.is_silent[0] = true;
    sim.is_silent[1] = true;
    sim.run(SECOND);
    let before = sim.received.clone();
    sim.run(SECOND);
    let n: u64 = sim.received.iter().zip(&before).map(|(now, before)| now - before).sum();
    assert_eq!(sim.received[..2], before[..2]);
    assert!(u128::from(n) * 10 >= 9 * 4 * SECOND.as_nanos() / STEP.as_nanos(), "{n}");
    sim.is_silent = vec![false; 4];
    sim.run(SECOND);
    assert!(sim.received.iter().zip(&before).all(|(now, before)| now > &(before + 10_000)));
}

#[test]
fn room_that_shrinks_is_noticed_and_room_that_grows_is_found() {
    let mut sim = Sim::new(net(2, Room::Each, 100), 9);
    sim.run(SECOND);
    assert!(sim.receiver.windows.iter().all(|window| (50..=100).contains(&window.size)));
    sim.net.capacity = 10;
    sim.run(SECOND);
    assert!(sim.receiver.windows.iter().all(|window| window.size <= 10));
    let (sent, received) = sim.totals();
    sim.run(SECOND);
    let (sent, received) = (sim.totals().0 - sent, sim.totals().1 - received);
    assert!((sent - received) * 1000 < sent, "{received} of {sent}");
    sim.net.capacity = 20;
    sim.run(60 * SECOND);
    assert!(sim.receiver.windows.iter().all(|window| window.size > 10));
}

#[test]
fn lies_of_a_sender_or_receiver_do_no_harm() {
    let now = Instant::now();
    let mut receiver = Receiver::new(2, Room::Shared, None);
    assert!(!receiver.handle_data(2, 0, now) && receiver.feedback(2, Reply::Always, now).is_none());
    assert!(receiver.handle_data(1, u64::MAX / 2, now));
    assert!(!receiver.handle_data(1, 5, now));
    assert!(receiver.feedback(1, Reply::Always, now).is_some());
    let mut sender = Sender::new(0, now);
    sender.handle_feedback(Feedback { seen: 9, limit: 100 }, now);
    assert_eq!(sender.room(), 0);
    sender.handle_probed(now);
    sender.handle_feedback(Feedback { seen: 1, limit: 100 }, now);
    sender.handle_feedback(Feedback { seen: 0, limit: 3 }, now);
    assert_eq!((sender.room(), sender.next_seq()), (99, 1));
}
