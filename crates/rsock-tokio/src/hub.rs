//! The hub: one task per runtime that looks after the rings of waiting streams before their
//! doorbells are armed.
//!
//! Ringing a doorbell and being woken by one costs both processes system calls. While a runtime is
//! busy, or has been until just now, its waiting streams are therefore *listed* here; the hub looks
//! at all of them, wakes the tasks of those that have something, lets every other task run, and
//! looks again. When nothing has come for as long as usually helps, it arms all doorbells and
//! sleeps.
//!
//! Invariants: a listed stream is looked at or settled, whatever happens to the hub (its future's
//! drop settles too); the hub never waits, and never holds its lock while it wakes.

use crate::link::Link;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use tokio::runtime::{Handle, Id, RuntimeFlavor};

/// Shortest budget worth trying.
const LEAST_NS: u32 = 2_000;
/// Longest budget that is learnt, that of a new hub, and of its probes: about what waking a peer
/// that sleeps and its answer to a call of a few dozen microseconds take.
const LONGEST_NS: u32 = 100_000;
/// Of so many waits some probe even when looking never helped; more rarely, up to the second
/// number, where it was in the way.
const PROBE_EVERY: (u32, u32) = (32, 1024);
/// How many of them, one after the other: the first wakes a peer that sleeps, and the second finds
/// it awake.
const PROBES: u32 = 2;
/// Longest look at a single stream inside its own task, where nothing else can run.
const ALONE_NS: u32 = 6_000;
/// Looks at all streams between two turns of the other tasks.
const LOOKS: u32 = 24;
/// Looks inside a task between two looks at the clock.
const TURNS: u32 = 16;
/// A stream on which nothing has come for so long is not worth a look each time.
const QUIET: Duration = Duration::from_millis(1);
/// `sched_yield` calls before sleeping, in case the other end needs this CPU.
const YIELDS: u32 = 4;
/// After so long each turn offers the CPU to others...
const OFFER_AFTER: Duration = Duration::from_micros(5);
/// ...and if getting it back takes so long, somebody wanted it: looking is in the way...
const TAKEN: Duration = Duration::from_micros(20);
/// ...or it was a whole turn of somebody who has work without end: the machine is busy.
const CROWDED: Duration = Duration::from_micros(500);
/// How long nobody looks then: the first time, and if it is no better after that, time after time.
const PAUSE: (Duration, Duration) = (Duration::from_millis(4), Duration::from_secs(1));
/// Of so many waiting streams, one usually has something after such a turn: then it was not lost.
const MANY: usize = 8;
/// A machine that was not found busy for so many pauses has not been busy.
const PAUSES: u32 = 8;

static HUBS: Mutex<Vec<(Id, Arc<Hub>)>> = Mutex::new(Vec::new());

/// See the module.
#[derive(Debug)]
pub(crate) struct Hub {
    inbox: Mutex<Inbox>,
    /// Streams listed, in the inbox or not.
    listed: AtomicUsize,
    /// How long to look this time. Nanoseconds.
    limit_ns: AtomicU32,
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

/// How long to look, by what it has led to. Races only cost precision.
#[derive(Debug)]
struct Budget {
    /// Nanoseconds.
    ns: AtomicU32,
    waits: AtomicU32,
    /// Of how many waits some probe.
    every: AtomicU32,
    longest_ns: u32,
    /// Where there is more to do than there are CPUs: nobody looks until then.
    pause: Mutex<Option<Pause>>,
    is_paused: AtomicBool,
}

#[derive(Clone, Copy, Debug)]
struct Pause {
    until: Instant,
    length: Duration,
}

impl Budget {
    fn new(longest_ns: u32) -> Self {
        let (ns, waits) = (AtomicU32::new(longest_ns), AtomicU32::new(0));
        Self {
            ns,
            waits,
            every: AtomicU32::new(PROBE_EVERY.0),
            longest_ns,
            pause: Mutex::default(),
            is_paused: AtomicBool::new(false),
        }
    }

