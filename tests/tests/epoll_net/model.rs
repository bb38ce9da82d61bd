//! What is known of a program's descriptors before it runs: which calls it may make so that their
//! results do not depend on time.

use std::collections::HashSet;

use super::program::{Call, EDGE, EXCLUSIVE, Layout, ONESHOT};
use rsock_tests::lockstep::Random;

pub(crate) const PLACES: usize = 40;
/// More than a program has descriptors.
const NUMBERS: usize = PLACES + 4;
/// Less than the kernel's buffers hold at any time.
const MOST_UNDER_WAY: i64 = 45_000;
/// A connection is on TCP at least until both ends have made so many calls.
const CALLS_ON_TCP: usize = 6;
/// What a thread sends while others wait goes in one packet.
const MOST_AT_ONCE: i64 = 1000;

/// What a descriptor names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A connection, and its end: 0 connects.
    Stream(usize, usize),
    Listener(usize),
    /// The end of a pipe that reads, or the one that writes.
    Pipe(usize),
    Event,
    Timer,
    Set,
    /// A socket that is not connected.
    Fresh,
    /// A socket whose connection was refused.
    Refused,
}

#[derive(Clone, Debug)]
struct File {
    kind: Kind,
    holders: usize,
    /// Of a set: the watches that it may have had.
    watches: i64,
    /// Whether it may have been in a set.
    is_member: bool,
    /// Of a set: whether a socket or a set may have been in it.
    has_sockets: bool,
    /// Of a set: whether a set may have been in it, and whether it may have been in a set.
    has_sets: bool,
    is_nested: bool,
    /// Whether a child has had it too.
    is_shared: bool,
    /// Of a set: whether an edge-triggered or one-shot watch of a socket may have been in it.
    has_edges: bool,
    /// Of a set: whether streams in it may have been on the ring while a child had it too, or may
    /// have been reported once more when they left the ring.
    is_odd: bool,
}

#[derive(Clone, Debug, Default)]
struct Connection {
    is_accepted: bool,
    /// Bytes that each end has not received yet, at most.
    under_way: [i64; 2],
    /// Whether an end has shut down a direction, or is closed.
    is_ended: [bool; 2],
    /// Whether an end has ended since its peer has last sent, which the peer may not have seen.
    is_news: [bool; 2],
    /// The same since its peer has last received.
    is_unread: [bool; 2],
    has_sent_urgent: [bool; 2],
    /// The end that sends until there is no more room.
    full: Option<usize>,
    /// Calls that each end has made.
    calls: [usize; 2],
}

#[derive(Clone, Debug, Default)]
struct Listener {
    is_open: bool,
    waiting: Vec<usize>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    process: usize,
    thread: usize,
    file: usize,
    place: usize,
}

/// A process and a place in it.
pub(crate) type At = (usize, i64);

/// What programs leave out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Avoid {
    Nothing,
    /// Differences that are known (docs/reliability.md, "Epoll net"): a stream that may be on the
    /// ring is not filled, a set of sockets is not used from the moment on at which a child has it
    /// too if streams may stay on the ring then, no watch of a set is edge-triggered, no set is in
    /// a set that is in a set, readers poll before they read after the peer's end, no end of a
    /// process resets a stream, no thread waits when a stream with unread bytes is closed, or in a
    /// set that has a file by two watches.
    Known,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    layout: Layout,
    avoid: Avoid,
    files: Vec<File>,
    tables: [[Option<usize>; PLACES]; 4],
    /// The number of each place, also after it was closed.
    numbers: [[Option<usize>; PLACES]; 4],
    /// What each number names: a closed place's number may be another place's by now.
    names: [[Option<usize>; NUMBERS]; 4],
    /// The process that has a child.
    parent: Option<usize>,
    connections: Vec<Connection>,
    listeners: Vec<Listener>,
    waiting: Vec<Waiting>,
    has_nested: bool,
    exclusives: usize,
    /// Sets, with a number and the file that it named when it was added.
    watches: HashSet<(usize, usize, usize)>,
}

