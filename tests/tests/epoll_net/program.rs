//! Random programs of epoll calls: which call is made, in which process and by which thread.
//!
//! A program is made against a [`Model`] of its descriptors, which admits only calls whose results
//! follow from the calls before them on kernel TCP.

use super::model::{Avoid, Kind, Model, PLACES};
use rsock_tests::lockstep::Random;
use std::fmt;

/// One call. What the numbers mean is up to the word: see `tests/c/epoll_net.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) word: &'static str,
    /// 0 and 1 are the program's processes, 2 and 3 their children.
    pub(crate) process: usize,
    pub(crate) thread: usize,
    pub(crate) a: [i64; 5],
    /// Whether the writer is given time to see that its peer has ended.
    pub(crate) after_tick: bool,
}

impl Call {
    pub(crate) fn new(word: &'static str, process: usize, a: &[i64]) -> Self {
        let mut all = [0; 5];
        all[..a.len()].copy_from_slice(a);
        Self { word, process, thread: 0, a: all, after_tick: false }
    }

    /// The number of the place that argument `i` names.
    pub(crate) fn place(&self, i: usize) -> usize {
        usize::try_from(self.a[i]).unwrap_or(PLACES)
    }

    /// Whether the call may end a stream.
    pub(crate) fn ends(&self) -> bool {
        matches!(self.word, "shutdown" | "close" | "dup2")
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { word, process, thread, a, .. } = self;
        write!(f, "{process}.{thread} {word}")?;
        let n = arguments(word);
        match *word {
            "ctl" => {
                let op = match a[2] & 0xff {
                    1 => "ADD",
                    2 => "DEL",
                    3 => "MOD",
                    _ => "?",
                };
                let bad = if a[2] > 0xff { " bad" } else { "" };
                let (events, data) = (a[3], a[4]);
                write!(f, " {} {op}{bad} {} {events:#x} {data:x}", a[0], a[1])
            }
            _ => a[..n].iter().try_for_each(|number| write!(f, " {number}")),
        }
    }
}

/// How many numbers a word needs.
pub(crate) fn arguments(word: &str) -> usize {
    match word {
        "end" | "fork" | "exit" | "quiet" | "tick" | "past" | "reset" => 0,
        "timerfd" | "socket" | "refuse" | "empty" | "urgent" | "error" | "fill" | "drain"
        | "close" | "badcreate" | "put" | "take" | "ack" => 1,
        "listen" | "accept" | "send" | "recv" | "peek" | "shutdown" | "dup2" | "pipe"
        | "eventfd" | "create" | "arm" => 2,
        "dup" => 3,
        "connect" | "warm" => 4,
        _ => 5,
    }
}

/// Where a program's connections have their ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// All in one process.
    One,
    /// In two processes.
    Two,
}

/// The program of a seed, and how it is laid out.
pub(crate) fn program(seed: u64, avoid: Avoid) -> (Layout, Vec<Call>) {
    let mut r = Random::new(seed);
    let layout = r.one_of(&[Layout::One, Layout::One, Layout::Two]);
    let length = r.one_of(&[20, 30, 45, 70, 110, 200]);
    let threads = r.one_of(&[1, 1, 2, 4]);
    let has_fork = r.once_in(8);
    let has_equal_data = seed.is_multiple_of(EQUAL_DATA);
    let model = Model::new(layout, avoid);
    let mut g = Generator { r, model, calls: Vec::new(), threads, has_equal_data };
    g.begin();
    for _ in 0..length * 4 {
        if g.calls.len() >= length {
            break;
        }
        g.step(has_fork);
    }
    g.finish();
    (layout, g.calls)
}

/// Without calls that have no meaning after others were left out.
pub(crate) fn possible(layout: Layout, avoid: Avoid, mut calls: Vec<Call>) -> Vec<Call> {
    let mut model = Model::new(layout, avoid);
    calls.retain_mut(|call| model.admit(call));
    calls
}

struct Generator {
    r: Random,
    model: Model,
    calls: Vec<Call>,
    threads: usize,
    /// Whether the watches that report each event once have the same data, and the others too.
    has_equal_data: bool,
}

