//! How threads of one process family sleep on a queue that may have several wait lines, and how they are
//! woken from inside the family.
//!
//! Peers wake by a wait line ([`super::waiter`]), each by that of its own link. The family wakes by the
//! words here. A thread that sleeps watches all of them at once, so a wake-up by any of them ends its
//! sleep. What lies behind the words (segments, futexes, bells) is a [`WaitLines`].

use super::primitive::{Native, Platform, Word};
use super::waiter::{BELL, BELLS, FUTEX, WaitLine};
use std::sync::atomic::Ordering;

/// The words, in family memory.
///
/// # Invariants
/// `sleepers` counts the threads between arming and the end of their sleep. A killed one stays counted,
/// which costs a system call per local wake-up.
#[repr(C, align(128))]
#[derive(Debug)]
pub(crate) struct Registry<P: Platform = Native> {
    pub(crate) sleepers: P::U32,
    /// Counts [`Self::wake_all`], so that a wake-up that comes before the sleep is not lost.
    pub(crate) epoch: P::U32,
    /// What threads without a owned sleep on.
    pub(crate) word: P::U32,
    pub(crate) bells_armed: P::U32,
    pub(crate) bells: [P::U64; BELLS],
}

/// The wait lines of one queue, and the system's ways to sleep and to wake.
pub(crate) trait WaitLines<P: Platform> {
    /// How a sleep ended.
    type Parked;
    /// Words that one sleep watches.
    type Watched: Default;
    /// Woken before the sleep began.
    const WOKEN: Self::Parked;

    /// Runs `f` on every wait line.
    fn for_each(&self, f: impl FnMut(&WaitLine<P>));
    /// Sleeps on the only wait line, for which it calls `arm` first; `None` unless there is exactly one.
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
    /// Rings bell `id`.
    fn ring(&self, id: u64);
}

impl<P: Platform> Registry<P> {
    /// Wakes the threads that wait, after something became ready that no peer announces.
    #[inline]
    pub(crate) fn notify(&self, lines: &impl WaitLines<P>) {
        // SYNC(arm-ring): orders what became ready before the looks below. Pairs with the fence
        // that follows the registration in `park` and `arm_bells`.
        P::fence();
        if self.sleepers.load(Ordering::Relaxed) != 0
            || self.bells_armed.load(Ordering::Relaxed) != 0
        {
            self.wake_registered(lines);
        }
    }

    /// Wakes every thread, and makes sleeps fail that began with an older [`Self::epoch`].
    pub(crate) fn wake_all(&self, lines: &impl WaitLines<P>) {
        // SYNC(arm-ring): ordered before the look at the sleepers by the fence in `notify`; pairs
        // with the load in `park`.
        self.epoch.fetch_add(1, Ordering::Release);
        self.notify(lines);
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.epoch.load(Ordering::Acquire)
    }

    #[cold]
    fn wake_registered(&self, lines: &impl WaitLines<P>) {
        let mut ring = self.bells_armed.swap(0, Ordering::AcqRel) != 0;
        if self.sleepers.load(Ordering::Relaxed) != 0 {
            self.word.fetch_add(1, Ordering::Relaxed);
            lines.wake(&self.word);
            lines.for_each(|line| {
                // A sleeper between its last look and the system call compares the word. A thread that
                // takes bits serves them all, so the bells ring too.
                ring |= line.take_armed() & BELL != 0;
                lines.wake(line.word());
            });
        }
        if ring {
            for bell in &self.bells {
                match bell.load(Ordering::Relaxed) {
                    0 => {}
                    id => lines.ring(id),
                }
            }
        }
    }

    /// Sleeps until woken, unless `is_ready` or the epoch has left `epoch`.
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
        // One line: the common case, one plain futex.
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
            // SYNC(arm-ring): for a queue without lines. Pairs with the fence in `notify`.
            P::fence();
            if is_over() { T::WOKEN } else { lines.sleep_on_all(watched) }
        })
    }
}