impl Model {
    pub(crate) fn new(layout: Layout, avoid: Avoid) -> Self {
        Self {
            layout,
            avoid,
            files: Vec::new(),
            tables: [[None; PLACES]; 4],
            numbers: [[None; PLACES]; 4],
            names: [[None; NUMBERS]; 4],
            parent: None,
            connections: Vec::new(),
            listeners: Vec::new(),
            waiting: Vec::new(),
            has_nested: false,
            exclusives: 0,
            watches: HashSet::new(),
        }
    }

    pub(crate) fn processes(&self) -> usize {
        match self.layout {
            Layout::One => 1,
            Layout::Two => 2,
        }
    }

    pub(crate) fn child(&self) -> Option<usize> {
        self.parent
    }

    pub(crate) fn is_waiting(&self, process: usize, thread: usize) -> bool {
        self.waiting.iter().any(|w| (w.process, w.thread) == (process, thread))
    }

    fn file_at(&self, process: usize, place: usize) -> Option<usize> {
        *self.tables.get(process)?.get(place)?
    }

    fn kind_at(&self, process: usize, place: usize) -> Option<Kind> {
        self.file_at(process, place).map(|file| self.files[file].kind)
    }

    pub(crate) fn is_open(&self, process: usize, place: usize) -> bool {
        self.file_at(process, place).is_some()
    }

    pub(crate) fn is_listener(&self, process: usize, place: i64) -> bool {
        let kind = usize::try_from(place).ok().and_then(|place| self.kind_at(process, place));
        matches!(kind, Some(Kind::Listener(_)))
    }

    /// What `EPOLL_CTL_ADD` of a place to a set makes, unless a call was bad.
    fn watch_of(&self, process: usize, set: i64, place: i64) -> Option<(usize, usize, usize)> {
        let (set, place) = (usize::try_from(set).ok()?, usize::try_from(place).ok()?);
        let number = (*self.numbers[process].get(place)?)?;
        Some((self.named(process, set)?, number, self.named(process, place)?))
    }

    /// Whether a set probably has a watch of a place.
    pub(crate) fn is_watched(&self, process: usize, set: i64, place: i64) -> bool {
        self.watch_of(process, set, place).is_some_and(|watch| self.watches.contains(&watch))
    }

    pub(crate) fn is_timer(&self, process: usize, place: i64) -> bool {
        let kind = usize::try_from(place).ok().and_then(|place| self.kind_at(process, place));
        kind == Some(Kind::Timer)
    }

    /// Open places whose file is of a kind.
    pub(crate) fn places(&self, process: usize, of: impl Fn(Kind) -> bool) -> Vec<i64> {
        let is_such = |place: &usize| self.kind_at(process, *place).is_some_and(&of);
        (0..PLACES).filter(is_such).filter_map(|place| i64::try_from(place).ok()).collect()
    }

    /// A place whose number is not open any more, or is another place's by now.
    pub(crate) fn some_closed(&self, process: usize, r: &mut Random) -> Option<i64> {
        let is_closed = |place: &usize| {
            self.numbers[process][*place].is_some() && !self.is_open(process, *place)
        };
        let closed: Vec<_> = (0..PLACES).filter(is_closed).collect();
        let place = *closed.get(r.below(closed.len().max(1)))?;
        i64::try_from(place).ok()
    }

    pub(crate) fn next_listener(&self) -> i64 {
        i64::try_from(self.listeners.len()).unwrap_or(0)
    }

    pub(crate) fn next_connection(&self) -> i64 {
        i64::try_from(self.connections.len()).unwrap_or(0)
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }

    pub(crate) fn some_listener(&self, r: &mut Random) -> Option<i64> {
        let open: Vec<_> =
            (0..self.listeners.len()).filter(|i| self.listeners[*i].is_open).collect();
        let number = *open.get(r.below(open.len().max(1)))?;
        i64::try_from(number).ok()
    }

    fn find_end(&self, connection: usize, end: usize) -> Option<At> {
        let processes = 0..self.processes();
        let mut all = processes.flat_map(|process| (0..PLACES).map(move |place| (process, place)));
        let (process, place) = all.find(|(process, place)| {
            self.kind_at(*process, *place) == Some(Kind::Stream(connection, end))
        })?;
        Some((process, i64::try_from(place).ok()?))
    }