impl Generator {
    fn call(&mut self, word: &'static str, process: usize, a: &[i64]) -> bool {
        let mut call = Call::new(word, process, a);
        if process < 2 && !matches!(word, "fork" | "exit" | "end") {
            call.thread = self.r.below(self.threads);
            if self.model.is_waiting(process, call.thread) {
                call.thread = 0;
            }
        }
        self.add(call)
    }

    fn add(&mut self, mut call: Call) -> bool {
        let is_admitted = self.model.admit(&mut call);
        if is_admitted {
            self.calls.push(call);
        }
        is_admitted
    }

    /// Sets, a listener and a first connection.
    fn begin(&mut self) {
        for process in 0..self.model.processes() {
            for _ in 0..self.r.one_of(&[1, 1, 2, 3]) {
                self.create(process);
            }
        }
        self.listen();
        self.connect();
        if self.r.below(3) == 0 {
            self.warm();
        }
    }

    /// What is ready at last, in every set.
    fn finish(&mut self) {
        if self.model.child().is_some() {
            self.exit();
        }
        for process in 0..self.model.processes() {
            for set in self.model.places(process, |kind| kind == Kind::Set) {
                self.call("wait", process, &[set, 0, 0, 8, 0]);
            }
        }
    }

    fn step(&mut self, has_fork: bool) {
        match self.r.below(200) {
            0..10 => self.connect(),
            10..16 => self.warm(),
            16..42 => self.send(),
            42..64 => self.receive(),
            64..106 => self.ctl(),
            106..144 => self.wait(),
            144..152 => self.block(),
            152..160 => self.ask(),
            160..174 => self.foreign(),
            174..177 => self.shut(),
            177..183 => self.close(),
            183..190 => self.dup(),
            190..193 => self.bad(),
            193..195 => self.fresh(),
            195 if self.r.once_in(2) => self.fill(),
            196 => {
                let process = self.process();
                self.create(process);
            }
            197..199 if has_fork => self.child(),
            198 => self.listen(),
            _ => {
                if self.r.once_in(3) {
                    self.on_stream("urgent", &[]);
                }
            }
        }
    }

    /// One of the program's processes, now and then the child of one.
    fn process(&mut self) -> usize {
        if let Some(parent) = self.model.child()
            && self.r.once_in(2)
        {
            return parent + 2;
        }
        let n = self.model.processes();
        self.r.below(n)
    }

    /// A place that is free, if there is one.
    fn free(&mut self, process: usize) -> i64 {
        let most = self.r.one_of(&[8, 24, PLACES]);
        let first = self.r.below(most);
        let mut all = (first..PLACES).chain(0..first);
        let at = all.find(|&at| !self.model.is_open(process, at)).unwrap_or(first);
        i64::try_from(at).unwrap_or(0)
    }

    fn some(&mut self, process: usize, of: impl Fn(Kind) -> bool) -> Option<i64> {
        let places = self.model.places(process, of);
        (!places.is_empty()).then(|| self.r.one_of(&places))
    }

    fn create(&mut self, process: usize) {
        if self.model.places(process, |kind| kind == Kind::Set).len() < 3 {
            let (at, old) = (self.free(process), self.r.below(2));
            self.call("create", process, &[at, i64::try_from(old).unwrap_or(0)]);
        }
    }

    fn listen(&mut self) {
        let process = self.r.below(self.model.processes());
        let at = self.free(process);
        let number = self.model.next_listener();
        self.call("listen", process, &[at, number]);
    }

    /// A connection, of which an end may be in a set before there is a peer.
    fn connect(&mut self) {
        let process = self.r.below(self.model.processes());
        let Some(listener) = self.model.some_listener(&mut self.r) else { return };
        let number = self.model.next_connection();
        if self.model.connections() >= 6 {
            return;
        }
        let at = self.free(process);
        if !self.call("socket", process, &[at]) {
            return;
        }
        if self.r.once_in(4) {
            self.watch(process, at);
        }
        let no_wait = i64::from(self.r.once_in(2));
        self.call("connect", process, &[at, listener, number, no_wait]);
        if self.r.below(8) != 0 {
            self.accept();
        }
        if self.r.once_in(3) {
            self.warm();
        }
        for _ in 0..self.r.below(3) {
            self.add_stream();
        }
    }

