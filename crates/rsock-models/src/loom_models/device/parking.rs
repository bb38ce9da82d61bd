//! Loom models of parking on a queue with several wait lines: no wake-up is lost, whichever word it
//! arrives by.

use super::sync::parking::{Registry, WaitLines};
use super::sync::primitive::Loom;
use super::sync::waiter::{FUTEX, Lines, WaitLine};
use crate::loom_models::{explore, explore_up_to};
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::sync::atomic::Ordering;

/// A queue with up to two links; the second may be added late.
struct Queue {
    registry: Registry<Loom>,
    lines: [WaitLine<Loom>; 2],
    n_lines: AtomicU32,
    /// Events from each link, and from inside the family.
    arrived: [AtomicU32; 3],
    /// Models all futexes: a waker wakes every sleeper, which then checks its own words.
    futexes: Mutex<()>,
    wake: Condvar,
}

impl Queue {
    fn new(n_lines: u32) -> Arc<Self> {
        Arc::new(Self {
            registry: Registry::fresh(),
            lines: [WaitLine::fresh(), WaitLine::fresh()],
            n_lines: AtomicU32::new(n_lines),
            arrived: std::array::from_fn(|_| AtomicU32::new(0)),
            futexes: Mutex::new(()),
            wake: Condvar::new(),
        })
    }

    fn has_come(&self, from: usize) -> bool {
        self.arrived[from].load(Ordering::Acquire) != 0
    }

    /// A peer's publication and doorbell, by the link `from`.
    fn send(&self, from: usize) {
        self.arrived[from].store(1, Ordering::Release);
        if self.lines[from].ring() & FUTEX != 0 {
            self.wake(self.lines[from].word());
        }
    }

    /// Sleeps, as the engine does, until everything in `from` has come.
    fn wait_for(&self, from: &[usize]) {
        let has_come = || from.iter().all(|&from| self.has_come(from));
        loop {
            let epoch = self.registry.epoch();
            if has_come() {
                break;
            }
            self.registry.park(self, epoch, has_come);
        }
    }
}

/// Words with their expected values: by address, since all of them live as long as the queue.
#[derive(Default)]
struct Watched(Vec<(*const AtomicU32, u32)>);

impl Lines<Loom> for Queue {
    fn for_each(&self, mut f: impl FnMut(&WaitLine<Loom>)) {
        // As the list of wait lines, which is read under a lock of its own.
        let n = { self.n_lines.load(Ordering::Relaxed) as usize };
        self.lines[..n].iter().for_each(|line| f(line));
    }
}

impl WaitLines<Loom> for Queue {
    type Parked = ();
    type Watched = Watched;
    const WOKEN: () = ();

    fn sleep_on_single(&self, arm: impl FnOnce(&WaitLine<Loom>) -> Option<u32>) -> Option<()> {
        if self.n_lines.load(Ordering::Relaxed) != 1 {
            return None;
        }
        let line = &self.lines[0];
        if let Some(expected) = arm(line) {
            self.sleep_on_all(Watched(vec![(std::ptr::from_ref(line.word()), expected)]));
        }
        Some(())
    }

    fn watch(&self, watched: &mut Watched, word: &AtomicU32, expected: u32) {
        watched.0.push((std::ptr::from_ref(word), expected));
    }

    fn sleep_on_all(&self, watched: Watched) {
        let mut guard = self.futexes.lock().expect("lock");
        // SAFETY: the words are those of `self`.
        let is_as_expected = |&(word, expected): &(*const AtomicU32, u32)| unsafe {
            (*word).load(Ordering::Relaxed) == expected
        };
        // At worst it wakes for nothing: a real futex call that another word's waker ends checks
        // again, too.
        if watched.0.iter().all(is_as_expected) {
            guard = self.wake.wait(guard).expect("lock");
        }
        drop(guard);
    }

    fn wake(&self, _: &AtomicU32) {
        let _guard = self.futexes.lock().expect("lock");
        self.wake.notify_all();
    }

    fn announce(&self) {}

    fn ring(&self, _: u64) {}
}

#[test]
fn a_sleeper_on_two_lines_is_woken_by_both() {
    explore_up_to(2, || {
        let queue = Queue::new(2);
        let peers: Vec<_> = (0..2)
            .map(|from| {
                let queue = Arc::clone(&queue);
                thread::spawn(move || queue.send(from))
            })
            .collect();
        queue.wait_for(&[0, 1]);
        peers.into_iter().for_each(|peer| peer.join().expect("a peer"));
    });
}

#[test]
fn a_sleeper_is_woken_from_inside_the_family() {
    for n_lines in 0..=2 {
        explore(move || {
            let queue = Queue::new(n_lines);
            let other = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    queue.arrived[2].store(1, Ordering::Release);
                    queue.registry.notify(&*queue);
                })
            };
            queue.wait_for(&[2]);
            other.join().expect("a thread");
        });
    }
}

#[test]
fn a_sleeper_is_woken_by_a_line_that_was_added_while_it_slept() {
    for n_lines in 0..=1 {
        explore(move || {
            let queue = Queue::new(n_lines);
            let new = n_lines as usize;
            let connecting = {
                let queue = Arc::clone(&queue);
                thread::spawn(move || {
                    queue.n_lines.store(n_lines + 1, Ordering::Relaxed);
                    queue.registry.wake_all(&*queue);
                    // From here on a peer can use the line.
                    queue.send(new);
                })
            };
            queue.wait_for(&[new]);
            connecting.join().expect("a thread");
        });
    }
}

#[test]
fn two_sleepers_that_wait_for_different_events_both_wake() {
    explore_up_to(2, || {
        let queue = Queue::new(2);
        let other = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || queue.wait_for(&[0]))
        };
        let peer = {
            let queue = Arc::clone(&queue);
            thread::spawn(move || {
                queue.send(0);
                queue.send(1);
            })
        };
        queue.wait_for(&[1]);
        other.join().expect("a thread");
        peer.join().expect("a peer");
    });
}