    /// The other end of a stream.
    pub(crate) fn peer(&self, process: usize, place: i64) -> Option<At> {
        match self.kind_at(process, usize::try_from(place).ok()?)? {
            Kind::Stream(connection, end) => self.find_end(connection, 1 - end),
            _ => None,
        }
    }

    /// Whether a connection cannot have left TCP yet.
    fn is_on_tcp(&self, connection: usize) -> bool {
        self.connections[connection].calls.into_iter().min() < Some(CALLS_ON_TCP)
    }

    /// Whether a place names a set that is not to be used any more.
    fn is_left_out(&self, process: usize, place: usize) -> bool {
        let is_odd = |file: usize| self.files[file].is_odd;
        self.avoid == Avoid::Known && self.file_at(process, place).is_some_and(is_odd)
    }

    fn is_quiet(&self, connection: usize) -> bool {
        let c = &self.connections[connection];
        c.is_accepted
            && c.under_way == [0, 0]
            && c.is_ended == [false, false]
            && c.has_sent_urgent == [false, false]
            && c.full.is_none()
    }

    /// The two ends, in either order, of a connection on which nothing is under way.
    pub(crate) fn quiet_connection(&self, r: &mut Random) -> Option<(At, At)> {
        let quiet: Vec<_> = (0..self.connections.len()).filter(|c| self.is_quiet(*c)).collect();
        let connection = *quiet.get(r.below(quiet.len().max(1)))?;
        let first = r.below(2);
        Some((self.find_end(connection, first)?, self.find_end(connection, 1 - first)?))
    }

    fn open(&mut self, process: usize, place: usize, kind: Kind) -> bool {
        if place >= PLACES || self.is_open(process, place) {
            return false;
        }
        self.files.push(File {
            kind,
            holders: 1,
            watches: 0,
            is_member: false,
            has_sockets: false,
            has_sets: false,
            is_nested: false,
            is_shared: false,
            has_edges: false,
            is_odd: false,
        });
        self.give_number(process, place, self.files.len() - 1);
        true
    }

    /// Puts a file at a place, with the lowest number that is free.
    fn give_number(&mut self, process: usize, place: usize, file: usize) {
        let is_free = |number: &usize| self.names[process][*number].is_none();
        let number = (3..NUMBERS).find(is_free).expect("more numbers than places");
        self.tables[process][place] = Some(file);
        self.numbers[process][place] = Some(number);
        self.names[process][number] = Some(file);
    }

    /// The file that the number of a place names, which may be closed.
    fn named(&self, process: usize, place: usize) -> Option<usize> {
        self.names[process][self.numbers[process][place]?]
    }

    fn let_go(&mut self, file: usize) {
        self.files[file].holders -= 1;
        if self.files[file].holders != 0 {
            return;
        }
        match self.files[file].kind {
            Kind::Stream(connection, end) => self.end(connection, end),
            Kind::Listener(number) => {
                self.listeners[number].is_open = false;
                for connection in std::mem::take(&mut self.listeners[number].waiting) {
                    self.end(connection, 1);
                }
            }
            _ => {}
        }
    }

    fn end(&mut self, connection: usize, end: usize) {
        let c = &mut self.connections[connection];
        c.is_ended[end] = true;
        c.is_news[end] = true;
        c.is_unread[end] = true;
    }