    /// Adds some stream to a set.
    fn add_stream(&mut self) {
        let process = self.process();
        if let Some(at) = self.some(process, |kind| matches!(kind, Kind::Stream(..))) {
            self.watch(process, at);
        }
    }

    fn accept(&mut self) {
        let process = self.process();
        for process in [process, 0, 1] {
            if let Some(listener) = self.some(process, |kind| matches!(kind, Kind::Listener(_))) {
                let at = self.free(process);
                if self.r.once_in(3) {
                    self.wait();
                }
                self.call("accept", process, &[at, listener]);
                if self.r.once_in(3) {
                    self.watch(process, at);
                }
                return;
            }
        }
    }

    fn warm(&mut self) {
        if let Some((first, second)) = self.model.quiet_connection(&mut self.r) {
            let n = 20 + i64::try_from(self.r.below(30)).unwrap_or(0);
            let other = if first.0 == second.0 { second.1 } else { -1 - second.1 };
            self.call("warm", first.0, &[first.1, other, 1, n]);
        }
    }

    fn on_stream(&mut self, word: &'static str, more: &[i64]) -> bool {
        let process = self.process();
        let Some(at) = self.some(process, |kind| matches!(kind, Kind::Stream(..))) else {
            return false;
        };
        let mut a = vec![at];
        a.extend_from_slice(more);
        self.call(word, process, &a)
    }

    fn send(&mut self) {
        let n = self.r.one_of(&[0, 1, 1, 2, 64, 1000, 5000, 20_000]);
        self.on_stream("send", &[n]);
    }

    fn receive(&mut self) {
        let n = self.r.one_of(&[1, 10, 100, 4096, 65_536]);
        match self.r.below(12) {
            0..5 => self.on_stream("recv", &[n]),
            5..9 => self.on_stream("empty", &[]),
            9..11 => self.on_stream("peek", &[n]),
            _ => self.on_stream("error", &[]),
        };
    }

    fn events(&mut self) -> i64 {
        let mask = self.r.one_of(&[
            1, 1, 1, 5, 5, 0x2001, 0x2001, 0x2005, 4, 4, 0x2007, 3, 2, 0, 0x2000, 0x41, 0x104,
            0x18, 0x401,
        ]);
        let flags =
            self.r.one_of(&[0, 0, 0, 0, EDGE, EDGE, EDGE, EDGE, ONESHOT, ONESHOT, EDGE | ONESHOT]);
        let wakeup = if self.r.once_in(40) { WAKEUP } else { 0 };
        mask | flags | wakeup
    }

    /// Adds a place to a set.
    fn watch(&mut self, process: usize, at: i64) {
        if let Some(set) = self.some(process, |kind| kind == Kind::Set) {
            let mut events = self.events();
            if self.model.is_listener(process, at) && self.r.once_in(2) {
                events = (events & !ONESHOT & !0x2002) | EXCLUSIVE;
            }
            self.change(process, set, 1, at, events);
        }
    }

    fn change(&mut self, process: usize, set: i64, op: i64, at: i64, events: i64) {
        let once = if events & (EDGE | ONESHOT) == 0 { 0 } else { IS_ONCE };
        let serial = i64::try_from(self.calls.len()).unwrap_or(0) + 1;
        let data = if self.has_equal_data { TOP | once } else { TOP | once | serial << 8 | at };
        self.call("ctl", process, &[set, at, op, events, data]);
    }

    fn ctl(&mut self) {
        let process = self.process();
        let not_a_set = self.r.once_in(60);
        let set = self.some(process, |kind| (kind == Kind::Set) != not_a_set);
        let stale = self.r.once_in(25);
        let target = match self.r.below(20) {
            _ if stale => self.model.some_closed(process, &mut self.r),
            0..11 => self.some(process, |kind| matches!(kind, Kind::Stream(..))),
            11..18 => self.some(process, |kind| kind != Kind::Set),
            _ => self.some(process, |kind| kind == Kind::Set),
        };
        let (Some(set), Some(target)) = (set, target) else { return };
        let (most_adds, most_mods) =
            if self.model.is_watched(process, set, target) { (5, 28) } else { (34, 36) };
        let op = match self.r.below(40) {
            n if n < most_adds => 1,
            n if n < most_mods => 3,
            0..38 => 2,
            38 => self.r.one_of(&[0x101, 0x102, 0x103]),
            _ => self.r.one_of(&[0, 4]),
        };
        let is_listener = self.model.is_listener(process, target);
        if self.r.once_in(if is_listener { 2 } else { 40 }) {
            let events = self.events();
            let kept = if self.r.once_in(4) { events } else { events & !ONESHOT & !0x2002 };
            self.change(process, set, op, target, kept | EXCLUSIVE);
        } else {
            let events = self.events();
            self.change(process, set, op, target, events);
        }
    }

