//! Loom models of the bells of a queue: a bell that is armed is rung by the next arrival, whatever
//! other threads do with its place and with the queue's wait lines meanwhile.

use super::sync::parking::{Registry, WaitLines};
use super::sync::primitive::Loom;
use super::sync::waiter::{BELL, BellName, Lines, WaitLine};
use crate::loom_models::{ModelFutex, explore, explore_up_to};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::atomic::Ordering;

const EARLIER: BellName = BellName { id: 1, pipe: 7 };
const WAITING: BellName = BellName { id: 2, pipe: 0 };

/// A queue with a link or, at first, none. It has one place for bells.
struct Queue {
    registry: Registry<Loom>,
    line: WaitLine<Loom>,
    n_lines: AtomicU32,
    has_arrived: AtomicU32,
    /// The doorbell of the thread that waits.
    doorbell: ModelFutex,
}

impl Queue {
    fn new(n_lines: u32) -> Arc<Self> {
        Arc::new(Self {
            registry: Registry::fresh(),
            line: WaitLine::fresh(),
            n_lines: AtomicU32::new(n_lines),
            has_arrived: AtomicU32::new(0),
            doorbell: ModelFutex::new(),
        })
    }

    /// A peer's publication and doorbell.
    fn send(&self) {
        self.has_arrived.store(1, Ordering::Release);
        if self.line.ring() & BELL != 0 {
            let bell = self.line.bell(0);
            // A pipe is rung in the bell's stead, and is that of the other thread here.
            if bell.pipe == 0 {
                self.ring(bell.id);
            }
        }
    }

    /// Waits by a doorbell, as a thread in `poll` does, until the peer has sent.
    fn wait(&self) {
        let has_arrived = || self.has_arrived.load(Ordering::Acquire) != 0;
        loop {
            while !self.registry.bells.arm(WAITING, self) {
                thread::yield_now();
            }
            if has_arrived() {
                break;
            }
            self.doorbell.bell_wait();
        }
        self.registry.bells.disarm(WAITING.id, self);
    }
}

impl Lines<Loom> for Queue {
    fn for_each(&self, mut f: impl FnMut(&WaitLine<Loom>)) {
        if self.n_lines.load(Ordering::Relaxed) != 0 {
            f(&self.line);
        }
    }
}

impl WaitLines<Loom> for Queue {
    type Parked = ();
    type Watched = ();
    const WOKEN: () = ();

    fn ring(&self, id: u64) {
        if id == WAITING.id {
            self.doorbell.bell_ring();
        }
    }

    // No thread sleeps on a word here.
    fn sleep_on_single(&self, _: impl FnOnce(&WaitLine<Loom>) -> Option<u32>) -> Option<()> {
        None
    }

    fn watch(&self, (): &mut (), _: &AtomicU32, _: u32) {}

    fn sleep_on_all(&self, (): ()) {}

    fn wake(&self, _: &AtomicU32) {}

    fn announce(&self) {}
}

#[test]
fn a_bell_that_takes_the_place_of_another_is_rung() {
    explore(|| {
        let queue = Queue::new(1);
        assert!(queue.registry.bells.arm(EARLIER, &*queue));
        let earlier = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.registry.bells.disarm(EARLIER.id, &*queue))
        };
        let peer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.send())
        };
        queue.wait();
        earlier.join().expect("a thread");
        peer.join().expect("a peer");
    });
}

#[test]
fn a_bell_that_is_armed_while_a_wait_line_is_added_is_rung() {
    explore_up_to(4, || {
        let queue = Queue::new(0);
        assert!(queue.registry.bells.arm(EARLIER, &*queue));
        queue.registry.bells.disarm(EARLIER.id, &*queue);
        queue.registry.wake_all(&*queue);
        let connecting = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                queue.n_lines.store(1, Ordering::Relaxed);
                queue.registry.bells.copy_to(&queue.line);
                queue.registry.wake_all(&*queue);
                // From here on a peer can use the line.
                queue.send();
            })
        };
        queue.wait();
        connecting.join().expect("a thread");
    });
}
