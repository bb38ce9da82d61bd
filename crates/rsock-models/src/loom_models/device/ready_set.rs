//! Loom models of a ready set: a waiter that watches several queues by one set misses nothing.

use super::sync::primitive::Loom;
use super::sync::ready_set::ReadySet;
use super::sync::waiter::{ANNOUNCE, BELL, WaitLine};
use crate::loom_models::{ModelFutex, explore, explore_up_to};
use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use std::sync::atomic::Ordering;

/// Queues of the models: in the first word of the set, and in the second.
const QUEUES: [u32; 2] = [1, 70];

struct Model {
    set: ReadySet<Loom>,
    bell: ModelFutex,
    lines: [WaitLine<Loom>; 2],
    /// Entries that each queue has.
    entries: [AtomicU32; 2],
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            set: ReadySet::fresh(),
            bell: ModelFutex::new(),
            lines: [WaitLine::fresh(), WaitLine::fresh()],
            entries: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    /// As a peer: publishes an entry, and announces it if the queue is armed.
    fn publish(&self, queue: usize) {
        self.entries[queue].fetch_add(1, Ordering::Release);
        if self.lines[queue].ring() & ANNOUNCE != 0 {
            self.set.insert(QUEUES[queue]);
            if self.set.line.ring() & BELL != 0 {
                self.bell.bell_ring();
            }
        }
    }

    /// Arms a drained queue; the number of its entries if there are more than `seen`.
    fn arm(&self, queue: usize, seen: u32) -> Option<u32> {
        let entries = || self.entries[queue].load(Ordering::Acquire);
        self.lines[queue].arm(ANNOUNCE);
        Some(entries()).filter(|&n| n != seen)
    }

    /// As an event loop: sleeps until each queue has as many entries as `wanted` says.
    fn wait_for(&self, wanted: [u32; 2]) {
        let mut seen = [0, 0];
        // Queues that are to be looked at; the others are armed.
        let mut candidates = [true, true];
        while seen != wanted {
            for queue in 0..2 {
                while std::mem::replace(&mut candidates[queue], false) {
                    if let Some(n) = self.arm(queue, seen[queue]) {
                        seen[queue] = n;
                        candidates[queue] = true;
                    }
                }
            }
            let mut any = self.take(&mut candidates);
            if !any && seen != wanted {
                self.set.line.arm(BELL);
                any = self.take(&mut candidates);
                if !any {
                    self.bell.bell_wait();
                    self.take(&mut candidates);
                }
            }
        }
    }

    fn take(&self, candidates: &mut [bool; 2]) -> bool {
        let mut any = false;
        self.set.take(|number| {
            let queue = QUEUES.iter().position(|&queue| queue == number).expect("one of the two");
            candidates[queue] = true;
            any = true;
        });
        any
    }
}

#[test]
fn an_event_loop_misses_no_entry_of_two_queues() {
    explore_up_to(2, || {
        let model = Model::new();
        let peers = [0, 1].map(|queue| {
            let model = Arc::clone(&model);
            thread::spawn(move || model.publish(queue))
        });
        model.wait_for([1, 1]);
        for peer in peers {
            peer.join().expect("peer");
        }
    });
}

#[test]
fn an_event_loop_misses_no_later_entry_of_one_queue() {
    explore(|| {
        let model = Model::new();
        let peer = {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                model.publish(1);
                model.publish(1);
            })
        };
        model.wait_for([0, 2]);
        peer.join().expect("peer");
    });
}

#[test]
fn a_bit_that_is_set_while_bits_are_taken_is_not_lost() {
    explore(|| {
        let set = Arc::new(ReadySet::<Loom>::fresh());
        let notifiers = [1, 2].map(|queue| {
            let set = Arc::clone(&set);
            thread::spawn(move || set.insert(queue))
        });
        let mut taken = Vec::new();
        set.take(|queue| taken.push(queue));
        for notifier in notifiers {
            notifier.join().expect("notifier");
        }
        set.take(|queue| taken.push(queue));
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}