    /// Whether the call may come next. If so, what it does is noted.
    pub(crate) fn admit(&mut self, call: &mut Call) -> bool {
        call.after_tick = false;
        call.after_poll = false;
        let exists = call.process < 2 || self.parent == Some(call.process - 2);
        if !exists
            || call.word != "end" && self.is_waiting(call.process, call.thread)
            || !self.waiting.is_empty() && !self.may_act(call)
            || call.process >= 2 && call.thread != 0
        {
            return false;
        }
        match call.word {
            "socket" => self.open(call.process, call.place(0), Kind::Fresh),
            "eventfd" => self.open(call.process, call.place(0), Kind::Event),
            "timerfd" => self.open(call.process, call.place(0), Kind::Timer),
            "create" => self.open(call.process, call.place(0), Kind::Set),
            "pipe" => {
                !self.is_open(call.process, call.place(1))
                    && call.a[0] != call.a[1]
                    && self.open(call.process, call.place(0), Kind::Pipe(0))
                    && self.open(call.process, call.place(1), Kind::Pipe(1))
            }
            "listen" => self.admit_listen(call),
            "connect" => self.admit_connect(call),
            "refuse" => self.admit_refuse(call),
            "accept" => self.admit_accept(call),
            "send" | "recv" | "peek" | "empty" | "urgent" | "error" | "shutdown" | "fill"
            | "drain" => self.admit_on_stream(call),
            "warm" => self.admit_warm(call),
            "close" => self.admit_close(call),
            "dup" | "dup2" => self.admit_dup(call),
            "put" | "take" => {
                let kind = self.kind_at(call.process, call.place(0));
                let is_put = call.word == "put";
                matches!(kind, Some(Kind::Event))
                    || kind == Some(Kind::Pipe(usize::from(is_put)))
                    || kind == Some(Kind::Timer) && !is_put
            }
            "arm" => self.kind_at(call.process, call.place(0)) == Some(Kind::Timer),
            "ctl" => self.admit_ctl(call),
            "wait" | "begin" => self.admit_wait(call),
            "end" => {
                let before = self.waiting.len();
                self.waiting.retain(|w| w.process != call.process);
                self.waiting.len() != before
            }
            "poll" | "select" => (0..3).all(|i| {
                call.a[i] < 0
                    || self.is_open(call.process, call.place(i))
                        && !self.is_left_out(call.process, call.place(i))
            }),
            "fork" => self.admit_fork(call),
            "exit" => self.admit_exit(call),
            "badcreate" => true,
            _ => unreachable!("{} is no call", call.word),
        }
    }

    /// Whether a call that is made while threads wait is one step for them.
    fn may_act(&self, call: &Call) -> bool {
        match call.word {
            "begin" | "end" | "put" | "take" | "recv" | "empty" | "peek" | "error" | "ctl"
            | "socket" | "eventfd" | "accept" => true,
            "send" => call.a[1] <= MOST_AT_ONCE,
            "arm" => call.a[1] == 0,
            "close" => match self.kind_at(call.process, call.place(0)) {
                Some(Kind::Stream(connection, end)) => {
                    let connection = &self.connections[connection];
                    let is_urgent = connection.has_sent_urgent[1 - end];
                    let has_unread = connection.under_way[end] != 0 || is_urgent;
                    self.avoid == Avoid::Nothing || !has_unread
                }
                Some(Kind::Event | Kind::Pipe(_)) => true,
                _ => false,
            },
            "connect" => self
                .file_at(call.process, call.place(0))
                .is_some_and(|file| !self.files[file].is_member),
            _ => false,
        }
    }

    fn admit_listen(&mut self, call: &Call) -> bool {
        let number = call.place(1);
        // Left out calls leave gaps.
        if number >= 4 || number < self.listeners.len() {
            return false;
        }
        if !self.open(call.process, call.place(0), Kind::Listener(number)) {
            return false;
        }
        self.listeners.resize(number + 1, Listener::default());
        self.listeners[number].is_open = true;
        true
    }

    fn admit_connect(&mut self, call: &Call) -> bool {
        let (listener, number) = (call.place(1), call.place(2));
        let Some(file) = self.file_at(call.process, call.place(0)) else { return false };
        if self.files[file].kind != Kind::Fresh
            || self.parent.is_some()
            || number >= 8
            || number < self.connections.len()
            || !self.listeners.get(listener).is_some_and(|l| l.is_open && l.waiting.len() < 4)
        {
            return false;
        }
        self.connections.resize(number + 1, Connection::default());
        self.listeners[listener].waiting.push(number);
        self.files[file].kind = Kind::Stream(number, 0);
        true
    }

    fn admit_refuse(&mut self, call: &Call) -> bool {
        let Some(file) = self.file_at(call.process, call.place(0)) else { return false };
        let is_fresh = self.files[file].kind == Kind::Fresh && self.parent.is_none();
        if is_fresh {
            self.files[file].kind = Kind::Refused;
        }
        is_fresh
    }

