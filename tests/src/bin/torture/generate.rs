//! Schedules from seeds. Each has a shape, so that rare situations come up often.

use crate::schedule::{Kind, Op, Schedule, Settings};
use crate::shared::{PROCESSES, SLOTS, THREADS};
use crate::sys::{DONTWAIT, WAITALL};
use crate::worker::{FOR_EVER, PAUSE};

/// Random numbers that depend on nothing but the seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn small(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(n.into())).expect("below a small number")
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.below(from.len() as u64)).expect("an index")]
    }

    /// A number of bytes: mostly few, sometimes many.
    fn size(&mut self) -> u64 {
        let most = self.pick(&[2, 16, 64, 64, 1000, 4096, 20_000, 65_536, 300_000, 1 << 20]);
        1 + self.below(most)
    }
}

/// The shapes, with how often each comes up.
pub(crate) const SHAPES: &[(&str, u64)] = &[
    ("mixed", 28),
    ("reuse", 22),
    ("family", 22),
    ("signals", 10),
    ("narrow", 10),
    ("streams", 6),
    ("ahead", 2),
];

/// The schedule of `seed`, of shape `shape` if it is given.
pub(crate) fn schedule(seed: u64, shape: Option<&str>) -> Schedule {
    let mut random = Random::new(seed);
    let all: u64 = SHAPES.iter().map(|(_, weight)| weight).sum();
    let mut at = random.below(all);
    let drawn = SHAPES.iter().find(|(_, weight)| {
        let found = at < *weight;
        at = at.saturating_sub(*weight);
        found
    });
    let shape = shape.or(drawn.map(|(shape, _)| *shape)).unwrap_or("mixed");
    let mut schedule = Schedule { shape: shape.to_owned(), ..Schedule::default() };
    schedule.settings = Settings {
        nonce: random.below(256),
        port: 0,
        buffer: 0,
        ends_abruptly: u64::from(random.chance(15)),
        is_gentle: 0,
    };
    match shape {
        "ahead" => ahead(&mut random, &mut schedule),
        "reuse" => reuse(&mut random, &mut schedule),
        _ => mixed(&mut random, &mut schedule, shape),
    }
    if shape != "ahead" && random.chance(60) {
        add_kill(&mut random, &mut schedule);
    }
    schedule
}

/// Threads that do anything, with weights that depend on the shape.
fn mixed(random: &mut Random, schedule: &mut Schedule, shape: &str) {
    if shape == "narrow" {
        schedule.settings.buffer = random.pick(&[1024, 4096, 30_000, 60_000]);
    }
    for process in 0..PROCESSES {
        let n_threads = 1 + usize::try_from(random.below(THREADS as u64)).expect("few");
        for thread in 0..n_threads {
            let mut ops = Vec::new();
            if process < 2 && (thread == 0 || random.chance(60)) {
                ops.push(if (process + thread) % 2 == 0 {
                    connect(random, u32::try_from(1 - process).expect("few"))
                } else {
                    Op::new(Kind::Accept, 0, 0, 0)
                });
            }
            for _ in 0..random.below(if process == 2 { 25 } else { 50 }) {
                let mut op = any(random, shape);
                // Much through a narrow window takes long: TCP waits before it asks once more.
                if shape == "narrow" && matches!(op.kind, Kind::Send | Kind::Flood) {
                    op.n = op.n.min(6000);
                }
                ops.push(op);
            }
            schedule.threads[process][thread] = ops;
        }
    }
    if shape == "family" {
        let at = random.below(8);
        let process = usize::from(random.chance(50));
        insert(&mut schedule.threads[process][0], at + 2, Op::new(Kind::Fork, 0, 0, 0));
    }
}

