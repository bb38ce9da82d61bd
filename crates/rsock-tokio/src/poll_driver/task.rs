//! The poll driver's task: checks the polled streams, takes the announced ones, wakes the tasks of
//! those that have something, and arms all doorbells when nothing comes.

use super::{AnnouncedStreams, DRIVERS, PollDriver};
use crate::waiter::Waiter;
use rsock_core::engine::cpu_contention::{self, CPU_CONTENTION, ThreadTime};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::runtime::RuntimeFlavor;

/// Checks of all streams between two turns of the other tasks, divided by their number.
const CHECKS: u32 = 24;
/// A stream for which nothing has come for so long is left to its doorbell.
const QUIET: Duration = Duration::from_millis(1);
/// `sched_yield` calls before sleeping, in case the peer needs this CPU.
const YIELDS: u32 = 4;
/// After polling for so long, each turn offers the CPU to other processes...
const OFFER_AFTER: Duration = Duration::from_micros(5);
/// ...and if getting it back takes this long, another process wanted it.
const TAKEN: Duration = Duration::from_micros(20);
/// A stream that the driver checks.
#[derive(Debug)]
struct Polled {
    waiter: Arc<Waiter>,
    since: Instant,
}

/// See the module.
#[derive(Debug)]
pub(super) struct DriverTask {
    driver: Arc<PollDriver>,
    polled: Vec<Polled>,
    /// Whether the doorbell of the announced streams is armed.
    is_armed: bool,
    last_sweep: Instant,
    last_turn: Instant,
    /// When something last came, or polling began.
    idle_since: Option<Instant>,
    /// The thread's CPU time at the last sweep, unless it has slept since.
    thread_time: Option<ThreadTime>,
    flavor: RuntimeFlavor,
}

impl DriverTask {
    pub(super) fn new(driver: Arc<PollDriver>, flavor: RuntimeFlavor) -> Self {
        let now = Instant::now();
        Self {
            driver,
            polled: Vec::new(),
            is_armed: false,
            last_sweep: now,
            last_turn: now,
            idle_since: None,
            thread_time: None,
            flavor,
        }
    }

    /// One turn of the task; never ready.
    pub(super) fn run(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let now = Instant::now();
        self.disarm();
        self.admit(now);
        let idle_since = *self.idle_since.get_or_insert(now);
        let gap = now.duration_since(std::mem::replace(&mut self.last_turn, now));
        if now.duration_since(self.last_sweep) >= QUIET {
            self.sweep(now, gap);
        }
        let limit = Duration::from_nanos(self.driver.limit_ns.load(Ordering::Relaxed).into());
        if self.check_for_a_moment(limit) {
            if !limit.is_zero() {
                self.driver.driver_budget.record_success(idle_since.elapsed());
            }
            self.idle_since = None;
            self.driver.renew_limit();
            return self.after_woken_tasks(cx);
        }
        if limit.is_zero() || self.polled.is_empty() && self.driver.recent.number() == 0 {
            return self.arm_and_sleep(cx);
        }
        let idle = idle_since.elapsed();
        let is_over = idle >= limit;
        if !is_over && idle < OFFER_AFTER {
            return self.after_everything(cx);
        }
        let offered = Instant::now();
        for _ in 0..if is_over { YIELDS } else { 1 } {
            rustix::thread::sched_yield();
            if is_over && self.check_once() {
                // The peer ran as soon as it got this CPU: polling had kept it from running.
                self.driver.driver_budget.record_interference();
                self.idle_since = None;
                return self.after_everything(cx);
            }
        }
        let away = offered.elapsed();
        if away >= cpu_contention::TIME_SLICE {
            self.report_contention();
        } else if away >= TAKEN {
            self.driver.driver_budget.record_interference();
        }
        if away >= TAKEN {
            if self.check_once() {
                self.idle_since = None;
                return self.after_everything(cx);
            }
        } else if is_over {
            self.driver.driver_budget.record_failure();
        } else {
            return self.after_everything(cx);
        }
        self.arm_and_sleep(cx)
    }

    /// After a sleep: announcements ring no doorbell from here on.
    fn disarm(&mut self) {
        if std::mem::replace(&mut self.is_armed, false)
            && let Some(announced) = self.driver.announced.get()
        {
            announced.disarm();
        }
    }

    /// Takes the new streams from the inbox.
    fn admit(&mut self, now: Instant) {
        let mut inbox = self.driver.inbox();
        // A place that is new now has its page before the doorbell is armed.
        inbox.has_new_place = false;
        self.polled.extend(inbox.new.drain(..).map(|waiter| Polled { waiter, since: now }));
    }