    fn admit_accept(&mut self, call: &Call) -> bool {
        let kind = self.kind_at(call.process, call.place(1));
        let Some(Kind::Listener(number)) = kind else { return false };
        if self.is_open(call.process, call.place(0)) || call.place(0) >= PLACES {
            return false;
        }
        if !self.listeners[number].waiting.is_empty() {
            let connection = self.listeners[number].waiting.remove(0);
            self.connections[connection].is_accepted = true;
            self.open(call.process, call.place(0), Kind::Stream(connection, 1));
        }
        true
    }

    fn admit_on_stream(&mut self, call: &mut Call) -> bool {
        let kind = self.kind_at(call.process, call.place(0));
        if call.word == "error" && kind == Some(Kind::Refused) {
            return true;
        }
        let Some(Kind::Stream(connection, end)) = kind else { return false };
        let (is_quiet, has_child) = (self.is_quiet(connection), self.parent.is_some());
        let may_fill = self.avoid == Avoid::Nothing || self.is_on_tcp(connection);
        let is_known = self.avoid == Avoid::Known;
        let c = &mut self.connections[connection];
        let peer = 1 - end;
        c.calls[end] += 1;
        if c.full.is_some() && call.word != "drain" {
            return false;
        }
        match call.word {
            "send" => {
                let most = if c.has_sent_urgent[end] { MOST_UNDER_WAY / 2 } else { MOST_UNDER_WAY };
                if c.under_way[peer] + call.a[1] > most {
                    return false;
                }
                c.under_way[peer] += call.a[1];
                call.after_tick = std::mem::take(&mut c.is_news[peer]);
            }
            "urgent" => {
                // Named difference (docs/limits.md, "Urgent data"): two urgent bytes in a row.
                if std::mem::replace(&mut c.has_sent_urgent[end], true) {
                    return false;
                }
                call.after_tick = std::mem::take(&mut c.is_news[peer]);
            }
            "recv" | "empty" | "peek" if is_known && std::mem::take(&mut c.is_unread[peer]) => {
                call.after_poll = true;
                // Again, for what the call itself does.
                return self.admit_on_stream(call);
            }
            "recv" => c.under_way[end] -= call.a[1].min(c.under_way[end]),
            "empty" if !c.has_sent_urgent[peer] => c.under_way[end] = 0,
            "shutdown" => {
                c.is_ended[end] = true;
                c.is_news[end] = true;
                c.is_unread[end] = true;
            }
            "fill" if !is_quiet || has_child || !may_fill => return false,
            "fill" => c.full = Some(end),
            "drain" if c.full != Some(peer) => return false,
            "drain" => c.full = None,
            _ => {}
        }
        true
    }

    fn admit_warm(&mut self, call: &Call) -> bool {
        let kind = self.kind_at(call.process, call.place(0));
        let Some(Kind::Stream(connection, end)) = kind else { return false };
        let (other, place) = if call.a[1] < 0 {
            (1 - call.process, -1 - call.a[1])
        } else {
            (call.process, call.a[1])
        };
        let Ok(place) = usize::try_from(place) else { return false };
        let is_possible = call.process < 2
            && other < 2
            && self.kind_at(other, place) == Some(Kind::Stream(connection, 1 - end))
            && self.is_quiet(connection)
            && self.parent.is_none();
        if is_possible {
            let n = usize::try_from(call.a[3]).unwrap_or(0);
            self.connections[connection].calls = self.connections[connection].calls.map(|c| c + n);
        }
        is_possible
    }

    fn is_full(&self, file: usize) -> bool {
        match self.files[file].kind {
            Kind::Stream(connection, _) => self.connections[connection].full.is_some(),
            _ => false,
        }
    }

    fn may_let_go(&self, file: usize) -> bool {
        !self.waiting.iter().any(|w| w.file == file) && !self.is_full(file)
    }

    fn admit_close(&mut self, call: &Call) -> bool {
        let Some(file) = self.file_at(call.process, call.place(0)) else { return false };
        if !self.may_let_go(file) {
            return false;
        }
        self.tables[call.process][call.place(0)] = None;
        if let Some(number) = self.numbers[call.process][call.place(0)] {
            self.names[call.process][number] = None;
        }
        self.let_go(file);
        true
    }

