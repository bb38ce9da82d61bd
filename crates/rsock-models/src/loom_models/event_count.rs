//! The event count of the engine: a thread that waits for what another thread dispatches is woken.

#[path = "../../../rsock-core/src/engine/wait/event_count.rs"]
mod event_count;

use super::{ModelFutex, explore};
use event_count::EventCount;
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::atomic::Ordering;

/// A stream: a completion that either thread may dispatch, and what comes of it for the other one.
struct Stream {
    events: EventCount,
    /// The effect of the dispatch, for example credits.
    left: AtomicU32,
    /// The queue's epoch, which a wake-up changes.
    epoch: AtomicU32,
    futex: ModelFutex,
}

impl Stream {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            events: EventCount::default(),
            left: AtomicU32::new(0),
            epoch: AtomicU32::new(0),
            futex: ModelFutex::new(),
        })
    }

    fn dispatch(&self) {
        self.left.fetch_add(1, Ordering::Relaxed);
        self.events.announce(|| {
            self.epoch.fetch_add(1, Ordering::Release);
            self.futex.wake();
        });
    }

    /// As `Stream::park` with the loop around it.
    fn wait_for(&self, n: u32) {
        loop {
            let mark = self.events.now();
            if self.left.load(Ordering::Relaxed) == n {
                break;
            }
            self.events.enter();
            let epoch = self.epoch.load(Ordering::Acquire);
            if self.events.now() == mark {
                self.futex.sleep_if(|| self.epoch.load(Ordering::Acquire) == epoch);
            }
            self.events.leave();
        }
    }
}

#[test]
fn a_waiter_is_woken_by_what_another_thread_dispatches() {
    explore(|| {
        let stream = Stream::new();
        let pump = {
            let stream = Arc::clone(&stream);
            thread::spawn(move || (0..2).for_each(|_| stream.dispatch()))
        };
        stream.wait_for(2);
        pump.join().expect("a thread");
    });
}

#[test]
fn a_dispatch_wakes_two_waiters() {
    explore(|| {
        let stream = Stream::new();
        let waiter = {
            let stream = Arc::clone(&stream);
            thread::spawn(move || stream.wait_for(1))
        };
        let pump = {
            let stream = Arc::clone(&stream);
            thread::spawn(move || stream.dispatch())
        };
        stream.wait_for(1);
        waiter.join().expect("a thread");
        pump.join().expect("a thread");
    });
}
