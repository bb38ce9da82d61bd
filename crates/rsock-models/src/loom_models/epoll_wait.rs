//! `epoll_wait` on a set that watches rings, against peers that send: each event is reported once,
//! and no thread sleeps while an event waits to be reported.
//!
//! The steps are those of `rsock-preload/src/event_set/wait/` with the rules of
//! `rsock-proto/src/event_set.rs`, and the ready set and the wait lines are the soft device's own
//! files. A mistake leaves a step out, and the model then has to fail.

#[path = "../../../rsock-verbs/src/sync/primitive.rs"]
#[allow(dead_code, unreachable_pub, reason = "the model uses a part")]
mod primitive;
#[path = "../../../rsock-verbs/src/sync/ready_set.rs"]
#[allow(dead_code, reason = "the model uses a part")]
mod ready_set;
#[path = "../../../rsock-verbs/src/sync/waiter.rs"]
#[allow(dead_code, reason = "the model uses a part")]
mod waiter;

use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use primitive::Loom;
use ready_set::ReadySet;
use rsock_proto::event_set::{Events, News, Place, ReadinessSnapshot, Watch};
use std::collections::VecDeque;
use std::env;
use std::process::Command;
use std::sync::atomic::Ordering;
use waiter::{ANNOUNCE, BELL, WaitLine};

/// A step that is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// The look at a stream after it was armed.
    LookAfterAnnounce,
    /// The look at the ready set after it was armed, before the thread sleeps.
    LookAfterArm,
    /// Arming the ready set before the thread sleeps.
    Arm,
    /// The ready set is disarmed although other threads sleep.
    SleepersCount,
    /// A thread that leaves an event for others wakes none of them.
    WakeSleeper,
    /// The peer's fence between its bytes and its look at the wait line.
    Fence,
}

impl Mistake {
    const ALL: [Self; 6] = [
        Self::LookAfterAnnounce,
        Self::LookAfterArm,
        Self::Arm,
        Self::SleepersCount,
        Self::WakeSleeper,
        Self::Fence,
    ];

    /// Whether one thread that waits would not suffer from it.
    fn needs_two_threads(self) -> bool {
        matches!(self, Self::SleepersCount | Self::WakeSleeper)
    }
}

/// The descriptor by which the set wakes threads: readable until it is drained. As in a set of the
/// kernel, one thread wakes, and that one wakes the next if it finds the descriptor still readable.
struct Doorbell {
    is_readable: Mutex<bool>,
    wake: Condvar,
}

impl Doorbell {
    fn ring(&self) {
        *self.is_readable.lock().expect("lock") = true;
        self.wake.notify_one();
    }

    fn sleep(&self) {
        let mut is_readable = self.is_readable.lock().expect("lock");
        while !*is_readable {
            is_readable = self.wake.wait(is_readable).expect("lock");
        }
        self.wake.notify_one();
    }

    fn drain(&self) {
        *self.is_readable.lock().expect("lock") = false;
    }
}

/// A stream on a ring: what has arrived, and the wait line of its queue.
struct Stream {
    arrivals: AtomicU32,
    line: WaitLine<Loom>,
}

/// What the lock of a set guards.
struct State {
    watches: [Watch; STREAMS],
    is_candidate: [bool; STREAMS],
    candidates: VecDeque<usize>,
}

struct Model {
    mistake: Option<Mistake>,
    ready: ReadySet<Loom>,
    doorbell: Doorbell,
    streams: [Stream; STREAMS],
    n_sleepers: AtomicU32,
    state: Mutex<State>,
    /// Events that waits have returned, of each stream.
    reported: [AtomicU32; STREAMS],
}

const STREAMS: usize = 2;