    fn most(&mut self) -> i64 {
        self.r.one_of(&[8, 8, 8, 1, 2, 3, 5])
    }

    fn wait(&mut self) {
        let process = self.process();
        let Some(set) = self.some(process, |kind| kind == Kind::Set) else { return };
        let most = self.most();
        match self.r.below(24) {
            0..17 => self.call("wait", process, &[set, 0, 0, most]),
            17 => self.call("wait", process, &[set, 0, 1000, most]),
            18 => self.call("wait", process, &[set, 3, 300, most]),
            19 => self.call("wait", process, &[set, 1, 1000, most]),
            20 => self.call("wait", process, &[set, 3, 0, most]),
            21 => self.call("wait", process, &[set, 1, 0, most]),
            _ => {
                let timeout = self.r.one_of(&[0, -1, 1000]);
                self.call("wait", process, &[set, 2, timeout, most])
            }
        };
    }

    /// Some threads wait without a limit while another acts.
    fn block(&mut self) {
        let process = self.r.below(self.model.processes());
        let sets = self.model.places(process, |kind| kind == Kind::Set);
        if sets.is_empty() {
            return;
        }
        let same = self.r.once_in(2);
        let mut set = self.r.one_of(&sets);
        let mut has_begun = false;
        for thread in 1..=self.r.one_of(&[1, 1, 1, 2, 3]) {
            let (api, most) = (self.r.one_of(&[0, 0, 1, 3]), self.most());
            let timeout = self.r.one_of(&[-1, -1, -1, 60_000_000]);
            let mut call = Call::new("begin", process, &[set, api, timeout, most]);
            call.thread = thread;
            has_begun |= self.add(call);
            if !same {
                set = self.r.one_of(&sets);
            }
        }
        if !has_begun {
            return;
        }
        for _ in 0..1 + self.r.below(3) {
            match self.r.below(20) {
                0..11 => self.send(),
                11 => self.close(),
                12..15 => self.foreign(),
                15..18 => self.ctl(),
                18 => self.connect(),
                _ => self.receive(),
            }
        }
        self.call("end", process, &[]);
    }

    /// `poll` and `select` over streams, sets and others.
    fn ask(&mut self) {
        let process = self.process();
        let mut a = [-1; 5];
        for slot in a.iter_mut().take(1 + self.r.below(3)) {
            let place = if self.r.once_in(2) {
                self.some(process, |kind| kind == Kind::Set)
            } else {
                self.some(process, |_| true)
            };
            let Some(place) = place else { return };
            *slot = place;
        }
        let timeout = if self.r.once_in(10) { 1 } else { 0 };
        if self.r.once_in(3) {
            (a[3], a[4]) = (self.r.one_of(&[1, 2, 3, 7, 7]), timeout * 500);
            self.call("select", process, &a);
        } else {
            // Alone, or among many entries that are passed over.
            const MANY: i64 = 0x10000;
            let asked = [1, 5, 0x2007, 0, 4, 0x41, MANY | 1, MANY | 1, MANY | 0x2001, MANY | 5];
            (a[3], a[4]) = (self.r.one_of(&asked), timeout);
            self.call("poll", process, &a);
        }
    }

