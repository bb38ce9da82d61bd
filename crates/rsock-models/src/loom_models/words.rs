//! Waits of Tokio tasks for a ring: a task that waits is woken, by the poller's check or by the
//! peer's doorbell.

#[path = "../../../rsock-tokio/src/link/words.rs"]
#[expect(dead_code, reason = "the model uses some of it")]
mod words;

use super::explore;
use loom::sync::atomic::{AtomicU32, AtomicU64, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::convert::Infallible;
use std::sync::atomic::Ordering;
use std::task::Poll;
use words::{Source, Words};

/// One task, its ring, the peer, and the poller.
struct Link {
    words: Words,
    /// Messages on the ring, which are its marks too.
    sent: AtomicU64,
    /// The peer's armed word: whether it is to ring.
    is_to_ring: AtomicU32,
    /// Whether the task is in the wakers.
    is_waiting: Mutex<bool>,
    /// Whether the task may run, and what the poller was given.
    runtime: Mutex<Runtime>,
    changed: Condvar,
}

#[derive(Default)]
struct Runtime {
    may_run: bool,
    is_offered: bool,
    is_over: bool,
}

impl Link {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            words: Words::new(),
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
            self.words.unpark(self, || {
                *self.is_waiting.lock().expect("lock") = false;
                true
            });
            let mark = self.sent.load(Ordering::Acquire);
            if mark == n {
                break;
            }
            self.words.park(|| *self.is_waiting.lock().expect("lock") = true);
            let offer = || {
                self.change(|runtime| runtime.is_offered = true);
                true
            };
            if self.words.watch(self, mark, offer).is_ready() {
                continue;
            }
            let mut runtime = self.runtime.lock().expect("lock");
            while !std::mem::take(&mut runtime.may_run) {
                runtime = self.changed.wait(runtime).expect("lock");
            }
        }
        self.change(|runtime| runtime.is_over = true);
    }

    /// The peer: publishes a message, and rings if it is asked to, which wakes as the runtime does.
    fn send(&self) {
        self.sent.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.is_to_ring.load(Ordering::Relaxed) != 0 {
            self.wake_all();
        }
    }

    /// The poller: checks a wait that it was offered once, and then leaves it to the doorbell; with
    /// `again` it takes the wait back once and checks a second time.
    fn poll_offered(&self, mut again: bool) {
        loop {
            let mut runtime = self.runtime.lock().expect("lock");
            while !runtime.is_offered && !runtime.is_over {
                runtime = self.changed.wait(runtime).expect("lock");
            }
            if !std::mem::take(&mut runtime.is_offered) {
                return;
            }
            drop(runtime);
            if self.words.is_due(self) {
                self.words.release(self);
                continue;
            }
            self.words.settle(self);
            if std::mem::take(&mut again) && self.words.relist(self) {
                if self.words.is_due(self) {
                    self.words.release(self);
                } else {
                    self.words.settle(self);
                }
            }
        }
    }
}

impl Source for Link {
    type Error = Infallible;

    fn has_changed(&self, mark: u64) -> bool {
        self.sent.load(Ordering::Acquire) != mark
    }

    fn is_there(&self) -> bool {
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

fn model(again: bool, messages: u64) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        let link = Link::new();
        let poller = {
            let link = Arc::clone(&link);
            thread::spawn(move || link.poll_offered(again))
        };
        let peer = {
            let link = Arc::clone(&link);
            thread::spawn(move || (0..messages).for_each(|_| link.send()))
        };
        link.receive(messages);
        peer.join().expect("the peer");
        poller.join().expect("the poller");
    });
}

#[test]
fn a_task_is_woken_by_the_poller_or_by_its_doorbell() {
    model(false, 1);
}

#[test]
fn a_task_is_woken_when_the_poller_takes_its_wait_back() {
    model(true, 1);
}

#[test]
fn a_task_that_waits_again_is_woken_again() {
    model(false, 2);
}

/// A task that waits since an older mark, and one that comes later.
#[test]
fn a_later_wait_does_not_hide_what_an_earlier_one_waits_for() {
    explore(|| {
        let link = Link::new();
        // The earlier one: listed with the mark 0.
        link.words.park(|| *link.is_waiting.lock().expect("lock") = true);
        let earlier = link.words.watch(&*link, 0, || true);
        let poller = {
            let link = Arc::clone(&link);
            thread::spawn(move || {
                if link.words.is_due(&*link) {
                    link.words.release(&*link);
                } else {
                    link.words.settle(&*link);
                }
            })
        };
        link.send();
        // The later one has seen that message.
        let later = link.words.watch(&*link, 1, || true);
        poller.join().expect("the poller");
        let is_woken = link.runtime.lock().expect("lock").may_run;
        assert!(earlier.is_pending() && later.is_pending() && is_woken);
    });
}
