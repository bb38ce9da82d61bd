//! Loom models of the lock whose owner may die: exclusion, hand-over to sleepers, and take-over.

use super::sync::owner::{Obtained, OwnerWord, Threads};
use super::sync::primitive::{Loom, Word};
use crate::loom_models::{ModelFutex, explore};
use loom::cell::UnsafeCell;
use loom::sync::atomic::AtomicU32;
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// A lock around a counter that is not atomic: loom reports it if two threads are inside.
struct Locked {
    word: OwnerWord<Loom>,
    count: UnsafeCell<u32>,
    futex: ModelFutex,
    /// Whether the thread with the id [`MORTAL`] is gone.
    has_died: Mutex<bool>,
    sleep: Condvar,
}

// SAFETY: the word admits one thread at a time to the counter; that is what is tested.
unsafe impl Sync for Locked {}
// SAFETY: as for `Sync`.
unsafe impl Send for Locked {}

const MORTAL: u32 = 1;

/// Waits that end only by a wake-up.
struct Sleepy<'a>(&'a ModelFutex);

impl Threads<Loom> for Sleepy<'_> {
    fn wait(&self, word: &AtomicU32, value: u32) -> bool {
        self.0.futex_wait(word, value);
        false
    }

    fn wake_one(&self, _: &AtomicU32) {
        self.0.wake_one();
    }

    fn is_alive(&self, _: u32) -> bool {
        true
    }
}

/// Waits that the owner's death ends, too; the first one times out at once.
struct Watchful<'a>(&'a Locked, Cell<bool>);

impl<'a> Watchful<'a> {
    fn new(locked: &'a Locked) -> Self {
        Self(locked, Cell::new(true))
    }
}

impl Threads<Loom> for Watchful<'_> {
    fn wait(&self, word: &AtomicU32, value: u32) -> bool {
        let mut has_died = self.0.has_died.lock().expect("lock");
        let is_late = |has_died: bool| has_died && value & !(1 << 31) == MORTAL;
        if self.1.take() && word.load(Ordering::Relaxed) == value {
            return true;
        }
        while word.load(Ordering::Relaxed) == value && !is_late(*has_died) {
            has_died = self.0.sleep.wait(has_died).expect("lock");
        }
        is_late(*has_died)
    }

    fn wake_one(&self, _: &AtomicU32) {
        let _has_died = self.0.has_died.lock().expect("lock");
        self.0.sleep.notify_all();
    }

    fn is_alive(&self, thread: u32) -> bool {
        // The kernel orders the end of a thread before the answer that it is gone.
        thread != MORTAL || !*self.0.has_died.lock().expect("lock")
    }
}

impl Locked {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: OwnerWord { word: Word::new(0) },
            count: UnsafeCell::new(0),
            futex: ModelFutex::new(),
            has_died: Mutex::new(false),
            sleep: Condvar::new(),
        })
    }

    fn lock(&self, me: u32, threads: &impl Threads<Loom>) -> Obtained {
        if self.word.try_lock(me) { Obtained::Free } else { self.word.lock_slow(me, threads) }
    }

    /// Adds one to the counter, inside the lock.
    fn count_once(&self, me: u32, threads: &impl Threads<Loom>) -> Obtained {
        let obtained = self.lock(me, threads);
        // SAFETY: the lock is held.
        self.count.with_mut(|count| unsafe { *count += 1 });
        self.word.unlock(threads);
        obtained
    }

    fn counted(&self) -> u32 {
        assert!(self.word.try_lock(9), "the lock is free in the end");
        // SAFETY: the lock is held.
        self.count.with(|count| unsafe { *count })
    }
}

#[test]
fn every_sleeper_gets_the_lock_in_the_end() {
    explore(|| {
        let locked = Locked::new();
        let others: Vec<_> = (2..4)
            .map(|me| {
                let locked = Arc::clone(&locked);
                thread::spawn(move || locked.count_once(me, &Sleepy(&locked.futex)))
            })
            .collect();
        locked.count_once(4, &Sleepy(&locked.futex));
        for other in others {
            assert_eq!(other.join().expect("a thread"), Obtained::Free);
        }
        assert_eq!(locked.counted(), 3);
    });
}

#[test]
fn one_waiter_takes_the_lock_over_from_an_owner_that_died() {
    explore(|| {
        let locked = Locked::new();
        let mortal = {
            let locked = Arc::clone(&locked);
            thread::spawn(move || {
                locked.lock(MORTAL, &Watchful::new(&locked));
                // SAFETY: the lock is held.
                locked.count.with_mut(|count| unsafe { *count += 1 });
                *locked.has_died.lock().expect("lock") = true;
                locked.sleep.notify_all();
            })
        };
        let other = {
            let locked = Arc::clone(&locked);
            thread::spawn(move || locked.count_once(2, &Watchful::new(&locked)))
        };
        let obtained =
            [locked.count_once(3, &Watchful::new(&locked)), other.join().expect("a thread")];
        mortal.join().expect("a thread");
        // The mortal thread may come last, and then there is a third to take over.
        let taken_over = obtained.iter().filter(|&&how| how == Obtained::FromDeadOwner).count();
        assert!(taken_over <= 1, "{obtained:?}");
        let last = locked.lock(4, &Watchful::new(&locked));
        assert_eq!(last == Obtained::FromDeadOwner, taken_over == 0);
        // SAFETY: the lock is held.
        assert_eq!(locked.count.with(|count| unsafe { *count }), 3);
    });
}