    /// The budget of the next wait, in nanoseconds, at most `longest`; zero means not to try.
    fn next(&self, longest: Duration) -> u32 {
        if self.is_paused.load(Ordering::Relaxed) {
            let pause = *self.pause();
            if pause.is_some_and(|pause| Instant::now() < pause.until) {
                return 0;
            }
            self.is_paused.store(false, Ordering::Relaxed);
        }
        let ns = self.ns.load(Ordering::Relaxed);
        let most = u32::try_from(longest.as_nanos()).unwrap_or(u32::MAX);
        if ns >= LEAST_NS {
            return ns.min(most);
        }
        let waits = self.waits.load(Ordering::Relaxed).wrapping_add(1);
        self.waits.store(waits, Ordering::Relaxed);
        let is_probe = waits % self.every.load(Ordering::Relaxed) < PROBES;
        if is_probe { self.longest_ns.min(most) } else { 0 }
    }

    fn hit(&self, took: Duration) {
        let took = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
        if took > self.longest_ns {
            // Longer than anybody looks: the CPU was taken from us meanwhile.
            return self.was_in_the_way();
        }
        let old = self.ns.load(Ordering::Relaxed);
        // Room for three times the usual wait, approached slowly from above.
        let want = took.saturating_mul(3).clamp(2 * LEAST_NS, self.longest_ns);
        let new = if want > old { want } else { old - (old - want) / 16 };
        self.ns.store(new, Ordering::Relaxed);
        self.every.store(PROBE_EVERY.0, Ordering::Relaxed);
    }

    fn miss(&self) {
        let old = self.ns.load(Ordering::Relaxed);
        self.ns.store(old / 4 * 3, Ordering::Relaxed);
    }

    /// Looking kept the other end from running.
    fn was_in_the_way(&self) {
        self.miss();
        let every = self.every.load(Ordering::Relaxed);
        self.every.store((every * 2).min(PROBE_EVERY.1), Ordering::Relaxed);
    }

    /// Others want all CPUs: whoever looks loses his place to them and gets it back late, and whoever
    /// sleeps is woken at once.
    fn is_in_a_crowd(&self, now: Instant) {
        let mut pause = self.pause();
        let length = match *pause {
            Some(last) if now < last.until + last.length * PAUSES => last.length * 2,
            _ => PAUSE.0,
        };
        let length = length.min(PAUSE.1);
        *pause = Some(Pause { until: now + length, length });
        self.is_paused.store(true, Ordering::Relaxed);
    }

    fn pause(&self) -> MutexGuard<'_, Option<Pause>> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    fn new() -> Self {
        Self {
            inbox: Mutex::new(Inbox { new: Vec::new(), sleeper: None, is_over: false }),
            listed: AtomicUsize::new(0),
            limit_ns: AtomicU32::new(0),
            shared: Budget::new(LONGEST_NS),
            alone: Budget::new(ALONE_NS),
        }
    }

