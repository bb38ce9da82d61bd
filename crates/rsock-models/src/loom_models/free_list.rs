//! The list of returned slots of the preload library: no slot is allocated twice, none is lost.

#[path = "../../../rsock-preload/src/slot/free_list.rs"]
mod free_list;

use super::explore;
use free_list::FreeList;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use loom::thread;
use std::sync::atomic::Ordering;

const SLOTS: usize = 3;

struct Slots {
    list: FreeList,
    next: [AtomicU32; SLOTS],
    is_out: [AtomicBool; SLOTS],
}

impl Slots {
    fn take(&self) -> Option<u32> {
        let index = self.list.pop(|index| self.next.get(index as usize))?;
        let was_out = self.is_out[index as usize].swap(true, Ordering::AcqRel);
        assert!(!was_out, "allocated twice");
        Some(index)
    }

    fn give_back(&self, index: u32) {
        self.is_out[index as usize].store(false, Ordering::Release);
        self.list.push(index, &self.next[index as usize]);
    }
}

#[test]
fn a_returned_slot_is_allocated_once() {
    explore(|| {
        let slots = Arc::new(Slots {
            list: FreeList(AtomicU64::new(0)),
            next: std::array::from_fn(|_| AtomicU32::new(0)),
            is_out: std::array::from_fn(|_| AtomicBool::new(true)),
        });
        (0..SLOTS as u32).rev().for_each(|index| slots.give_back(index));
        let other = {
            let slots = Arc::clone(&slots);
            // Takes two and returns the first: the head is again what it was, its successor is not.
            thread::spawn(move || {
                let (first, _second) = (slots.take(), slots.take());
                first.into_iter().for_each(|first| slots.give_back(first));
            })
        };
        let mine = slots.take();
        assert!(mine.is_some());
        other.join().expect("a thread");
        // Each of the two threads has one: a third is left, and no more.
        assert!(slots.take().is_some());
        assert_eq!(slots.take(), None);
    });
}
