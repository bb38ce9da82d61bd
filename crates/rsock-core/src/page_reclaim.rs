//! Reclaims the pages of idle receive rings.
//!
//! A receive ring is sparse: the kernel allocates a page when the peer first writes it, and the
//! page stays. A process with a thousand streams that each moved a megabyte once would keep three
//! quarters of a gigabyte. So every process has a budget. When its rings together exceed the
//! budget, the pages of those that have not been used for a while and hold no unread byte are
//! released. There is no timer and no thread: a stream whose ring grows does this work for the
//! others, by a clock algorithm. Rings in constant use keep their pages, even above the budget: the
//! clock hand goes round slowly enough for each of them to be used meanwhile. What a process keeps
//! that comes to rest altogether, a thread that sleeps gives back ([`rest`]).
//!
//! Most streams of a process with thousands are *light*: they keep two pages, one of the ring and
//! one of the receive queue. To release and allocate these costs as much as some messages, so light
//! rings have a budget of their own and keep their pages until they have rested for longer.

pub(crate) mod rest;

use crate::sys;
use rsock_verbs::family;
use rsock_verbs::mutex::try_lock;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Ring bytes that a process may keep before pages are reclaimed: of light rings, and of others.
const LIGHT_BUDGET: usize = 1 << 20;
const HEAVY_BUDGET: usize = 2 << 20;
/// A round of the clock hand takes at least this long.
const ROUND: Duration = Duration::from_millis(50);
/// Ring bytes above which it may take less, and how long it takes then.
const MANY: usize = 8 << 20;
const SHORT_ROUND: Duration = Duration::from_millis(5);
/// Growth of a ring is counted in steps of this many bytes.
pub(crate) const STEP: usize = 32 << 10;
/// What a light ring, of less than [`STEP`], is counted as.
const LIGHT: usize = 8 << 10;
/// Milliseconds that a light ring rests before its pages are reclaimed.
const LIGHT_REST: u32 = 500;
/// Streams examined per step, so that a step takes a bounded time.
const EXAMINED_PER_STEP: usize = 32;

/// A ring whose pages can be released.
pub(crate) trait Reclaimable: Debug + Send + Sync {
    /// Releases the pages if the ring is empty and not in use. Returns the bytes freed, in
    /// [`STEP`]s.
    fn reclaim(&self) -> usize;
    /// The usage that the clock hand examines.
    fn usage(&self) -> &RingUsage;
}

/// The usage of one ring. Private to the process.
#[derive(Debug)]
pub(crate) struct RingUsage {
    /// Whether the ring was used since the clock hand last passed.
    used: AtomicBool,
    /// The [`sys::tick`] at which the clock hand last found the ring used.
    last_used: AtomicU32,
    /// Bytes of the ring that are part of a [`Total`].
    counted: AtomicUsize,
    /// Bytes in use at which they are counted next.
    next: AtomicUsize,
}

/// Bytes that rings of one kind are taken to occupy in this process.
#[derive(Debug)]
struct Total {
    bytes: AtomicUsize,
    budget: usize,
}