    /// Once in a while: arms quiet streams, which are checked no more, and finds out whether other
    /// processes want the CPU. The previous turn was `gap` ago.
    fn sweep(&mut self, now: Instant, gap: Duration) {
        self.driver.recent.advance();
        if now.duration_since(std::mem::replace(&mut self.last_sweep, now)) >= 2 * QUIET {
            self.driver.recent.advance();
        }
        let time = ThreadTime::now(now);
        let before = self.thread_time.replace(time);
        // A shorter loss is the peer sharing this CPU for a moment; a gap without one is tasks that
        // had much to do.
        if gap >= cpu_contention::TIME_SLICE
            && before.is_some_and(|before| time.preempted_since(&before) >= gap / 4 * 3)
        {
            self.report_contention();
        }
        for polled in self.polled.extract_if(.., |polled| now.duration_since(polled.since) >= QUIET)
        {
            self.driver.n_polled.fetch_sub(1, Ordering::Relaxed);
            polled.waiter.arm_instead_of_polling();
        }
    }

    fn report_contention(&mut self) {
        CPU_CONTENTION.report();
        self.thread_time = None;
        self.driver.limit_ns.store(0, Ordering::Relaxed);
    }

    /// Checks the streams several times, unless `limit` is zero, until something has come. Whether
    /// something has.
    fn check_for_a_moment(&mut self, limit: Duration) -> bool {
        let n = u32::try_from(self.polled.len().max(1)).unwrap_or(CHECKS);
        let times = if limit.is_zero() { 1 } else { (CHECKS / n).max(1) };
        for _ in 0..times {
            if self.check_once() {
                return true;
            }
            std::hint::spin_loop();
        }
        false
    }

    /// Checks each stream once, and takes what is announced. Whether tasks were woken.
    fn check_once(&mut self) -> bool {
        let before = self.polled.len();
        for polled in self.polled.extract_if(.., |polled| polled.waiter.is_due()) {
            self.driver.n_polled.fetch_sub(1, Ordering::Relaxed);
            polled.waiter.release();
        }
        let mut any = self.polled.len() != before;
        if let Some(announced) = self.driver.announced.get()
            && announced.has_any()
        {
            for waiter in announced.take() {
                any |= waiter.on_announcement();
            }
        }
        any
    }

    /// The next turn comes after the tasks that were just woken.
    fn after_woken_tasks(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.flavor == RuntimeFlavor::CurrentThread {
            // To the end of the queue; the runtime polls descriptors every few dozen turns.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        // In a runtime of several threads that would wake another thread.
        self.after_everything(cx)
    }

    /// The next turn comes after everything else: every other task, the runtime's descriptors, and
    /// the future that the runtime blocks on, which runs only when the queue of tasks is empty.
    fn after_everything(&self, cx: &mut Context<'_>) -> Poll<()> {
        let _ = pin!(tokio::task::yield_now()).poll(cx);
        Poll::Pending
    }

    /// Nothing has come: arms all that is polled, and sleeps until something is announced or a
    /// stream is offered.
    fn arm_and_sleep(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for Polled { waiter, .. } in self.polled.drain(..) {
            self.driver.n_polled.fetch_sub(1, Ordering::Relaxed);
            waiter.arm_instead_of_polling();
        }
        (self.idle_since, self.thread_time) = (None, None);
        if let Some(announced) = self.driver.announced.get() {
            self.is_armed = true;
            if !announced.arm(cx) {
                return self.after_woken_tasks(cx);
            }
        }
        let mut inbox = self.driver.inbox();
        if inbox.new.is_empty() && !inbox.has_new_place {
            self.driver.limit_ns.store(0, Ordering::Relaxed);
            inbox.sleeper = Some(cx.waker().clone());
            return Poll::Pending;
        }
        drop(inbox);
        self.after_everything(cx)
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        let mut inbox = self.driver.inbox();
        // SYNC: before the wakers are emptied below. Pairs with the Acquire in `has_ended`.
        self.driver.is_over.store(true, Ordering::Release);
        inbox.sleeper = None;
        let new = std::mem::take(&mut inbox.new);
        drop(inbox);
        let mut drivers = DRIVERS.lock().unwrap_or_else(PoisonError::into_inner);
        drivers.retain(|(_, driver)| !Arc::ptr_eq(driver, &self.driver));
        drop(drivers);
        // The runtime ends: tasks that still wait learn that from their descriptors.
        for waiter in self.polled.drain(..).map(|polled| polled.waiter).chain(new) {
            waiter.release();
        }
        for waiter in self.driver.announced.get().map(AnnouncedStreams::all).unwrap_or_default() {
            waiter.wakers.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn the_future_that_the_runtime_blocks_on_runs_between_two_turns_of_the_driver() {
        const TIMES: u32 = 100;
        let turns = Arc::new(AtomicU32::new(0));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            let task = DriverTask::new(Arc::new(PollDriver::new()), RuntimeFlavor::CurrentThread);
            let count = Arc::clone(&turns);
            let driving = tokio::spawn(poll_fn(move |cx| {
                count.fetch_add(1, Ordering::Relaxed);
                task.after_everything(cx)
            }));
            for _ in 0..TIMES {
                let (send, sent) = tokio::sync::oneshot::channel();
                tokio::spawn(async { send.send(()) });
                sent.await.expect("the task sends");
            }
            driving.abort();
        });
        // That future has no place in the queue of tasks, which must therefore run empty between
        // two turns.
        assert!(turns.load(Ordering::Relaxed) <= 3 * TIMES, "{turns:?} turns");
    }
}