    fn foreign(&mut self) {
        let process = self.process();
        let is_foreign = |kind| matches!(kind, Kind::Event | Kind::Timer | Kind::Pipe(_));
        let places = self.model.places(process, is_foreign);
        if places.is_empty() || self.r.once_in(5) {
            let at = self.free(process);
            let made = match self.r.below(3) {
                0 => {
                    let other = (at + 1) % i64::try_from(PLACES).unwrap_or(1);
                    self.call("pipe", process, &[at, other])
                }
                1 => {
                    let n = self.r.one_of(&[0, 0, 1]);
                    self.call("eventfd", process, &[at, n])
                }
                _ => self.call("timerfd", process, &[at]),
            };
            if made {
                self.watch(process, at);
            }
            return;
        }
        let at = self.r.one_of(&places);
        let word = self.r.one_of(&["put", "put", "take"]);
        if self.model.is_timer(process, at) && self.r.once_in(2) {
            let stop = i64::from(self.r.once_in(4));
            self.call("arm", process, &[at, stop]);
        } else {
            self.call(word, process, &[at]);
        }
    }

    fn shut(&mut self) {
        let how = self.r.one_of(&[0, 1, 1, 1, 2]);
        let process = self.process();
        let Some(at) = self.some(process, |kind| matches!(kind, Kind::Stream(..))) else { return };
        // A peer with unread bytes acknowledges the end late, which takes time.
        if self.r.below(8) != 0
            && let Some((process, at)) = self.model.peer(process, at)
        {
            self.call("empty", process, &[at]);
        }
        self.call("shutdown", process, &[at, how]);
    }

    fn close(&mut self) {
        let process = self.process();
        let rare = self.r.once_in(3);
        if let Some(at) = self.some(process, |kind| rare || matches!(kind, Kind::Stream(..))) {
            self.call("close", process, &[at]);
        }
    }

    fn dup(&mut self) {
        let process = self.process();
        let Some(at) = self.some(process, |kind| kind != Kind::Fresh) else { return };
        if self.r.once_in(3) {
            if let Some(over) = self.some(process, |_| true) {
                self.call("dup2", process, &[at, over]);
            }
        } else {
            let (to, by_fcntl) = (self.free(process), i64::from(self.r.once_in(2)));
            self.call("dup", process, &[at, to, by_fcntl]);
        }
    }

    fn bad(&mut self) {
        let process = self.process();
        if self.r.once_in(4) {
            let n = self.r.one_of(&[0, 1, 1]);
            self.call("badcreate", process, &[n]);
            return;
        }
        let not_a_set = self.r.once_in(5);
        let Some(set) = self.some(process, |kind| (kind == Kind::Set) != not_a_set) else { return };
        let (api, most) = self.r.one_of(&[(0, 0), (0, -1), (4, 1), (4, 8)]);
        let (api, most) = if not_a_set { (0, 1) } else { (api, most) };
        self.call("wait", process, &[set, api, 0, most]);
    }

    /// A socket that is not connected, or is refused.
    fn fresh(&mut self) {
        let process = self.r.below(self.model.processes());
        let at = self.free(process);
        if self.call("socket", process, &[at]) {
            self.watch(process, at);
            if self.r.once_in(2) {
                self.call("refuse", process, &[at]);
            }
        }
    }

    /// A stream takes no more; some time later its peer has received everything.
    fn fill(&mut self) {
        let Some((first, second)) = self.model.quiet_connection(&mut self.r) else { return };
        if !self.call("fill", first.0, &[first.1]) {
            return;
        }
        for _ in 0..self.r.below(6) {
            match self.r.below(4) {
                0..2 => self.wait(),
                2 => self.ctl(),
                _ => self.ask(),
            }
        }
        self.call("drain", second.0, &[second.1]);
    }

    fn child(&mut self) {
        if self.model.child().is_some() {
            self.exit();
            return;
        }
        let process = self.r.below(self.model.processes());
        if !self.call("fork", process, &[]) {
            return;
        }
        for _ in 0..4 + self.r.below(12) {
            self.step(false);
        }
        self.exit();
    }

    fn exit(&mut self) {
        if let Some(parent) = self.model.child() {
            self.call("exit", parent + 2, &[]);
        }
    }
}

pub(crate) const EDGE: i64 = 1 << 31;
pub(crate) const ONESHOT: i64 = 1 << 30;
const WAKEUP: i64 = 1 << 29;
pub(crate) const EXCLUSIVE: i64 = 1 << 28;
/// In the data of a watch that reports each event once.
const IS_ONCE: i64 = 1 << 55;
/// The data is to come back whole.
const TOP: i64 = 0x25 << 56;
/// In one of so many programs watches have equal data.
const EQUAL_DATA: u64 = 8;