impl Total {
    /// The total that a ring of `counted` bytes is part of.
    fn of(counted: usize) -> &'static Self {
        if counted < STEP { &LIGHT_TOTAL } else { &HEAVY_TOTAL }
    }

    const fn new(budget: usize) -> Self {
        Self { bytes: AtomicUsize::new(0), budget }
    }

    fn get(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    fn reset(&self) {
        self.bytes.store(0, Ordering::Relaxed);
    }

    fn add(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Saturating, because a fork resets the total and not the counts of the streams.
    fn sub(&self, bytes: usize) {
        let less = |total: usize| Some(total.saturating_sub(bytes));
        let _ = self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    fn is_over_budget(&self) -> bool {
        self.get() > self.budget
    }
}

#[derive(Debug)]
pub(crate) struct Registry {
    owner: u32,
    streams: Vec<Weak<dyn Reclaimable>>,
    /// The clock hand: the next stream to examine.
    hand: usize,
    /// When the hand began its round.
    began: Option<Instant>,
    /// Number of entries at which those of closed streams are removed.
    prune_at: usize,
}

/// Smallest number of entries that are searched for closed streams.
const PRUNE: usize = 64;

static LIGHT_TOTAL: Total = Total::new(LIGHT_BUDGET);
static HEAVY_TOTAL: Total = Total::new(HEAVY_BUDGET);
static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new(0));

impl Registry {
    const fn new(owner: u32) -> Self {
        Self { owner, streams: Vec::new(), hand: 0, began: None, prune_at: PRUNE }
    }

    /// Moves the hand on to the next stream. `None` if it is too early for another round.
    fn next(&mut self) -> Option<usize> {
        if self.hand >= self.streams.len() {
            let round = if HEAVY_TOTAL.get() > MANY { SHORT_ROUND } else { ROUND };
            if self.began.is_some_and(|began| began.elapsed() < round) {
                return None;
            }
            (self.began, self.hand) = (Some(Instant::now()), 0);
        }
        let at = self.hand;
        self.hand = at + 1;
        Some(at)
    }

    /// Adds a stream. The entry of a closed stream keeps that stream's allocation. Such entries are
    /// removed when the list has doubled, so the list stays within twice the open streams, at a
    /// cost for each of them that does not depend on their number.
    fn add(&mut self, stream: Weak<dyn Reclaimable>) {
        if self.streams.len() >= self.prune_at {
            self.streams.retain(|stream| stream.strong_count() != 0);
            self.prune_at = PRUNE.max(2 * self.streams.len());
            self.streams.shrink_to(self.prune_at);
        }
        self.streams.push(stream);
    }
}

/// The locked list of streams: from before a fork until after it, in both processes.
#[must_use]
#[derive(Debug)]
pub(crate) struct LockedStreams {
    _registry: MutexGuard<'static, Registry>,
}

/// Locks the list for a fork: otherwise the list would stay locked in the child for ever if another
/// thread reclaims pages at the fork.
pub(crate) fn lock_for_fork() -> LockedStreams {
    LockedStreams { _registry: REGISTRY.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// Adds a stream to the list, unless the calling thread has locked the list for its fork. Something
/// calls [`lock_for_fork`] around every fork from then on: the caller sees to that.
pub(crate) fn register(stream: Weak<dyn Reclaimable>) {
    if family::is_forking() {
        return;
    }
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let here = family::process().0;
    if registry.owner != here {
        // A forked child leaves inherited streams to the process that made them.
        *registry = Registry::new(here);
        LIGHT_TOTAL.reset();
        HEAVY_TOTAL.reset();
    }
    registry.add(stream);
}

impl RingUsage {
    /// Of a ring that has never been written.
    pub(crate) const fn new() -> Self {
        Self {
            used: AtomicBool::new(false),
            last_used: AtomicU32::new(0),
            counted: AtomicUsize::new(0),
            next: AtomicUsize::new(1),
        }
    }

    /// Notes that `bytes` of the ring are in use now. The caller may round to [`STEP`].
    #[inline]
    pub(crate) fn note(&self, bytes: usize) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
            N_USED.fetch_add(1, Ordering::Relaxed);
        }
        if bytes >= self.next.load(Ordering::Relaxed) {
            self.grow(bytes);
        }
    }

    #[cold]
    fn grow(&self, bytes: usize) {
        let (counted, next) =
            if bytes < STEP { (LIGHT, STEP) } else { (bytes, bytes.saturating_add(STEP)) };
        self.next.store(next, Ordering::Relaxed);
        let old = self.counted.swap(counted, Ordering::Relaxed);
        Total::of(old).sub(old);
        let total = Total::of(counted);
        total.add(counted);
        if total.is_over_budget() {
            sweep();
        }
    }

    /// Notes that no byte of the ring is in use any more. Returns how many were.
    pub(crate) fn clear(&self) -> usize {
        self.next.store(1, Ordering::Relaxed);
        let old = self.counted.swap(0, Ordering::Relaxed);
        Total::of(old).sub(old);
        old
    }

    /// Marks the ring as unused from `now` on. Returns whether it was used before, since it was
    /// last marked.
    fn mark(&self, now: u32) -> bool {
        let was_used = self.used.swap(false, Ordering::Relaxed);
        if was_used {
            self.last_used.store(now, Ordering::Relaxed);
        }
        was_used
    }

    /// Whether the ring was not used since it was last marked; `None` if it has no pages to give
    /// back.
    fn at_rest(&self) -> Option<bool> {
        let has_pages = self.counted.load(Ordering::Relaxed) != 0;
        has_pages.then(|| !self.used.load(Ordering::Relaxed))
    }

    /// Whether the clock hand, which passes at `now`, is to have the ring's pages released.
    fn is_due(&self, now: u32) -> bool {
        let counted = self.counted.load(Ordering::Relaxed);
        if counted == 0 {
            return false;
        }
        if self.mark(now) {
            return false;
        }
        let rested = now.wrapping_sub(self.last_used.load(Ordering::Relaxed));
        Total::of(counted).is_over_budget() && (counted >= STEP || rested >= LIGHT_REST)
    }
}

/// How often a ring was used that had been marked as unused, wrapping.
static N_USED: AtomicU32 = AtomicU32::new(0);

fn n_used() -> u32 {
    N_USED.load(Ordering::Relaxed)
}

/// Bytes that this process's rings are taken to occupy.
pub(crate) fn total() -> usize {
    LIGHT_TOTAL.get() + HEAVY_TOTAL.get()
}

/// Bytes that this process's rings are taken to occupy, without light ones.
pub(crate) fn heavy() -> usize {
    HEAVY_TOTAL.get()
}

/// Whether light rings are to be reclaimed.
#[cfg(test)]
pub(crate) fn are_light_rings_over_budget() -> bool {
    LIGHT_TOTAL.is_over_budget()
}

impl Drop for RingUsage {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Moves the clock hand on and reclaims rings that were not used since it last passed, until the
/// budgets are kept or [`EXAMINED_PER_STEP`] streams were examined.
fn sweep() {
    let Some(mut registry) = try_lock(&REGISTRY) else { return };
    if registry.owner != family::process().0 {
        return;
    }
    let now = sys::tick();
    for _ in 0..EXAMINED_PER_STEP.min(2 * registry.streams.len()) {
        if !LIGHT_TOTAL.is_over_budget() && !HEAVY_TOTAL.is_over_budget() {
            return;
        }
        let Some(at) = registry.next() else { return };
        let Some(stream) = registry.streams[at].upgrade() else {
            registry.streams.swap_remove(at);
            registry.hand = at;
            continue;
        };
        if stream.usage().is_due(now) {
            stream.reclaim();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Debug)]
    struct Idle(RingUsage);

    impl Reclaimable for Idle {
        fn reclaim(&self) -> usize {
            0
        }

        fn usage(&self) -> &RingUsage {
            &self.0
        }
    }

    #[test]
    fn entries_of_closed_streams_are_removed_from_the_registry() {
        let mut registry = Registry::new(1);
        let open = |registry: &mut Registry| {
            let stream: Arc<dyn Reclaimable> = Arc::new(Idle(RingUsage::new()));
            registry.add(Arc::downgrade(&stream));
            stream
        };
        let kept: Vec<_> = (0..3 * PRUNE).map(|_| open(&mut registry)).collect();
        for _ in 0..100 * PRUNE {
            drop(open(&mut registry));
        }
        assert!(registry.streams.len() <= 2 * kept.len() + 1, "{}", registry.streams.len());
        let is_listed = |s: &Arc<dyn Reclaimable>| {
            registry.streams.iter().any(|w| w.ptr_eq(&Arc::downgrade(s)))
        };
        assert!(kept.iter().all(is_listed));
        drop(kept);
        for _ in 0..10 * PRUNE {
            drop(open(&mut registry));
        }
        assert!(registry.streams.len() <= PRUNE && registry.streams.capacity() <= 2 * PRUNE);
    }

    #[test]
    fn a_light_ring_is_due_after_a_long_rest_and_a_heavy_one_after_a_round() {
        // What other tests of this process count does not take these below their budgets.
        let many: Vec<_> = (0..2 * LIGHT_BUDGET / LIGHT).map(|_| RingUsage::new()).collect();
        many.iter().for_each(|usage| usage.note(1));
        let (light, heavy) = (RingUsage::new(), RingUsage::new());
        light.note(1);
        heavy.note(2 * HEAVY_BUDGET);
        assert!(!light.is_due(7) && !heavy.is_due(7), "both were used");
        assert!(!light.is_due(6 + LIGHT_REST) && heavy.is_due(6 + LIGHT_REST));
        assert!(light.is_due(7 + LIGHT_REST));
        light.note(1);
        assert!(!light.is_due(8 + LIGHT_REST), "it was used again");
        light.note(STEP);
        assert!(!light.is_due(9 + LIGHT_REST));
        assert!(light.is_due(9 + LIGHT_REST), "it is heavy now");
        assert_eq!(light.clear(), STEP);
        assert!(!light.is_due(0), "it has nothing");
    }
}
