//! Gates of the preload library's slots: what a slot holds is used by calls of its generation only,
//! and ended once, after the last of them.

#[path = "../../../rsock-preload/src/slot/gate.rs"]
#[expect(dead_code, reason = "the model uses some of it")]
mod gate;

use super::explore;
use gate::{Gate, OpenGates};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, AtomicU64};
use loom::thread;
use std::sync::atomic::Ordering;

/// A slot; `held` is what a box would be, and holds the generation that it was made for.
struct Slot {
    gates: [Gate; 2],
    left: OpenGates,
    held: UnsafeCell<u32>,
    n_ended: AtomicU32,
}

// SAFETY: the gates hand `held` over; that is what is tested.
unsafe impl Sync for Slot {}
// SAFETY: as for `Sync`.
unsafe impl Send for Slot {}

impl Slot {
    fn new() -> Arc<Self> {
        let gate = || Gate(AtomicU64::new(0));
        let slot = Self {
            gates: [gate(), gate()],
            left: OpenGates(AtomicU32::new(0)),
            held: UnsafeCell::new(0),
            n_ended: AtomicU32::new(0),
        };
        slot.insert(1);
        Arc::new(slot)
    }

    fn insert(&self, generation: u32) {
        self.left.set(2);
        // SAFETY: the gates are closed and empty.
        self.held.with_mut(|held| unsafe { *held = generation });
        self.gates.iter().for_each(|gate| gate.open(generation));
    }

    /// A call of generation `generation`; whether it got in.
    fn call(&self, side: usize, generation: u32) -> bool {
        let is_inside = self.gates[side].enter(generation);
        if is_inside {
            // SAFETY: inside.
            assert_eq!(self.held.with(|held| unsafe { *held }), generation);
            if self.gates[side].leave() {
                self.is_done();
            }
        }
        is_inside
    }

    fn retire(&self) {
        for gate in &self.gates {
            if gate.close() {
                self.is_done();
            }
        }
    }

    fn is_done(&self) {
        if self.left.close_one() {
            // SAFETY: the last call has left, and the slot is not allocated again before this.
            let generation = self.held.with_mut(|held| unsafe { std::mem::take(&mut *held) });
            assert_ne!(generation, 0, "ended once");
            self.n_ended.fetch_add(1, Ordering::Relaxed);
            if generation == 1 {
                // Allocated at once, to another stream.
                self.insert(2);
            }
        }
    }
}

#[test]
fn what_a_slot_holds_ends_once_and_after_the_last_call() {
    explore(|| {
        let slot = Slot::new();
        let caller = |side| {
            let slot = Arc::clone(&slot);
            thread::spawn(move || slot.call(side, 1))
        };
        let (sender, receiver) = (caller(0), caller(1));
        slot.retire();
        // A call that looked the slot up for the next stream.
        slot.call(1, 2);
        sender.join().expect("a call");
        receiver.join().expect("a call");
        assert_eq!(slot.n_ended.load(Ordering::Relaxed), 1);
        assert!(slot.call(0, 2) && slot.call(1, 2), "open for the next");
    });
}

#[test]
fn two_threads_that_pause_do_not_both_run_alone() {
    explore(|| {
        let slot = Slot::new();
        let alone = Arc::new(AtomicU32::new(0));
        let pause = |side: usize| {
            let (slot, alone) = (Arc::clone(&slot), Arc::clone(&alone));
            move || {
                if !slot.gates[side].enter(1) {
                    return;
                }
                // As `Handle::pause` does.
                if slot.gates.iter().map(Gate::pause).sum::<u64>() == 1 {
                    assert_eq!(alone.fetch_add(1, Ordering::Relaxed), 0);
                    alone.fetch_sub(1, Ordering::Relaxed);
                }
                slot.gates.iter().for_each(Gate::resume);
                slot.gates[side].leave();
            }
        };
        let other = thread::spawn(pause(0));
        pause(1)();
        other.join().expect("a call");
    });
}