impl Model {
    fn new(mistake: Option<Mistake>) -> Arc<Self> {
        let stream = || Stream { arrivals: AtomicU32::new(0), line: WaitLine::fresh() };
        let asked = Events::INPUT | Events::EDGE;
        let watch = || Watch::new(asked, &ReadinessSnapshot::default());
        Arc::new(Self {
            mistake,
            ready: ReadySet::fresh(),
            doorbell: Doorbell { is_readable: Mutex::new(false), wake: Condvar::new() },
            streams: [stream(), stream()],
            n_sleepers: AtomicU32::new(0),
            state: Mutex::new(State {
                watches: [watch(), watch()],
                is_candidate: [true; STREAMS],
                candidates: (0..STREAMS).collect(),
            }),
            reported: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    /// As a peer: writes an entry, and announces it if the queue is armed.
    fn publish(&self, stream: usize) {
        let Stream { arrivals, line } = &self.streams[stream];
        arrivals.fetch_add(1, Ordering::Release);
        let armed = if self.has(Mistake::Fence) { line.take() } else { line.ring() };
        if armed & ANNOUNCE != 0 {
            self.ready.insert(u32::try_from(stream).expect("small"));
            if self.ready.line.ring() & BELL != 0 {
                self.doorbell.ring();
            }
        }
    }

    /// As `epoll_wait` with room for one event.
    fn wait(&self) {
        loop {
            if self.collect() {
                return;
            }
            if self.begin_sleep() {
                self.doorbell.sleep();
                self.n_sleepers.fetch_sub(1, Ordering::AcqRel);
                let _state = self.state.lock().expect("lock");
                self.doorbell.drain();
            }
        }
    }

    /// As `EventSet::collect`.
    fn collect(&self) -> bool {
        let mut state = self.state.lock().expect("lock");
        self.take_announced(&mut state);
        let mut left = state.candidates.len();
        let mut has_reported = false;
        while left != 0 && !has_reported {
            left -= 1;
            let Some(stream) = state.candidates.pop_front() else { break };
            has_reported = self.look(&mut state, stream);
        }
        if has_reported && !state.candidates.is_empty() && !self.has(Mistake::WakeSleeper) {
            // What is left is for another thread.
            if self.n_sleepers.load(Ordering::SeqCst) != 0 {
                self.doorbell.ring();
            }
        }
        has_reported
    }

    /// As `State::take_announced`.
    fn take_announced(&self, state: &mut State) {
        loop {
            self.ready.take(|stream| note_candidate(state, stream as usize));
            if self.n_sleepers.load(Ordering::SeqCst) == 0 || self.has(Mistake::SleepersCount) {
                self.ready.line.take();
                return;
            }
            if self.arm() {
                return;
            }
        }
    }

    /// As `State::look`: whether there is an event to report.
    fn look(&self, state: &mut State, stream: usize) -> bool {
        state.is_candidate[stream] = false;
        let mark = self.streams[stream].arrivals.load(Ordering::Acquire);
        let now = ReadinessSnapshot {
            is_readable: mark != 0,
            news: News { arrivals: mark, ..News::default() },
            ..ReadinessSnapshot::default()
        };
        let looked = state.watches[stream].inspect(&now);
        state.watches[stream] = looked.next;
        let is_announced = looked.place == Place::Out && self.announce_next(stream, mark);
        if !is_announced {
            note_candidate(state, stream);
        }
        let has_event = looked.report != Events::NONE;
        if has_event {
            self.reported[stream].fetch_add(1, Ordering::Relaxed);
        }
        has_event
    }

    /// As `announce_next` of a stream: false if something has happened after the mark.
    fn announce_next(&self, stream: usize, mark: u32) -> bool {
        let Stream { arrivals, line } = &self.streams[stream];
        line.arm(ANNOUNCE);
        self.has(Mistake::LookAfterAnnounce) || arrivals.load(Ordering::Acquire) == mark
    }

    /// As `EventSet::begin_sleep`: false if there is something to look at.
    fn begin_sleep(&self) -> bool {
        let state = self.state.lock().expect("lock");
        self.n_sleepers.fetch_add(1, Ordering::SeqCst);
        let is_armed = self.has(Mistake::Arm) || self.arm();
        if state.candidates.is_empty() && is_armed {
            return true;
        }
        self.n_sleepers.fetch_sub(1, Ordering::SeqCst);
        false
    }

    /// As `SoftReadySet::arm`: false if there is something to take already.
    fn arm(&self) -> bool {
        self.ready.line.arm(BELL);
        self.has(Mistake::LookAfterArm) || !self.ready.has_any()
    }
}

fn note_candidate(state: &mut State, stream: usize) {
    if !std::mem::replace(&mut state.is_candidate[stream], true) {
        state.candidates.push_back(stream);
    }
}

/// An event on each of the two streams, by a peer each, and a wait for each event. With
/// `two_threads` the second wait is another thread's.
fn explore(mistake: Option<Mistake>, two_threads: bool, preemptions: usize) {
    super::explore_up_to(preemptions, move || {
        let model = Model::new(mistake);
        let mut threads: Vec<_> = (0..STREAMS)
            .map(|stream| {
                let model = Arc::clone(&model);
                thread::spawn(move || model.publish(stream))
            })
            .collect();
        if two_threads {
            let model = Arc::clone(&model);
            threads.push(thread::spawn(move || model.wait()));
        } else {
            model.wait();
        }
        model.wait();
        for thread in threads {
            thread.join().expect("a thread");
        }
        for reported in &model.reported {
            assert_eq!(reported.load(Ordering::Relaxed), 1, "an event is reported once");
        }
    });
}

#[test]
fn a_thread_gets_the_events_of_two_peers() {
    explore(None, false, 2);
}

#[test]
fn two_threads_get_the_events_of_two_peers() {
    explore(None, true, 2);
}

/// Loom ends the process where it finds a deadlock, so a child explores the model with a mistake.
#[test]
fn a_model_with_a_mistake_fails() {
    for mistake in Mistake::ALL {
        let mut child = Command::new(env::current_exe().expect("this program"));
        child.args(["--exact", "loom_models::epoll_wait::child", "--nocapture"]);
        let output = child.env(MISTAKE, format!("{mistake:?}")).output().expect("a child");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains("deadlock"), "{mistake:?}: {said}");
    }
}

/// What the child does.
#[test]
fn child() {
    let Ok(name) = env::var(MISTAKE) else { return };
    let mistake = Mistake::ALL.into_iter().find(|mistake| format!("{mistake:?}") == name);
    let mistake = mistake.expect("a mistake");
    explore(Some(mistake), mistake.needs_two_threads(), 2);
}

/// The environment variable that names a mistake.
const MISTAKE: &str = "EPOLL_WAIT_MISTAKE";