/// An operation, by the weights of a shape.
fn any(random: &mut Random, shape: &str) -> Op {
    let mut weights: Vec<(Kind, u64)> = WEIGHTS.to_vec();
    let more: &[(Kind, u64)] = match shape {
        "family" => &[
            (Kind::Fork, 3),
            (Kind::Exec, 3),
            (Kind::Pass, 6),
            (Kind::Take, 8),
            (Kind::Dup, 6),
            (Kind::Dup2, 4),
            (Kind::Close, 6),
        ],
        "signals" => &[(Kind::Signal, 40)],
        "narrow" => &[(Kind::Send, 30), (Kind::Buffer, 4), (Kind::Recv, 20)],
        "streams" => &[(Kind::Send, 60), (Kind::Recv, 60), (Kind::Drip, 10), (Kind::Sip, 10)],
        _ => &[],
    };
    weights.extend_from_slice(more);
    let mut at = random.below(weights.iter().map(|(_, weight)| weight).sum());
    for (kind, weight) in weights {
        if at < weight {
            return operation(random, kind);
        }
        at -= weight;
    }
    unreachable!("below the sum")
}

const WEIGHTS: &[(Kind, u64)] = &[
    (Kind::Connect, 6),
    (Kind::Accept, 6),
    (Kind::Send, 26),
    (Kind::Recv, 26),
    (Kind::Peek, 4),
    (Kind::Drip, 4),
    (Kind::Sip, 4),
    (Kind::Poll, 7),
    (Kind::Fionread, 2),
    (Kind::Shutdown, 2),
    (Kind::Close, 4),
    (Kind::Replace, 1),
    (Kind::Dup, 2),
    (Kind::Dup2, 2),
    (Kind::Fork, 1),
    (Kind::Pass, 1),
    (Kind::Take, 2),
    (Kind::Nonblock, 1),
    (Kind::Buffer, 1),
    (Kind::Linger, 1),
    (Kind::Signal, 5),
    (Kind::Sleep, 3),
];

/// An operation of `kind` with numbers.
fn operation(random: &mut Random, kind: Kind) -> Op {
    // Few descriptors are used much, so that their streams get far.
    let few = if random.chance(70) { 3 } else { SLOTS as u64 };
    let slot = u32::try_from(random.below(few)).expect("few");
    let (n, how) = match kind {
        Kind::Connect => return connect(random, slot % 2),
        Kind::Accept => (0, random.small(2)),
        Kind::Send => (random.size(), way(random)),
        Kind::Recv => {
            let waitall = if random.chance(10) { WAITALL } else { 0 };
            (random.size(), way(random) | waitall)
        }
        Kind::Peek => (random.size(), way(random)),
        Kind::Drip | Kind::Sip => (random.below(60), way(random)),
        Kind::Flood | Kind::Await => (random.size() * 4, 0),
        Kind::Poll => {
            let limit = if random.chance(40) { FOR_EVER } else { random.below(20) };
            (limit, 1 + random.small(15))
        }
        Kind::Shutdown => (0, random.small(3)),
        Kind::Replace | Kind::Exec | Kind::Nonblock | Kind::Buffer => {
            (4096 << random.below(14), random.small(2))
        }
        Kind::Dup2 => (random.below(SLOTS as u64), 0),
        Kind::Pass => (random.below(PROCESSES as u64), random.small(2)),
        Kind::Signal => (random.below(THREADS as u64), 0),
        Kind::Sleep => (random.below(2000), 0),
        Kind::Kill => (random.below(PROCESSES as u64), 0),
        Kind::Fionread | Kind::Close | Kind::Dup | Kind::Fork | Kind::Take | Kind::Linger => (0, 0),
    };
    Op::new(kind, slot, n, how)
}

fn way(random: &mut Random) -> u32 {
    random.small(4) | if random.chance(25) { DONTWAIT } else { 0 }
}

/// A connect that mostly exchanges enough for the stream to leave TCP.
fn connect(random: &mut Random, to: u32) -> Op {
    let warm = random.pick(&[0, 0, 4, 20, 40, 40, 60]);
    let nodelay = if random.chance(80) { 2 } else { 0 };
    let nonblocking = u32::from(random.chance(8));
    let buffer = if random.chance(10) { 4096 << random.below(10) } else { 0 };
    let buffer = u32::try_from(buffer).expect("small");
    Op::new(Kind::Connect, to, warm, buffer | nodelay | nonblocking)
}

