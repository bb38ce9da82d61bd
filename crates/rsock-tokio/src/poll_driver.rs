//! The poll driver: one task per runtime that polls the sources of waiting streams before their
//! doorbells are armed.
//!
//! Ringing a doorbell and being woken by one costs both processes system calls. While a runtime is
//! busy, or has been until just now, its waiting streams are therefore *polled* here: the driver
//! checks all of them, wakes the tasks of those that have something, lets every other task run, and
//! checks again. When nothing has come for as long as usually helps, it arms their doorbells and
//! sleeps.
//!
//! A stream in shared memory need not be checked to be polled: its peer can *announce* it, in the
//! ready set of the driver (`announced`). So the driver checks a few streams themselves, which
//! costs their peers nothing, and has the others announced; a check then costs by the streams with
//! news, however many wait. All announcements ring the one doorbell of the set, once, and only
//! while the driver sleeps: what comes for other streams until it runs needs no ring. Sources that
//! cannot be announced (RDMA devices, datagrams, streams that a forked process has, too) are all
//! checked, and have a doorbell each.
//!
//! Where polling does not help, or other processes want the CPUs (`CpuContention`), a wait is
//! announced, or arms its doorbell, at once.
//!
//! INVARIANT: a polled stream is checked or armed, whatever happens to the driver (the drop of its
//! future wakes the tasks, too); the driver does not sleep before it has armed the doorbell of the
//! set on every page of the set; it never blocks, and never wakes a task while it holds its lock.

use crate::spin_budget::SpinBudget;
use crate::waiter::Waiter;
use announced::{AnnouncedStreams, RecentWaits};
use rsock_core::ReadyNumber;
use rsock_core::engine::cpu_contention::CPU_CONTENTION;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use task::DriverTask;
use tokio::runtime::{Handle, Id};

mod announced;
mod task;

/// The longest budget that is learnt, and that of a new driver and of its probes: about what it
/// takes to wake a sleeping peer and get its answer to a call of a few dozen microseconds.
const LONGEST_NS: u32 = 100_000;
/// The longest poll of a single stream inside its own task, where no other task can run.
const IN_TASK_NS: u32 = 6_000;
/// Checks inside a task between two readings of the clock.
const CHECKS_PER_CLOCK: u32 = 16;
/// Streams that are checked themselves although they could be announced: an announcement takes the
/// peer longer than a few checks take the driver.
const CHECKED: usize = 4;

static DRIVERS: Mutex<Vec<(Id, Arc<PollDriver>)>> = Mutex::new(Vec::new());

/// See the module. The counters are Relaxed: they only decide how to wait.
#[derive(Debug)]
pub(crate) struct PollDriver {
    inbox: Mutex<Inbox>,
    /// Made for the first stream that can be announced.
    announced: OnceLock<AnnouncedStreams>,
    /// Waits for announcements, which the driver polls for.
    recent: RecentWaits,
    /// Streams that are polled by checks, in the inbox or not.
    n_polled: AtomicUsize,
    /// How long to poll this time, in nanoseconds; zero if the driver sleeps, or is about to.
    limit_ns: AtomicU32,
    /// The most that the last wait allowed. Nanoseconds.
    longest_ns: AtomicU32,
    /// The runtime has shut down.
    is_over: AtomicBool,
    /// For polls by the driver.
    driver_budget: SpinBudget,
    /// For polls inside a task.
    task_budget: SpinBudget,
}

#[derive(Debug, Default)]
struct Inbox {
    new: Vec<Arc<Waiter>>,
    /// Wakes the driver's task if it sleeps.
    sleeper: Option<Waker>,
    /// The ready set may have a page on which the doorbell is not armed.
    has_new_place: bool,
}

impl PollDriver {
    fn new() -> Self {
        Self {
            inbox: Mutex::default(),
            announced: OnceLock::new(),
            recent: RecentWaits::default(),
            n_polled: AtomicUsize::new(0),
            limit_ns: AtomicU32::new(0),
            longest_ns: AtomicU32::new(0),
            is_over: AtomicBool::new(false),
            driver_budget: SpinBudget::new(LONGEST_NS, &CPU_CONTENTION),
            task_budget: SpinBudget::new(IN_TASK_NS, &CPU_CONTENTION),
        }
    }

