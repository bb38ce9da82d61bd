//! The hub: one task per runtime that looks after the rings of waiting streams before their
//! doorbells are armed.
//!
//! Ringing a doorbell and being woken by one costs both processes system calls. While a runtime is
//! busy, or has been until just now, its waiting streams are therefore *listed* here; the hub looks
//! at all of them, wakes the tasks of those that have something, lets every other task run, and
//! looks again. When nothing has come for as long as usually helps, it *settles* them, that is, arms
//! their doorbells, and sleeps.
//!
//! Where looking does not help, or others want the CPUs (`crowd`), a wait arms its doorbell at once. But
//! for each of many streams that is a ring and a wake-up, and there are fewer than that if they sleep
//! and wake together: the first that is rung lists all that were settled with it again, and what comes on
//! those meanwhile needs no ring. They are looked at for a few microseconds, and settled again.
//!
//! Invariants: a listed stream is looked at or settled, whatever happens to the hub (its future's
//! drop settles too); the hub never waits, and never holds its lock while it wakes.

use crate::budget::Budget;
use crate::crowd::CROWD;
use crate::link::Link;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use watch::Watch;

mod watch;

/// Longest budget that is learnt, that of a new hub, and of its probes: about what waking a peer
/// that sleeps and its answer to a call of a few dozen microseconds take.
const LONGEST_NS: u32 = 100_000;
/// Longest look at a single stream inside its own task, where nothing else can run.
const ALONE_NS: u32 = 6_000;
/// Looks inside a task between two looks at the clock.
const TURNS: u32 = 16;
/// So many streams of one runtime sleep and wake together.
const MANY: usize = 8;
/// How long they are looked at where nobody looks: less than a ring and a wake-up take.
const BRIEF: Duration = Duration::from_micros(5);

static HUBS: Mutex<Vec<(Id, Arc<Hub>)>> = Mutex::new(Vec::new());

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    inbox: Mutex<Inbox>,
    /// Streams listed, in the inbox or not.
    listed: AtomicUsize,
    /// Streams that the hub has settled together, and would take back together.
    settled: AtomicUsize,
    /// Streams that have ever waited, and are not gone.
    members: AtomicUsize,
    /// How long to look this time. Nanoseconds.
    limit_ns: AtomicU32,
    /// So long only as many streams are looked at where nobody looks: nothing is learnt from it.
    is_brief: AtomicBool,
    /// For waits in the hub.
    shared: Budget,
    /// For waits inside a task.
    alone: Budget,
}

#[derive(Debug)]
struct Inbox {
    new: Vec<Arc<Link>>,
    /// Wakes the hub if it sleeps.
    sleeper: Option<Waker>,
    /// The runtime is shut down.
    is_over: bool,
}

impl Hub {
    fn new() -> Self {
        Self {
            inbox: Mutex::new(Inbox { new: Vec::new(), sleeper: None, is_over: false }),
            listed: AtomicUsize::new(0),
            settled: AtomicUsize::new(0),
            members: AtomicUsize::new(0),
            limit_ns: AtomicU32::new(0),
            is_brief: AtomicBool::new(false),
            shared: Budget::new(LONGEST_NS, &CROWD),
            alone: Budget::new(ALONE_NS, &CROWD),
        }
    }

    /// The hub of `runtime`, started if there is none, for one more stream, which
    /// [leaves](Self::leave) it again.
    pub(crate) fn join(runtime: &Handle) -> Arc<Self> {
        let hub = Self::of(runtime);
        hub.members.fetch_add(1, Ordering::Relaxed);
        hub
    }

    pub(crate) fn leave(&self) {
        self.members.fetch_sub(1, Ordering::Relaxed);
    }

    fn of(runtime: &Handle) -> Arc<Self> {
        let id = runtime.id();
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, hub)) = hubs.iter().find(|(other, _)| *other == id) {
            return Arc::clone(hub);
        }
        let hub = Arc::new(Self::new());
        hubs.push((id, Arc::clone(&hub)));
        drop(hubs);
        let is_alone = runtime.runtime_flavor() == RuntimeFlavor::CurrentThread;
        let mut watch = Watch::new(Arc::clone(&hub), is_alone);
        // A runtime that is shutting down drops it at once.
        drop(runtime.spawn(poll_fn(move |cx| watch.turn(cx))));
        hub
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks actively inside the calling task. `room` is 1 unless the caller's stream is listed.
    pub(crate) fn spin_alone(
        &self,
        room: usize,
        longest: Duration,
        has_changed: impl Fn() -> bool,
    ) -> bool {
        // With others to look after, the hub serves all of them.
        let settled = self.settled.load(Ordering::Relaxed);
        if self.listed.load(Ordering::Relaxed) + room > 1 || settled > 1 {
            return has_changed();
        }
        let budget = self.alone.next(longest);
        if budget == 0 {
            return has_changed();
        }
        let began = Instant::now();
        loop {
            for _ in 0..TURNS {
                if has_changed() {
                    self.alone.hit(began.elapsed());
                    return true;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() >= Duration::from_nanos(budget.into()) {
                self.alone.miss();
                return false;
            }
        }
    }

    /// Takes `link`, which is marked as listed already. False if it should arm its doorbell
    /// instead.
    pub(crate) fn offer(&self, link: &Arc<Link>, longest: Duration) -> bool {
        if self.listed.load(Ordering::Relaxed) == 0 {
            let budget = self.shared.next(longest);
            if budget == 0 && self.members.load(Ordering::Relaxed) < MANY {
                return false;
            }
            let limit = if budget == 0 { nanos(BRIEF.min(longest)) } else { budget };
            self.is_brief.store(budget == 0, Ordering::Relaxed);
            self.limit_ns.store(limit, Ordering::Relaxed);
        }
        let mut inbox = self.inbox();
        if inbox.is_over {
            return false;
        }
        inbox.new.push(Arc::clone(link));
        self.listed.fetch_add(1, Ordering::Relaxed);
        let sleeper = inbox.sleeper.take();
        drop(inbox);
        if let Some(sleeper) = sleeper {
            sleeper.wake();
        }
        true
    }
}

fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}
