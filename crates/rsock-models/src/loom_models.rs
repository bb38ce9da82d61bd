//! A module for each algorithm, which includes the file that it explores.

mod announced_wait;
mod claim;
mod device;
mod epoll_wait;
mod event_count;
mod free_list;
mod gate;
mod kernel_only_waiter;
mod opening;
mod release;
mod wait_state;

use loom::sync::atomic::AtomicU32;
use loom::sync::{Condvar, Mutex};
use std::sync::atomic::Ordering;

/// Explores every interleaving with at most three preemptions.
fn explore(f: impl Fn() + Sync + Send + 'static) {
    explore_up_to(3, f);
}

/// Explores every interleaving with at most `preemptions` preemptions.
fn explore_up_to(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

/// A place to sleep: a futex, or a doorbell.
struct ModelFutex {
    /// Whether the doorbell has been rung.
    lock: Mutex<bool>,
    wake: Condvar,
}

impl ModelFutex {
    fn new() -> Self {
        Self { lock: Mutex::new(false), wake: Condvar::new() }
    }

    /// Sleeps once, if `is_asleep` holds, until [`Self::wake`]: as a futex does.
    fn sleep_if(&self, is_asleep: impl FnOnce() -> bool) {
        let guard = self.lock.lock().expect("lock");
        if is_asleep() {
            drop(self.wake.wait(guard).expect("lock"));
        }
    }

    /// Sleeps once, if the word has the value.
    fn futex_wait(&self, word: &AtomicU32, expected: u32) {
        self.sleep_if(|| word.load(Ordering::Relaxed) == expected);
    }

    fn wake(&self) {
        let _guard = self.lock.lock().expect("lock");
        self.wake.notify_all();
    }

    fn wake_one(&self) {
        let _guard = self.lock.lock().expect("lock");
        self.wake.notify_one();
    }

    fn bell_wait(&self) {
        let mut rung = self.lock.lock().expect("lock");
        while !*rung {
            rung = self.wake.wait(rung).expect("lock");
        }
        *rung = false;
    }

    fn bell_ring(&self) {
        *self.lock.lock().expect("lock") = true;
        self.wake.notify_all();
    }
}