    /// The hub of `runtime`, started if there is none.
    pub(crate) fn of(runtime: &Handle) -> Arc<Self> {
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

    /// Looks actively inside the calling task. `own` is how many of the listed streams are the
    /// caller's.
    pub(crate) fn spin_alone(
        &self,
        room: usize,
        longest: Duration,
        has_changed: impl Fn() -> bool,
    ) -> bool {
        // With others to look after, the hub serves all of them.
        if self.listed.load(Ordering::Relaxed) + room > 1 {
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
            let limit = self.shared.next(longest);
            if limit == 0 {
                return false;
            }
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

/// A stream that the hub looks at.
#[derive(Debug)]
struct Listed {
    link: Arc<Link>,
    since: Instant,
}

/// The hub's task.
#[derive(Debug)]
struct Watch {
    hub: Arc<Hub>,
    links: Vec<Listed>,
    swept: Instant,
    /// When something last happened.
    since: Option<Instant>,
    /// The runtime has one thread.
    is_alone: bool,
}

impl Watch {
    fn new(hub: Arc<Hub>, is_alone: bool) -> Self {
        Self { hub, links: Vec::new(), swept: Instant::now(), since: None, is_alone }
    }

    /// One look at everything; never ready.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        self.admit(now);
        let since = *self.since.get_or_insert(now);
        if now.duration_since(self.swept) >= QUIET {
            self.swept = now;
            self.settle(|listed| now.duration_since(listed.since) >= QUIET);
        }
        let is_many = self.links.len() >= MANY;
        if self.look() {
            let took = since.elapsed();
            if took >= CROWDED && !is_many {
                self.hub.shared.is_in_a_crowd(Instant::now());
            } else {
                self.hub.shared.hit(took);
            }
            self.since = None;
            return self.soon(cx);
        }
        if self.links.is_empty() {
            return self.sleep(cx);
        }
        let limit = self.hub.limit_ns.load(Ordering::Relaxed);
        let looked = since.elapsed();
        let is_over = looked >= Duration::from_nanos(limit.into());
        if !is_over && looked < OFFER_AFTER {
            return self.later(cx);
        }
        let offered = Instant::now();
        for _ in 0..if is_over { YIELDS } else { 1 } {
            rustix::thread::sched_yield();
            if is_over && self.pass() {
                // The other end ran when we made room for it: looking was in its way.
                self.hub.shared.was_in_the_way();
                self.since = None;
                return self.later(cx);
            }
        }
        let away = offered.elapsed();
        if away >= CROWDED && !is_many {
            self.hub.shared.is_in_a_crowd(Instant::now());
        } else if away >= TAKEN {
            self.hub.shared.was_in_the_way();
        }
        if away >= TAKEN {
            if self.pass() {
                self.since = None;
                return self.later(cx);
            }
        } else if is_over {
            self.hub.shared.miss();
        } else {
            return self.later(cx);
        }
        self.settle(|_| true);
        self.sleep(cx)
    }

    /// Takes in what is new.
    fn admit(&mut self, now: Instant) {
        let mut inbox = self.hub.inbox();
        self.links.extend(inbox.new.drain(..).map(|link| Listed { link, since: now }));
    }

    /// Looks until something has come, for a moment. Whether something has.
    fn look(&mut self) -> bool {
        let looks = (LOOKS / u32::try_from(self.links.len().max(1)).unwrap_or(LOOKS)).max(1);
        for _ in 0..looks {
            if self.pass() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Looks at each stream once.
    fn pass(&mut self) -> bool {
        let before = self.links.len();
        for listed in self.links.extract_if(.., |listed| listed.link.is_due()) {
            self.hub.listed.fetch_sub(1, Ordering::Relaxed);
            listed.link.release();
        }
        self.links.len() != before
    }

    /// Looks again after the tasks that were just woken.
    fn soon(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_alone {
            // To the end of the queue; the runtime looks at descriptors every few dozen turns.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // Among several threads that would call another one for help.
        self.later(cx)
    }

    /// Lets everything else run: every other task, what is behind descriptors, and the future that
    /// the runtime blocks on, which has no place in the queue and its turn only when that is empty.
    fn later(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Nothing to look at: until something is offered.
    fn sleep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.since = None;
        let mut inbox = self.hub.inbox();
        if inbox.new.is_empty() {
            inbox.sleeper = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(inbox);
        self.later(cx)
    }

    /// Hands the streams that `which` picks over to their doorbells.
    fn settle(&mut self, which: impl Fn(&Listed) -> bool) {
        for listed in self.links.extract_if(.., |listed| which(listed)) {
            self.hub.listed.fetch_sub(1, Ordering::Relaxed);
            listed.link.settle();
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let mut inbox = self.hub.inbox();
        inbox.is_over = true;
        inbox.sleeper = None;
        let new = std::mem::take(&mut inbox.new);
        drop(inbox);
        let mut hubs = HUBS.lock().unwrap_or_else(PoisonError::into_inner);
        hubs.retain(|(_, hub)| !Arc::ptr_eq(hub, &self.hub));
        drop(hubs);
        // The runtime ends: who still waits learns that from its descriptors.
        for link in self.links.drain(..).map(|listed| listed.link).chain(new) {
            link.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_micros(100);

    fn probes(budget: &Budget, waits: usize) -> usize {
        (0..waits).filter(|_| budget.next(LONG) != 0).count()
    }

    #[test]
    fn a_budget_follows_what_looking_has_led_to() {
        let budget = Budget::new(LONGEST_NS);
        assert_eq!(budget.next(LONG), LONGEST_NS);
        assert_eq!(budget.next(Duration::from_micros(10)), 10_000, "at most what was allowed");
        assert_eq!(budget.next(Duration::ZERO), 0);
        for _ in 0..20 {
            budget.miss();
        }
        // It never helps: only probes are left.
        assert_eq!(probes(&budget, 320), 20);
        budget.hit(Duration::from_micros(5));
        assert_eq!(budget.next(LONG), 15_000, "room for three times the usual wait");
        budget.hit(Duration::from_micros(90));
        assert_eq!(budget.next(LONG), LONGEST_NS);
        budget.hit(Duration::from_secs(1));
        assert!(budget.next(LONG) < LONGEST_NS, "it was not looking that took so long");
        budget.hit(Duration::from_micros(5));
        assert!((15_000..LONGEST_NS).contains(&budget.next(LONG)), "approached slowly from above");
    }

    #[test]
    fn where_looking_is_in_the_way_probes_become_rare() {
        let budget = Budget::new(LONGEST_NS);
        for _ in 0..20 {
            budget.was_in_the_way();
        }
        assert_eq!(probes(&budget, 4096), 8);
        budget.hit(Duration::ZERO);
        for _ in 0..20 {
            budget.miss();
        }
        assert_eq!(probes(&budget, 64), 4, "they are frequent again once one has helped");
    }

    #[test]
    fn nobody_looks_for_ever_longer_where_others_want_the_cpus() {
        let budget = Budget::new(LONGEST_NS);
        let mut now = Instant::now() + PAUSE.1;
        let mut lengths = Vec::new();
        for _ in 0..12 {
            budget.is_in_a_crowd(now);
            let pause = budget.pause().expect("a pause");
            assert_eq!(pause.until - now, pause.length);
            lengths.push(pause.length);
            now = pause.until;
        }
        assert_eq!(lengths[..3], [PAUSE.0, PAUSE.0 * 2, PAUSE.0 * 4]);
        assert_eq!(lengths[11], PAUSE.1);
        assert_eq!(probes(&budget, 4096), 0, "the pause lasts");
        budget.is_in_a_crowd(now + PAUSE.1 * PAUSES);
        assert_eq!(budget.pause().expect("a pause").length, PAUSE.0, "that was long ago");
        // As if it were over.
        *budget.pause() = None;
        assert_ne!(budget.next(LONG), 0);
    }

    #[test]
    fn looking_leaves_the_future_that_the_runtime_blocks_on_its_turn() {
        const TIMES: u32 = 100;
        let turns = Arc::new(AtomicU32::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let (watch, count) = (Watch::new(Arc::new(Hub::new()), true), Arc::clone(&turns));
            let looking = tokio::spawn(poll_fn(move |cx| {
                count.fetch_add(1, Ordering::Relaxed);
                watch.later(cx)
            }));
            for _ in 0..TIMES {
                let (send, sent) = tokio::sync::oneshot::channel();
                tokio::spawn(async { send.send(()) });
                sent.await.expect("the task sends");
            }
            looking.abort();
        });
        // It has no place in the queue of tasks, which must therefore run empty between two looks.
        assert!(turns.load(Ordering::Relaxed) <= 3 * TIMES, "{turns:?} turns");
    }
}
