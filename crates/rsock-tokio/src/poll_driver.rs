//! The poll driver: one task per runtime that polls the sources of waiting streams before their
//! doorbells are armed.
//!
//! Ringing a doorbell and being woken by one costs both processes system calls. While a runtime is
//! busy, or has been until just now, its waiting streams are therefore *polled* here: the driver
//! checks all of them, wakes the tasks of those that have something, lets every other task run, and
//! checks again. When nothing has come for as long as usually helps, it arms their doorbells and
//! sleeps.
//!
//! Where polling does not help, or other processes want the CPUs (`CpuContention`), a wait arms
//! its doorbell at once. For each of many streams that costs a ring and a wake-up, and it costs
//! fewer if the streams sleep and wake together: the first that is rung brings back all that were
//! armed with it, and what comes for those meanwhile needs no ring. They are polled for a few
//! microseconds, and armed again.
//!
//! INVARIANT: a polled stream is checked or its doorbell armed, whatever happens to the driver (the
//! drop of its future wakes the tasks, too); the driver never blocks, and never wakes a task while
//! it holds its lock.

use crate::spin_budget::SpinBudget;
use crate::waiter::Waiter;
use rsock_core::engine::cpu_contention::CPU_CONTENTION;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};
use task::DriverTask;
use tokio::runtime::{Handle, Id};

mod task;

/// The longest budget that is learnt, and that of a new driver and of its probes: about what it
/// takes to wake a sleeping peer and get its answer to a call of a few dozen microseconds.
const LONGEST_NS: u32 = 100_000;
/// The longest poll of a single stream inside its own task, where no other task can run.
const IN_TASK_NS: u32 = 6_000;
/// Checks inside a task between two readings of the clock.
const CHECKS_PER_CLOCK: u32 = 16;
/// From this number on, the streams of one runtime sleep and wake together.
const MANY: usize = 8;
/// How long they are polled although the budget is zero: less than a ring and a wake-up take.
const BRIEF: Duration = Duration::from_micros(5);

static DRIVERS: Mutex<Vec<(Id, Arc<PollDriver>)>> = Mutex::new(Vec::new());

/// See the module. The counters are Relaxed: they only decide how to wait.
#[derive(Debug)]
pub(crate) struct PollDriver {
    inbox: Mutex<Inbox>,
    /// Streams that are polled, in the inbox or not.
    n_polled: AtomicUsize,
    /// Streams that sleep together: one that is rung brings back all.
    n_armed: AtomicUsize,
    /// Streams that have ever waited and still exist.
    n_members: AtomicUsize,
    /// How long to poll this time. Nanoseconds.
    limit_ns: AtomicU32,
    /// This poll is [`BRIEF`] and outside the budget, which learns nothing from it.
    is_brief: AtomicBool,
    /// For polls by the driver.
    driver_budget: SpinBudget,
    /// For polls inside a task.
    task_budget: SpinBudget,
}

#[derive(Debug)]
struct Inbox {
    new: Vec<Arc<Waiter>>,
    /// Wakes the driver's task if it sleeps.
    sleeper: Option<Waker>,
    /// The runtime has shut down.
    is_over: bool,
}

impl PollDriver {
    fn new() -> Self {
        Self {
            inbox: Mutex::new(Inbox { new: Vec::new(), sleeper: None, is_over: false }),
            n_polled: AtomicUsize::new(0),
            n_armed: AtomicUsize::new(0),
            n_members: AtomicUsize::new(0),
            limit_ns: AtomicU32::new(0),
            is_brief: AtomicBool::new(false),
            driver_budget: SpinBudget::new(LONGEST_NS, &CPU_CONTENTION),
            task_budget: SpinBudget::new(IN_TASK_NS, &CPU_CONTENTION),
        }
    }

    /// The driver of `runtime`, started if there is none, for one more stream, which
    /// [leaves](Self::leave) when it is dropped.
    pub(crate) fn join(runtime: &Handle) -> Arc<Self> {
        let driver = Self::of(runtime);
        driver.n_members.fetch_add(1, Ordering::Relaxed);
        driver
    }

    pub(crate) fn leave(&self) {
        self.n_members.fetch_sub(1, Ordering::Relaxed);
    }

    fn of(runtime: &Handle) -> Arc<Self> {
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

    /// Polls inside the calling task, for its own stream alone. `n_others` counts the caller's
    /// stream if the driver does not poll it already.
    pub(crate) fn spin_in_task(
        &self,
        n_others: usize,
        longest: Duration,
        has_changed: impl Fn() -> bool,
    ) -> bool {
        // With several streams to poll, the driver serves all of them.
        let n_armed = self.n_armed.load(Ordering::Relaxed);
        if self.n_polled.load(Ordering::Relaxed) + n_others > 1 || n_armed > 1 {
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

    /// Takes over `waiter`, which is marked as polled already. False if the caller should arm its
    /// doorbell instead.
    pub(crate) fn offer(&self, waiter: &Arc<Waiter>, longest: Duration) -> bool {
        if self.n_polled.load(Ordering::Relaxed) == 0 {
            let budget = self.driver_budget.next(longest);
            if budget == 0 && self.n_members.load(Ordering::Relaxed) < MANY {
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
        inbox.new.push(Arc::clone(waiter));
        self.n_polled.fetch_add(1, Ordering::Relaxed);
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