    fn admit_dup(&mut self, call: &Call) -> bool {
        let Some(file) = self.file_at(call.process, call.place(0)) else { return false };
        let to = call.place(1);
        let over = self.file_at(call.process, to);
        if self.files[file].kind == Kind::Fresh || to >= PLACES {
            return false;
        }
        if call.word == "dup2" {
            let Some(over) = over else { return false };
            if call.place(0) == to || !self.may_let_go(over) {
                return false;
            }
            self.files[file].holders += 1;
            self.tables[call.process][to] = Some(file);
            if let Some(number) = self.numbers[call.process][to] {
                self.names[call.process][number] = Some(file);
            }
            self.let_go(over);
        } else if over.is_some() {
            return false;
        } else {
            self.files[file].holders += 1;
            self.give_number(call.process, to, file);
        }
        true
    }

    fn admit_ctl(&mut self, call: &Call) -> bool {
        let (set, target) = (call.place(0), call.place(1));
        let (process, [_, _, op, events, _]) = (call.process, call.a);
        if set >= PLACES
            || target >= PLACES
            || self.numbers[process][set].is_none()
            || self.numbers[process][target].is_none()
        {
            return false;
        }
        if self.is_left_out(process, set) || self.is_left_out(process, target) {
            return false;
        }
        let (set, target) = (self.named(process, set), self.named(process, target));
        let target_kind = target.map(|file| self.files[file].kind);
        let has_sockets =
            matches!(target_kind, Some(Kind::Stream(..) | Kind::Fresh | Kind::Refused | Kind::Set));
        let is_nested = target_kind == Some(Kind::Set);
        if self.avoid == Avoid::Known {
            let is_deep = |file: usize| self.files[file].is_nested;
            let has_sets = target.is_some_and(|file| self.files[file].has_sets);
            let is_shared = |file: usize| self.files[file].is_shared;
            let is_inherited = target.is_some_and(is_shared);
            let is_stream = matches!(target_kind, Some(Kind::Stream(..)));
            let may_be_on_ring = match target_kind {
                Some(Kind::Stream(connection, _)) => !self.is_on_tcp(connection),
                _ => false,
            };
            if set.is_some_and(is_shared) && may_be_on_ring
                || is_inherited && is_stream && events & EDGE != 0
                || is_nested && (events & EDGE != 0 || has_sets || set.is_some_and(is_deep))
            {
                return false;
            }
        }
        if op == 1 && is_nested && !self.waiting.is_empty() {
            return false;
        }
        if let Some(watch) = self.watch_of(process, call.a[0], call.a[1])
            && self.avoid == Avoid::Known
            && self.watches.insert(watch)
        {
            let is_possible = self.waiting.iter().all(|waiting| self.may_wait(waiting));
            self.watches.remove(&watch);
            if !is_possible {
                return false;
            }
        }
        if op == 1 && events & EXCLUSIVE != 0 {
            if !self.waiting.is_empty() {
                return false;
            }
            self.exclusives += 1;
        }
        if let Some(file) = set.filter(|_| has_sockets && events & (EDGE | ONESHOT) != 0) {
            self.files[file].has_edges = true;
        }
        if op == 1 {
            self.has_nested |= is_nested;
            if let Some(file) = target {
                self.files[file].is_member = true;
                self.files[file].is_nested |= is_nested;
            }
            if let Some(file) = set {
                self.files[file].watches += 1;
                self.files[file].has_sockets |= has_sockets;
                self.files[file].has_sets |= is_nested;
            }
        }
        if let Some(watch) = self.watch_of(process, call.a[0], call.a[1]) {
            match op {
                1 => _ = self.watches.insert(watch),
                2 => _ = self.watches.remove(&watch),
                _ => {}
            }
        }
        true
    }

    /// Whether a set, with the sets in it, may have a file by two watches.
    fn has_twice(&self, set: usize) -> bool {
        let is_in = |of: usize| of == set || self.watches.iter().any(|w| w.0 == set && w.2 == of);
        let all = || self.watches.iter().filter(|watch| is_in(watch.0));
        all().any(|a| all().any(|b| a.2 == b.2 && (a.0, a.1) != (b.0, b.1)))
    }

