//! Waits of Tokio tasks for a stream that its peer announces to the poll driver: the peer sets the
//! stream's bit, and rings the driver's doorbell if the driver sleeps. A task that waits is woken.

use super::explore;
use super::wait_state::wait_state::{Notifier, WaitState};
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::task::Poll;

/// One task, its stream, the peer, and the poll driver with its set.
struct Waiter {
    state: WaitState,
    /// Messages in the stream, which are its marks, too.
    sent: AtomicU64,
    /// Whether the peer must announce the stream.
    is_to_announce: AtomicU32,
    /// The stream's bit in the set.
    announced: AtomicU32,
    /// Whether an announcement must ring the doorbell.
    is_to_ring: AtomicU32,
    /// Whether the task is in the wakers.
    is_waiting: Mutex<bool>,
    runtime: Mutex<Runtime>,
    changed: Condvar,
}

/// What may run.
#[derive(Default)]
struct Runtime {
    may_task_run: bool,
    may_driver_run: bool,
    is_offered: bool,
    is_over: bool,
}

impl Waiter {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            state: WaitState::new(),
            sent: AtomicU64::new(0),
            is_to_announce: AtomicU32::new(0),
            announced: AtomicU32::new(0),
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

    /// The task: takes `n` messages. It has its waits polled before they are announced if `offers`
    /// says so.
    fn receive(&self, n: u64, offers: bool) {
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
                if offers {
                    self.change(|runtime| runtime.is_offered = true);
                }
                offers
            };
            if self.state.wait(self, mark, offer).is_ready() {
                continue;
            }
            let mut runtime = self.runtime.lock().expect("lock");
            while !std::mem::take(&mut runtime.may_task_run) {
                runtime = self.changed.wait(runtime).expect("lock");
            }
        }
        self.change(|runtime| runtime.is_over = true);
    }

    /// The peer: publishes a message, and announces it if that is asked for.
    fn send(&self) {
        self.sent.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.is_to_announce.load(Ordering::Relaxed) != 0
            && self.is_to_announce.swap(0, Ordering::AcqRel) != 0
        {
            self.announced.fetch_or(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.is_to_ring.load(Ordering::Relaxed) != 0
                && self.is_to_ring.swap(0, Ordering::AcqRel) != 0
            {
                self.change(|runtime| runtime.may_driver_run = true);
            }
        }
    }

    /// A turn of the driver: takes the bit. Whether there was one.
    fn take(&self) -> bool {
        let is_announced = self.announced.swap(0, Ordering::Acquire) != 0;
        if is_announced {
            self.state.on_announcement(self);
        }
        is_announced
    }

    /// The driver: takes the announcement, or checks what it was offered once and has it announced;
    /// then it arms its doorbell, looks again, and sleeps.
    fn drive(&self) {
        loop {
            self.is_to_ring.swap(0, Ordering::AcqRel);
            let is_offered = std::mem::take(&mut self.runtime.lock().expect("lock").is_offered);
            if is_offered {
                if self.state.is_due(self) {
                    self.state.release(self);
                } else {
                    self.state.arm_instead_of_polling(self);
                }
            }
            if self.take() || is_offered {
                continue;
            }
            self.is_to_ring.store(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if self.announced.load(Ordering::Relaxed) != 0 {
                continue;
            }
            let mut runtime = self.runtime.lock().expect("lock");
            while !std::mem::take(&mut runtime.may_driver_run) && !runtime.is_offered {
                if runtime.is_over {
                    return;
                }
                runtime = self.changed.wait(runtime).expect("lock");
            }
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
        self.is_to_announce.store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.has_changed(mark) {
            return Poll::Ready(Ok(()));
        }
        *is_armed = true;
        Poll::Pending
    }

    /// The peer may announce the stream once more.
    fn disarm(&self) {}

    fn wake_all(&self) {
        if std::mem::take(&mut *self.is_waiting.lock().expect("lock")) {
            self.change(|runtime| runtime.may_task_run = true);
        }
    }
}

fn model(messages: u64, offers: bool) {
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
        waiter.receive(messages, offers);
        peer.join().expect("the peer");
        driver.join().expect("the driver");
    });
}

#[test]
fn a_task_is_woken_by_an_announcement() {
    model(1, false);
}

#[test]
fn a_task_that_waits_again_is_announced_again() {
    model(2, false);
}

#[test]
fn a_task_is_woken_whether_the_driver_checks_its_stream_or_has_it_announced() {
    model(1, true);
}

/// A task that waits since an older mark, and one that comes later.
#[test]
fn a_later_wait_does_not_hide_the_announcement_of_an_earlier_one() {
    explore(|| {
        let waiter = Waiter::new();
        waiter.state.park(|| *waiter.is_waiting.lock().expect("lock") = true);
        let earlier = waiter.state.wait(&*waiter, 0, || false);
        let peer = {
            let waiter = Arc::clone(&waiter);
            thread::spawn(move || waiter.send())
        };
        let driver = {
            let waiter = Arc::clone(&waiter);
            thread::spawn(move || {
                while !waiter.take() {
                    thread::yield_now();
                }
            })
        };
        // The later one, if it has seen that message, waits for another.
        let mark = waiter.sent.load(Ordering::Acquire);
        let later = waiter.state.wait(&*waiter, mark, || false);
        peer.join().expect("the peer");
        driver.join().expect("the driver");
        let is_woken = waiter.runtime.lock().expect("lock").may_task_run;
        assert!(earlier.is_pending() && (later.is_ready() || is_woken));
    });
}
