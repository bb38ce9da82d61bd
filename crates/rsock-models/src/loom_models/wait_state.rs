//! Waits of Tokio tasks for a source of events: whether the poll driver polls it or the peer rings
//! the doorbell, a task that waits is woken. For peers that announce it see `announced_wait`.

#[path = "../../../rsock-tokio/src/waiter/wait_state.rs"]
#[expect(dead_code, reason = "the models use some of it")]
pub(super) mod wait_state;

use super::explore;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::task::Poll;
use wait_state::{Notifier, WaitState};

/// One task, its source, the peer, and the poll driver.
struct Waiter {
    state: WaitState,
    /// Messages in the source, which are its marks, too.
    sent: AtomicU64,
    /// Whether the peer must ring the doorbell.
    is_to_ring: AtomicU32,
    /// Whether the task is in the wakers.
    is_waiting: Mutex<bool>,
    /// Whether the task may run, and whether the driver has its wait.
    runtime: Mutex<Runtime>,
    changed: Condvar,
}

#[derive(Default)]
struct Runtime {
    may_run: bool,
    is_offered: bool,
    is_over: bool,
}

impl Waiter {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: WaitState::new(),
            sent: AtomicU64::new(0),
            is_to_ring: AtomicU32::new(0),
            is_waiting: Mutex::new(false),
            runtime: Mutex::default(),
            changed: Condvar::new(),
        })
    }

    fn change(&self, f: impl FnOnce(&mut Runtime)) {
        f(&mut self.runtime.lock().expect("lock"));
        self.changed.notify_all();
    }

    /// The task: takes `n` messages.
    fn receive(&self, n: u64) {
        loop {
            self.state.unpark(self, || {
                *self.is_waiting.lock().expect("lock") = false;
                true
            });
            let mark = self.sent.load(Ordering::Acquire);
            if mark == n {
                break;
            }
            self.state.park(|| *self.is_waiting.lock().expect("lock") = true);
            let offer = || {
                self.change(|runtime| runtime.is_offered = true);
                true
            };
            if self.state.wait(self, mark, offer).is_ready() {
                continue;
            }
            let mut runtime = self.runtime.lock().expect("lock");
            while !std::mem::take(&mut runtime.may_run) {
                runtime = self.changed.wait(runtime).expect("lock");
            }
        }
        self.change(|runtime| runtime.is_over = true);
    }

    /// The peer: publishes a message, and rings the doorbell if it is armed; the runtime wakes the
    /// task.
    fn send(&self) {
        self.sent.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.is_to_ring.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    /// The driver: polls what it was offered once, and then arms the doorbell.
    fn drive(&self) {
        loop {
            let mut runtime = self.runtime.lock().expect("lock");
            while !runtime.is_offered && !runtime.is_over {
                runtime = self.changed.wait(runtime).expect("lock");
            }
            if !std::mem::take(&mut runtime.is_offered) {
                return;
            }
            drop(runtime);
            if self.state.is_due(self) {
                self.state.release(self);
                continue;
            }
            self.state.arm_instead_of_polling(self);
        }
    }
}

impl Notifier for Waiter {
    type Error = Infallible;

    fn has_changed(&self, mark: u64) -> bool {
        self.sent.load(Ordering::Acquire) != mark
    }

    fn is_open(&self) -> bool {
        true
    }

    fn arm(&self, mark: u64, is_armed: &mut bool) -> Poll<Result<(), Infallible>> {
        self.is_to_ring.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.has_changed(mark) {
            self.is_to_ring.store(0, Ordering::Relaxed);
            return Poll::Ready(Ok(()));
        }
        *is_armed = true;
        Poll::Pending
    }

    fn disarm(&self) {
        self.is_to_ring.store(0, Ordering::Relaxed);
    }

    fn wake_all(&self) {
        if std::mem::take(&mut *self.is_waiting.lock().expect("lock")) {
            self.change(|runtime| runtime.may_run = true);
        }
    }
}

fn model(messages: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let waiter = Waiter::new();
        let driver = {
            let waiter = Arc::clone(&waiter);
            thread::spawn(move || waiter.drive())
        };
        let peer = {
            let waiter = Arc::clone(&waiter);
            thread::spawn(move || (0..messages).for_each(|_| waiter.send()))
        };
        waiter.receive(messages);
        peer.join().expect("the peer");
        driver.join().expect("the driver");
    });
}

#[test]
fn a_task_is_woken_by_the_driver_or_by_its_doorbell() {
    model(1);
}

#[test]
fn a_task_that_waits_again_is_woken_again() {
    model(2);
}

/// A task that waits since an older mark, and one that comes later.
#[test]
fn a_later_wait_does_not_hide_the_event_of_an_earlier_one() {
    explore(|| {
        let waiter = Waiter::new();
        // The earlier one: polled with the mark 0.
        waiter.state.park(|| *waiter.is_waiting.lock().expect("lock") = true);
        let earlier = waiter.state.wait(&*waiter, 0, || true);
        let driver = {
            let waiter = Arc::clone(&waiter);
            thread::spawn(move || {
                if waiter.state.is_due(&*waiter) {
                    waiter.state.release(&*waiter);
                } else {
                    waiter.state.arm_instead_of_polling(&*waiter);
                }
            })
        };
        waiter.send();
        // The later one has seen that message.
        let later = waiter.state.wait(&*waiter, 1, || true);
        driver.join().expect("the driver");
        let is_woken = waiter.runtime.lock().expect("lock").may_run;
        assert!(earlier.is_pending() && later.is_pending() && is_woken);
    });
}
