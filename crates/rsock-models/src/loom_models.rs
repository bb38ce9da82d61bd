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

use loom::sync::{Condvar, Mutex};

/// Explores every interleaving with at most three preemptions.
fn explore(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// A place to sleep until something holds.
struct ModelFutex {
    lock: Mutex<()>,
    wake: Condvar,
}

impl ModelFutex {
    fn new() -> Self {
        Self { lock: Mutex::new(()), wake: Condvar::new() }
    }

    /// Sleeps once, if `is_asleep` holds, until [`Self::wake`]: as a futex does.
    fn sleep_if(&self, is_asleep: impl FnOnce() -> bool) {
        let guard = self.lock.lock().expect("lock");
        if is_asleep() {
            drop(self.wake.wait(guard).expect("lock"));
        }
    }

    fn wake(&self) {
        let _guard = self.lock.lock().expect("lock");
        self.wake.notify_all();
    }
}
