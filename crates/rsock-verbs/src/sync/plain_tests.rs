//! The algorithms between two threads over plain memory, for Miri: it checks weak memory orders and
//! pointers, while loom explores every interleaving of short runs.

use super::copy_guard::CopyGuard;
use super::owner::{OwnerWord, Threads};
use super::primitive::{Native, Platform};
use super::slot::Slot;
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

const SLOTS: usize = 4;
const MESSAGES: u32 = if cfg!(miri) { 20 } else { 200 };

/// Memory that the algorithms hand from thread to thread.
struct Shared<T>(UnsafeCell<T>);

// SAFETY: the words beside it hand it over; that is what is tested.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    fn at(&self) -> *mut T {
        self.0.get()
    }
}

#[test]
fn a_lane_carries_messages_and_the_memory_beside_them() {
    let slots: [Slot<Native>; SLOTS] = std::array::from_fn(|_| Slot::fresh());
    let region: [Shared<u32>; SLOTS] = std::array::from_fn(|_| Shared(UnsafeCell::new(0)));
    let head = AtomicU32::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..MESSAGES {
                while i.wrapping_sub(head.load(Ordering::Acquire))
                    >= u32::try_from(SLOTS).expect("few")
                {
                    thread::yield_now();
                }
                let place = i as usize % SLOTS;
                // SAFETY: the receiver's head says that it is done with the place.
                unsafe { *region[place].at() = i + 10 };
                slots[place].publish(i, i + 20, u64::from(i) + 30, &[i.into(); 6]);
            }
        });
        for i in 0..MESSAGES {
            let place = i as usize % SLOTS;
            while !slots[place].is_published(i) {
                thread::yield_now();
            }
            assert_eq!(slots[place].read(), (i + 20, u64::from(i) + 30));
            assert_eq!(slots[place].payload(), [u64::from(i); 6]);
            // SAFETY: the slot says that the sender has written it.
            assert_eq!(unsafe { *region[place].at() }, i + 10);
            head.store(i + 1, Ordering::Release);
        }
    });
}

/// Waits that never sleep.
struct Spinning;

impl Threads<Native> for Spinning {
    fn wait(&self, _: &AtomicU32, _: u32) -> bool {
        thread::yield_now();
        false
    }

    fn wake_one(&self, _: &AtomicU32) {}

    fn is_alive(&self, _: u32) -> bool {
        true
    }
}

#[test]
fn a_lock_admits_one_thread() {
    let word = OwnerWord::<Native> { word: AtomicU32::new(0) };
    let count = Shared(UnsafeCell::new(0u32));
    thread::scope(|scope| {
        for me in 1..4 {
            let (word, count) = (&word, &count);
            scope.spawn(move || {
                for _ in 0..MESSAGES / 4 {
                    if !word.try_lock(me) {
                        word.lock_slow(me, &Spinning);
                    }
                    // SAFETY: the lock is held.
                    unsafe { *count.at() += 1 };
                    word.unlock(&Spinning);
                }
            });
        }
    });
    assert_eq!(count.0.into_inner(), 3 * (MESSAGES / 4));
}

#[test]
fn memory_comes_back_when_no_copy_is_under_way() {
    let (key, guard) = (AtomicU32::new(5), CopyGuard::<Native>::fresh());
    let memory = Shared(UnsafeCell::new(0u32));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut count = 0;
            for i in 0..MESSAGES {
                let may_write = guard.begin(&mut count, Native::fence);
                if may_write && key.load(Ordering::Acquire) == 5 {
                    // SAFETY: the guard is begun, and the key is there.
                    unsafe { *memory.at() = i };
                }
                guard.end(&mut count);
            }
        });
        key.store(0, Ordering::Release);
        Native::fence();
        while !guard.is_quiet() {
            thread::yield_now();
        }
        // SAFETY: the key is gone, and no copy is under way.
        unsafe { *memory.at() = 99 };
    });
    assert_eq!(memory.0.into_inner(), 99);
}