/// A process closes descriptors under its readers, and accepts at once: the new connection, which
/// has bytes already, gets the old one's number.
fn reuse(random: &mut Random, schedule: &mut Schedule) {
    let n = 10 + random.below(12);
    let server = usize::from(random.chance(60));
    let to = u32::try_from(server).expect("few");
    let clients = &mut schedule.threads[1 - server];
    for client in clients.iter_mut().take(1 + usize::from(random.chance(30))) {
        for _ in 0..n {
            client.push(Op { slot: to, ..connect(random, to) });
            if random.chance(80) {
                client.push(Op::new(Kind::Send, random.small(20), 1 + random.below(300), 0));
            }
            if random.chance(40) {
                let op = operation(random, Kind::Recv);
                client.push(Op { how: op.how | DONTWAIT, ..op });
            }
            if random.chance(15) {
                client.push(operation(random, Kind::Close));
            }
        }
    }
    let servers = &mut schedule.threads[server];
    for _ in 0..n {
        servers[0].push(Op::new(Kind::Accept, 0, 0, u32::from(random.chance(50))));
        servers[0].push(Op::new(Kind::Sleep, 0, random.below(400), 0));
        let shuts = u32::from(random.chance(75));
        servers[0].push(Op::new(Kind::Replace, random.small(3), 0, shuts));
        if random.chance(20) {
            let op = any(random, "reuse");
            servers[0].push(op);
        }
    }
    for server in &mut servers[1..] {
        for _ in 0..n * 2 {
            let kind = random.pick(&[
                Kind::Recv,
                Kind::Recv,
                Kind::Recv,
                Kind::Recv,
                Kind::Peek,
                Kind::Poll,
                Kind::Send,
            ]);
            let op = operation(random, kind);
            let how = if kind == Kind::Poll { op.how } else { op.how & !DONTWAIT };
            server.push(Op { how, slot: random.small(3), ..op });
        }
    }
}

/// A writer that gets far ahead in the kernel's buffers before either end leaves TCP, while the
/// reader has read little.
fn ahead(random: &mut Random, schedule: &mut Schedule) {
    schedule.settings.buffer = 200 << 20;
    schedule.settings.ends_abruptly = 0;
    let far = (random.pick(&[8, 40, 50, 60, 70, 90, 110]) + random.below(8)) << 20;
    let (writer, reader) = if random.chance(50) { (0, 1) } else { (1, 0) };
    let to = u32::try_from(reader).expect("few");
    let (mut writes, mut reads) = (Vec::new(), Vec::new());
    writes.push(Op::new(Kind::Connect, to, 0, 2));
    writes.push(Op::new(Kind::Flood, 0, far, 0));
    writes.push(Op::new(Kind::Drip, 0, 300 + random.below(300), PAUSE));
    reads.push(Op::new(Kind::Accept, 0, 0, 0));
    reads.push(Op::new(Kind::Await, 0, far, 0));
    reads.push(Op::new(Kind::Sip, 0, 200 + random.below(300), PAUSE));
    for _ in 0..far >> 20 {
        writes.push(Op::new(Kind::Send, 0, random.size(), way(random)));
        reads.push(Op::new(Kind::Recv, 0, random.size(), way(random)));
    }
    schedule.threads[writer][0] = writes;
    schedule.threads[reader][0] = reads;
}

/// A process is killed by another, or by itself.
fn add_kill(random: &mut Random, schedule: &mut Schedule) {
    let process = usize::try_from(random.below(PROCESSES as u64)).expect("few");
    let thread = usize::try_from(random.below(THREADS as u64)).expect("few");
    let threads = &mut schedule.threads[process];
    let thread = if threads[thread].is_empty() { 0 } else { thread };
    let ops = &mut threads[thread];
    let at = random.below(ops.len() as u64 + 1);
    let target = if random.chance(30) { process as u64 } else { random.below(PROCESSES as u64) };
    insert(ops, at, Op::new(Kind::Kill, 0, target, 0));
}

fn insert(ops: &mut Vec<Op>, at: u64, op: Op) {
    ops.insert(usize::try_from(at).expect("few").min(ops.len()), op);
}