    /// Whether a set may have a file that has another watch, or another number.
    fn has_shared(&self, process: usize, set: usize) -> bool {
        let n_watches = |file| self.watches.iter().filter(|watch| watch.2 == file).count();
        let mut members = self.watches.iter().filter(|watch| watch.0 == set).map(|watch| watch.2);
        members.any(|file| n_watches(file) > 1 || self.held(process, file) > 1)
    }

    /// Whether what a thread gets is the same each time.
    fn may_wait(&self, waiting: &Waiting) -> bool {
        let other = |w: &Waiting| w.file == waiting.file && w.thread != waiting.thread;
        let has_other = self.waiting.iter().any(other);
        let may_differ = self.has_twice(waiting.file)
            || has_other && self.has_shared(waiting.process, waiting.file);
        !may_differ
    }

    fn admit_wait(&mut self, call: &mut Call) -> bool {
        let Some(file) = self.file_at(call.process, call.place(0)) else { return false };
        if self.is_left_out(call.process, call.place(0)) {
            return false;
        }
        call.a[4] = self.files[file].watches.max(1);
        if self.avoid == Avoid::Known && call.process >= 2 && call.a[3] > 0 {
            call.a[3] = 8;
        }
        if call.word == "wait" {
            return true;
        }
        // With two sets, one in the other, which waits first matters; with two threads in one set,
        // which of them gets what.
        let others = || self.waiting.iter();
        if self.files[file].kind != Kind::Set
            || call.thread == 0
            || self.parent.is_some()
            || self.exclusives > 1
            || others().any(|w| w.file != file) && self.has_nested
            || others().any(|w| w.process != call.process)
            || others().any(|w| w.file == file && w.place != call.place(0))
        {
            return false;
        }
        if others().any(|w| w.file == file) {
            call.a[3] = 8;
            if self.files[file].watches > 8 {
                return false;
            }
        }
        let (process, thread, place) = (call.process, call.thread, call.place(0));
        let waiting = Waiting { process, thread, file, place };
        let may_wait = self.avoid != Avoid::Known || self.may_wait(&waiting);
        self.waiting.extend(may_wait.then_some(waiting));
        may_wait
    }

    /// Numbers of a process that name a file.
    fn held(&self, process: usize, file: usize) -> usize {
        self.tables[process].iter().filter(|at| **at == Some(file)).count()
    }

    fn admit_fork(&mut self, call: &Call) -> bool {
        if self.parent.is_some()
            || call.process >= 2
            || !self.waiting.is_empty()
            || self.connections.iter().any(|c| c.full.is_some())
        {
            return false;
        }
        self.parent = Some(call.process);
        let child = call.process + 2;
        self.tables[child] = self.tables[call.process];
        self.numbers[child] = self.numbers[call.process];
        self.names[child] = self.names[call.process];
        let is_unread = |c: usize| !self.is_on_tcp(c) && self.connections[c].under_way != [0, 0];
        let may_stay_on_ring = (0..self.connections.len()).any(is_unread);
        for file in self.tables[child].into_iter().flatten() {
            let file = &mut self.files[file];
            file.holders += 1;
            file.is_shared = true;
            file.is_odd |= file.has_edges || may_stay_on_ring && file.has_sockets;
        }
        true
    }

    fn admit_exit(&mut self, call: &Call) -> bool {
        let unread = |file: usize| match self.files[file].kind {
            Kind::Stream(connection, end) => {
                self.files[file].holders == self.held(call.process, file)
                    && self.connections[connection].under_way[end] != 0
                    && !self.is_on_tcp(connection)
            }
            _ => false,
        };
        let mut files = self.tables[call.process].into_iter().flatten();
        if call.process < 2 || self.avoid == Avoid::Known && files.any(unread) {
            return false;
        }
        let files = std::mem::replace(&mut self.tables[call.process], [None; PLACES]);
        for file in files.into_iter().flatten() {
            self.let_go(file);
        }
        self.parent = None;
        true
    }
}
