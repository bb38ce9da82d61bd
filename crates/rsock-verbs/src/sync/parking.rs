//! How threads of one process family sleep on a queue that may have several wait lines, and how
//! they are woken from inside the family.
//!
//! A peer wakes sleepers through the wait line of its own link ([`super::waiter`]); the family
//! wakes them through the words here. A sleeping thread watches all of these words at once, so a
//! wake-up through any of them ends its sleep. [`WaitLines`] supplies what lies behind the words
//! (segments, futexes, bells).

use super::bells::Bells;
use super::primitive::{Native, Platform, Word};
use super::waiter::{ANNOUNCE, BELL, FUTEX, Lines, WaitLine};
use std::sync::atomic::Ordering;

/// The words, in family memory.
///
/// # Invariants
/// `sleepers` counts the threads between arming and the end of their sleep. A killed thread stays
/// counted, which costs a system call per local wake-up.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Registry<P: Platform = Native> {
    sleepers: P::U32,
    /// Counts [`Self::wake_all`], so that a wake-up that comes before the sleep is not lost.
    epoch: P::U32,
    /// The word that threads sleep on when the queue has no wait line.
    word: P::U32,
    pub(crate) bells: Bells<P>,
}

/// How the system sleeps on the wait lines of one queue, and wakes their sleepers.
pub(crate) trait WaitLines<P: Platform>: Lines<P> {
    /// How a sleep ended.
    type Parked;
    /// Words that one sleep watches.
    type Watched: Default;
    /// Woken before the sleep began.
    const WOKEN: Self::Parked;

    /// Sleeps on the only wait line, for which it calls `arm` first; `None` unless there is exactly
    /// one.
    fn sleep_on_single(
        &self,
        arm: impl FnOnce(&WaitLine<P>) -> Option<u32>,
    ) -> Option<Self::Parked>;
    /// Adds a word with the value that it is expected to have.
    fn watch(&self, watched: &mut Self::Watched, word: &P::U32, expected: u32);
    /// Sleeps as long as every watched word has its expected value.
    fn sleep_on_all(&self, watched: Self::Watched) -> Self::Parked;
    /// Wakes every thread that sleeps on `word`.
    fn wake(&self, word: &P::U32);
    /// Announces the queue to the ready sets that the wait lines name.
    fn announce(&self);
    /// Rings bell `id`.
    fn ring(&self, id: u64);
}

impl<P: Platform> Registry<P> {
    /// No waiters, as in fresh memory.
    pub(crate) fn fresh() -> Self {
        let zero = || P::U32::new(0);
        Self { sleepers: zero(), epoch: zero(), word: zero(), bells: Bells::fresh() }
    }

    /// Wakes the waiting threads after something became ready that no peer announces.
    #[inline]
    pub(crate) fn notify(&self, lines: &impl WaitLines<P>) {
        // SYNC(arm-ring): orders what became ready before the loads below. Pairs with the fence
        // that follows the registration in `park` and `Bells::arm`.
        P::fence();
        if self.sleepers.load(Ordering::Relaxed) != 0 || self.bells.is_armed() {
            self.wake_registered(lines);
        }
    }

    /// Wakes every waiting thread; a [`Self::park`] with an older epoch returns at once.
    pub(crate) fn wake_all(&self, lines: &impl WaitLines<P>) {
        // SYNC(arm-ring): ordered before the load of the sleepers by the fence in `notify`; pairs
        // with the load in `park`.
        self.epoch.fetch_add(1, Ordering::Release);
        self.notify(lines);
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    #[cold]
    fn wake_registered(&self, lines: &impl WaitLines<P>) {
        let mut ring = self.bells.take_armed();
        let mut is_announced = false;
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.word.fetch_add(1, Ordering::Relaxed);
            lines.wake(&self.word);
            lines.for_each(|line| {
                // A sleeper between its last check and its system call compares the word. A thread
                // that takes the bits handles all of them, so it rings the bells too.
                let bits = line.take_armed();
                ring |= bits & BELL != 0;
                is_announced |= bits & ANNOUNCE != 0;
                lines.wake(line.word());
            });
        }
        if is_announced {
            lines.announce();
        }
        if ring {
            self.bells.for_each(|id| lines.ring(id));
        }
    }

    /// Sleeps until woken, unless `is_ready` holds or the epoch is no longer `epoch`.
    pub(crate) fn park<T: WaitLines<P>>(
        &self,
        lines: &T,
        epoch: u32,
        is_ready: impl Fn() -> bool,
    ) -> T::Parked {
        let is_over = || is_ready() || self.epoch() != epoch;
        if is_over() {
            return T::WOKEN;
        }
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let parked = self.sleep(lines, is_over);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
        parked
    }

    fn sleep<T: WaitLines<P>>(&self, lines: &T, is_over: impl Fn() -> bool) -> T::Parked {
        // With one wait line, the common case, a plain futex suffices.
        let single = lines.sleep_on_single(|line| {
            let expected = line.arm(FUTEX);
            (!is_over()).then_some(expected)
        });
        single.unwrap_or_else(|| {
            let mut watched = T::Watched::default();
            lines.watch(&mut watched, &self.word, self.word.load(Ordering::Relaxed));
            lines.for_each(|line| {
                let expected = line.arm(FUTEX);
                lines.watch(&mut watched, line.word(), expected);
            });
            // SYNC(arm-ring): for a queue without wait lines. Pairs with the fence in `notify`.
            P::fence();
            if is_over() { T::WOKEN } else { lines.sleep_on_all(watched) }
        })
    }
}