    /// The driver of `runtime`, started if there is none.
    pub(crate) fn of(runtime: &Handle) -> Arc<Self> {
        let id = runtime.id();
        let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, driver)) = drivers.iter().find(|(other, _)| *other == id) {
            return Arc::clone(driver);
        }
        let driver = Arc::new(Self::new());
        drivers.push((id, Arc::clone(&driver)));
        drop(drivers);
        let mut task = DriverTask::new(Arc::clone(&driver), runtime.runtime_flavor());
        // A runtime that is shutting down drops the task at once.
        drop(runtime.spawn(poll_fn(move |cx| task.run(cx))));
        driver
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Polls inside the calling task, for its own stream alone. `n_others` is 1 unless the driver
    /// polls that stream already.
    pub(crate) fn spin_in_task(
        &self,
        n_others: usize,
        longest: Duration,
        has_changed: impl Fn() -> bool,
    ) -> bool {
        // With several streams to poll, the driver serves all of them.
        let n_polled = self.n_polled.load(Ordering::Relaxed) + self.recent.number();
        if n_polled + n_others > 1 {
            return has_changed();
        }
        let budget = self.task_budget.next(longest);
        if budget == 0 {
            return has_changed();
        }
        let began = Instant::now();
        loop {
            for _ in 0..CHECKS_PER_CLOCK {
                if has_changed() {
                    self.task_budget.record_success(began.elapsed());
                    return true;
                }
                std::hint::spin_loop();
            }
            if began.elapsed() >= Duration::from_nanos(budget.into()) {
                self.task_budget.record_failure();
                return false;
            }
        }
    }

    /// Offers a wait, at most `longest` of which the driver is to poll. True if the driver checks
    /// `waiter`, which is marked as polled already, from now on; false if the caller is to arm it.
    pub(crate) fn offer(&self, waiter: &Arc<Waiter>, longest: Duration) -> bool {
        if longest.is_zero() {
            return false;
        }
        let is_checked =
            || self.n_polled.load(Ordering::Relaxed) < CHECKED || !waiter.may_be_announced();
        if self.limit_ns.load(Ordering::Relaxed) != 0 && !is_checked() {
            // The driver polls, for announcements too.
            return false;
        }
        let mut inbox = self.inbox();
        if self.has_ended() {
            return false;
        }
        if inbox.sleeper.is_some() {
            self.longest_ns.store(nanos(longest), Ordering::Relaxed);
            self.limit_ns.store(self.driver_budget.next(longest), Ordering::Relaxed);
        }
        if self.limit_ns.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let is_checked = is_checked();
        if is_checked {
            inbox.new.push(Arc::clone(waiter));
            self.n_polled.fetch_add(1, Ordering::Relaxed);
        }
        wake(inbox);
        is_checked
    }

    /// Decides how long to poll after something has come.
    fn renew_limit(&self) {
        let longest = Duration::from_nanos(self.longest_ns.load(Ordering::Relaxed).into());
        let limit = if longest.is_zero() { 0 } else { self.driver_budget.next(longest) };
        self.limit_ns.store(limit, Ordering::Relaxed);
    }

    /// Gives `waiter` a place among the announced streams, until [`Self::leave_set`]; `None` if it
    /// can have none.
    pub(crate) fn join_set(&self, waiter: &Waiter) -> Option<ReadyNumber> {
        if self.announced.get().is_none() {
            // If another task was faster, its set is kept.
            let _ = self.announced.set(AnnouncedStreams::new(&waiter.runtime).ok()?);
        }
        let number = self.announced.get()?.join(waiter)?;
        let mut inbox = self.inbox();
        inbox.has_new_place = true;
        wake(inbox);
        Some(number)
    }

    pub(crate) fn leave_set(&self, waiter: &Waiter, number: ReadyNumber) {
        if let Some(announced) = self.announced.get() {
            announced.leave(waiter, number);
        }
    }

    /// Counts a wait for an announcement that the driver is to poll for; returns what
    /// [`Self::end_wait`] takes.
    pub(crate) fn begin_wait(&self) -> u32 {
        self.recent.begin()
    }

    pub(crate) fn end_wait(&self, began: u32) {
        self.recent.end(began);
    }

    /// Whether the runtime has shut down: then no announcement wakes any more.
    pub(crate) fn has_ended(&self) -> bool {
        // SYNC: a task that enters the wakers after `DriverTask::drop` has emptied them sees this,
        // by the lock of the wakers.
        self.is_over.load(Ordering::Acquire)
    }
}

/// Wakes the driver's task if it sleeps.
fn wake(mut inbox: MutexGuard<'_, Inbox>) {
    let sleeper = inbox.sleeper.take();
    drop(inbox);
    if let Some(sleeper) = sleeper {
        sleeper.wake();
    }
}

fn nanos(time: Duration) -> u32 {
    u32::try_from(time.as_nanos()).unwrap_or(u32::MAX)
}
