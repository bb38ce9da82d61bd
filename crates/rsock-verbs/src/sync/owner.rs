//! The word of a lock whose owner may die: which thread holds the lock, whether others sleep on it,
//! and how a waiter takes it over from an owner that died.
//!
//! The lock itself is [`crate::family::Lock`]; [`Threads`] supplies how threads sleep and how they
//! detect an owner's death, so that the same algorithm runs under loom.

use super::primitive::{Native, Platform, Word};
use std::sync::atomic::Ordering;

/// No thread holds the lock.
pub(crate) const FREE: u32 = 0;
/// Set beside the owner's thread id while a thread sleeps on the word.
pub(crate) const CONTENDED: u32 = 1 << 31;
/// Number of reads of the word before sleeping. A model checker explores only sleeping.
const SPINS: u32 = if cfg!(loom) { 0 } else { 200 };

/// # Invariants
/// Holds `FREE`, or the id of the thread that owns the lock, with `CONTENDED` whenever a thread may
/// sleep on the word.
#[repr(transparent)]
#[derive(Debug)]
pub(crate) struct OwnerWord<P: Platform = Native> {
    pub(crate) word: P::U32,
}

/// What the algorithm needs from the system.
pub(crate) trait Threads<P: Platform> {
    /// Sleeps while `word` holds `value`, for a bounded time; returns whether that time is over.
    fn wait(&self, word: &P::U32, value: u32) -> bool;
    /// Wakes one thread that sleeps on `word`.
    fn wake_one(&self, word: &P::U32);
    /// Whether the thread exists.
    fn is_alive(&self, thread: u32) -> bool;
}

/// How a lock was obtained.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Obtained {
    /// It was free.
    Free,
    /// Its owner had died.
    FromDeadOwner,
}

impl<P: Platform> OwnerWord<P> {
    /// Takes the lock for the thread `me` if it is free.
    #[inline(always)]
    pub(crate) fn try_lock(&self, me: u32) -> bool {
        // SYNC(family-lock): Acquire pairs with the Release in `unlock`.
        self.word.compare_exchange(FREE, me, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// The thread that holds it, or 0.
    pub(crate) fn owner(&self) -> u32 {
        self.word.load(Ordering::Relaxed) & !CONTENDED
    }

    /// Takes the lock for the thread `me`, sleeping as long as its owner lives.
    #[cold]
    pub(crate) fn lock_slow(&self, me: u32, threads: &impl Threads<P>) -> Obtained {
        for _ in 0..SPINS {
            if self.word.load(Ordering::Relaxed) == FREE && self.try_lock(me) {
                return Obtained::Free;
            }
            std::hint::spin_loop();
        }
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            if seen == FREE {
                // Other threads may sleep: keep the bit, so that this thread's unlock wakes them.
                if self.replace(FREE, me | CONTENDED) {
                    return Obtained::Free;
                }
                continue;
            }
            if seen & CONTENDED == 0 && !self.replace(seen, seen | CONTENDED) {
                continue;
            }
            let is_late = threads.wait(&self.word, seen | CONTENDED);
            // Takes over only from the owner that was found dead: another waiter may have been
            // faster.
            if is_late
                && !threads.is_alive(seen & !CONTENDED)
                && self.replace(seen | CONTENDED, me | CONTENDED)
            {
                return Obtained::FromDeadOwner;
            }
        }
    }

    /// Releases the lock.
    #[inline(always)]
    pub(crate) fn unlock(&self, threads: &impl Threads<P>) {
        // SYNC(family-lock): Release pairs with the Acquire of the next owner.
        if self.word.swap(FREE, Ordering::Release) & CONTENDED != 0 {
            // Waking one thread is enough: it takes the lock with the bit set and later wakes the
            // next.
            threads.wake_one(&self.word);
        }
    }

    /// Replaces `old` by `new`; returns whether the word held `old`.
    fn replace(&self, old: u32, new: u32) -> bool {
        // SYNC(family-lock): Acquire pairs with the Release in `unlock`.
        self.word.compare_exchange(old, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
}
