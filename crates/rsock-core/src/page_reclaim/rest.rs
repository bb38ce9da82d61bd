//! A process at rest: a thread that sleeps for long reclaims what has not been used meanwhile.
//!
//! A ring that grows makes room for itself, so a process whose streams all come to rest would keep
//! what the last of them have used. So one of the threads that sleep in the library watches the
//! rings: it sleeps for [`REST`] at first, and once more after it has marked all of them, and then
//! gives back the pages of those that are still unused, a few at a time. Then it sleeps as long as
//! it was asked to. A process whose rings are small does nothing of this.

use super::{REGISTRY, Reclaimable, n_used, total};
use crate::interrupt::{self, Section};
use crate::sys;
use rsock_verbs::family;
use rsock_verbs::mutex::try_lock;
use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes of all rings above which they are watched.
const FLOOR: usize = 1 << 20;
/// A ring that was not used for so long, while a thread slept, is at rest.
const REST: Duration = Duration::from_millis(200);
/// The pause between two steps. PERF: a thread that reclaimed ten thousand rings in one go would
/// not see for so long what it waits for.
const PAUSE: Duration = Duration::from_millis(1);
/// Most streams that a step examines, and most bytes that it releases.
const MOST_STREAMS: usize = 64;
const MOST_BYTES: usize = 1 << 20;

/// The last [`Claim`]; 0 if no thread watches the rings.
static CLAIM: AtomicU64 = AtomicU64::new(0);
/// A claim that was not renewed for so many milliseconds is over: its thread has left the sleep by
/// `longjmp`.
const OVER: u32 = 10_000;

/// A thread's claim to watch the rings: its process, above the [`sys::tick`] at which the claim was
/// made or renewed. A forked child does not heed that of its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim(u64);

impl Claim {
    fn now() -> Self {
        Self(u64::from(family::process().0) << 32 | u64::from(sys::tick()))
    }

    /// Whether a claim that is made now has to wait for this one.
    fn holds(self, now: Self) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the ticks alone")]
        let age = (now.0 as u32).wrapping_sub(self.0 as u32);
        self.0 >> 32 == now.0 >> 32 && age < OVER
    }

    /// Takes the place of `last`, unless another one has done so.
    fn replace(self, last: Self) -> Option<Self> {
        let replaced = CLAIM.compare_exchange(last.0, self.0, Ordering::Relaxed, Ordering::Relaxed);
        replaced.is_ok().then_some(self)
    }
}

/// What [`n_used`] was when a round began, of the last round that ended. As long as no ring is
/// used, another round would find the same: rings that a child shares, or that hold unread bytes.
static DONE: AtomicU32 = AtomicU32::new(0);

/// One wait of the calling thread, which may sleep several times. While it watches the rings, it
/// sleeps for short times only.
#[derive(Debug, Default)]
pub struct Rest {
    watcher: Option<Watcher>,
    /// Whether the next sleep lasts as long as the watcher wants.
    is_whole: bool,
}

/// The calling thread watches the rings, until this is dropped.
#[derive(Debug)]
struct Watcher {
    claim: Claim,
    next: Next,
    /// What [`n_used`] was when the round began.
    n_used: u32,
}

/// What a watcher does after its next nap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// It marks all rings as unused.
    Mark,
    /// It begins to reclaim those that are still unused.
    Reclaim,
    /// It goes on, at this stream.
    GoOn(usize),
    Nothing,
}

impl Rest {
    /// How long the next sleep may last, which is to last for `limit`. Begins to watch the rings if
    /// that is long, if there is much to give back, and if no other thread does.
    pub fn bound(&mut self, limit: Option<Duration>) -> Option<Duration> {
        if self.watcher.is_none() && limit.is_none_or(|limit| limit > REST) {
            self.watcher = Watcher::begin();
        }
        let nap = self.watcher.as_ref().map(Watcher::nap);
        self.is_whole = nap.is_some_and(|nap| limit.is_none_or(|limit| limit >= nap));
        [limit, nap].into_iter().flatten().min()
    }

    /// Whether [`Self::work`] follows a sleep of [`Self::bound`] in which nothing happened.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.watcher.is_some() && self.is_whole
    }

    /// Marks or reclaims some rings.
    pub fn work(&mut self) {
        if let Some(watcher) = &mut self.watcher
            && !watcher.step()
        {
            self.watcher = None;
        }
    }
}

impl Watcher {
    fn begin() -> Option<Self> {
        let is_done = || DONE.load(Ordering::Relaxed) == n_used();
        // A handler may have interrupted libc's allocator.
        if total() <= FLOOR || is_done() || interrupt::is_in_handler() {
            return None;
        }
        let (last, now) = (Claim(CLAIM.load(Ordering::Relaxed)), Claim::now());
        let claim = if last.holds(now) { None } else { now.replace(last) };
        claim.map(|claim| Self { claim, next: Next::Mark, n_used: n_used() })
    }

    /// How long the next sleep lasts, if nothing happens.
    fn nap(&self) -> Duration {
        if let Next::GoOn(_) = self.next { PAUSE } else { REST }
    }

    /// Goes on after a nap in which nothing happened. False if there is nothing left to do.
    fn step(&mut self) -> bool {
        let _section = Section::enter();
        let Some(renewed) = Claim::now().replace(self.claim) else { return false };
        self.claim = renewed;
        // A thread that holds the lock reclaims pages itself.
        let Some(registry) = try_lock(&REGISTRY) else { return true };
        // A forked child leaves the streams that it has inherited to its parent.
        if registry.owner == family::process().0 {
            self.examine(&registry.streams);
            if self.next != Next::Nothing {
                return true;
            }
            if self.n_used != n_used() && total() > FLOOR {
                // What was used meanwhile is at rest later.
                self.next = Next::Mark;
                return true;
            }
        }
        DONE.store(self.n_used, Ordering::Relaxed);
        false
    }

    fn examine(&mut self, streams: &[Weak<dyn Reclaimable>]) {
        match self.next {
            Next::Mark => {
                // First: a ring that is used from now on counts.
                self.n_used = n_used();
                mark(streams);
                self.next = Next::Reclaim;
            }
            Next::Reclaim => self.reclaim(streams, 0),
            Next::GoOn(at) => self.reclaim(streams, at),
            Next::Nothing => {}
        }
    }

    /// Reclaims the unused ones of some rings, from that at index `at` on.
    fn reclaim(&mut self, streams: &[Weak<dyn Reclaimable>], at: usize) {
        let (mut n_streams, mut n_bytes) = (0, 0);
        let mut end = at;
        for stream in streams.iter().skip(at) {
            end += 1;
            // Those without pages cost little, and a wait that begins anew gets beyond them.
            if let Some(stream) = stream.upgrade()
                && let Some(is_at_rest) = stream.usage().at_rest()
            {
                n_streams += 1;
                n_bytes += if is_at_rest { stream.reclaim() } else { 0 };
            }
            if n_streams >= MOST_STREAMS || n_bytes >= MOST_BYTES {
                break;
            }
        }
        self.next = if end < streams.len() { Next::GoOn(end) } else { Next::Nothing };
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _ = Claim(0).replace(self.claim);
    }
}

/// Marks all rings as unused from now on.
fn mark(streams: &[Weak<dyn Reclaimable>]) {
    let now = sys::tick();
    for stream in streams.iter().filter_map(Weak::upgrade) {
        stream.usage().mark(now);
    }
}

/// Sleeps by `sleep`, which takes the longest time, for at most `limit`, and watches the rings
/// meanwhile. `sleep` notices a signal that comes between two sleeps.
///
/// # Errors
/// As `sleep`.
pub(crate) fn sleep(
    limit: Option<Duration>,
    mut sleep: impl FnMut(Option<Duration>) -> io::Result<usize>,
) -> io::Result<usize> {
    let mut rest = Rest::default();
    let until = limit.and_then(|limit| sys::now().checked_add(limit));
    let mut left = limit;
    loop {
        let slept = sleep(rest.bound(left));
        if !rest.is_due() || !matches!(slept, Ok(0)) {
            return slept;
        }
        rest.work();
        left = sys::time_left(until);
        if left == Some(Duration::ZERO) {
            return slept;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_reclaim::{RingUsage, STEP};
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[derive(Debug)]
    struct Ring {
        usage: RingUsage,
        n_reclaimed: AtomicUsize,
    }

    impl Ring {
        /// A ring that was used.
        fn used() -> Arc<Self> {
            let ring = Self { usage: RingUsage::new(), n_reclaimed: AtomicUsize::new(0) };
            ring.usage.note(STEP);
            Arc::new(ring)
        }

        fn n_reclaimed(&self) -> usize {
            self.n_reclaimed.load(Ordering::Relaxed)
        }
    }

    impl Reclaimable for Ring {
        fn reclaim(&self) -> usize {
            self.n_reclaimed.fetch_add(1, Ordering::Relaxed);
            self.usage.clear()
        }

        fn usage(&self) -> &RingUsage {
            &self.usage
        }
    }

    #[test]
    fn rings_that_are_not_used_for_a_nap_are_reclaimed_once_in_several_steps() {
        let rings: Vec<_> = (0..3 * MOST_STREAMS).map(|_| Ring::used()).collect();
        let weak = |ring: &Arc<Ring>| Arc::downgrade(ring) as Weak<dyn Reclaimable>;
        let streams: Vec<_> = rings.iter().map(weak).collect();
        let mut watcher = Watcher { claim: Claim(1), next: Next::Mark, n_used: 0 };
        assert_eq!(watcher.nap(), REST);
        watcher.examine(&streams);
        assert!(rings.iter().all(|ring| ring.n_reclaimed() == 0), "only marked");
        let used_again = [0, MOST_STREAMS, 3 * MOST_STREAMS - 1];
        used_again.iter().for_each(|i| rings[*i].usage.note(1));
        assert_eq!(watcher.nap(), REST);
        let mut n_steps = 0;
        while watcher.next != Next::Nothing {
            watcher.examine(&streams);
            n_steps += 1;
            assert!(watcher.nap() == PAUSE || watcher.next == Next::Nothing);
        }
        assert_ne!(watcher.n_used, n_used(), "some were used after they were marked");
        assert!(n_steps >= 3, "{n_steps}");
        for (i, ring) in rings.iter().enumerate() {
            assert_eq!(ring.n_reclaimed(), usize::from(!used_again.contains(&i)), "{i}");
        }
    }

    #[test]
    fn a_sleep_that_is_shorter_than_a_nap_is_no_rest() {
        let watcher = Watcher { claim: Claim(1), next: Next::Mark, n_used: 0 };
        let mut rest = Rest { watcher: Some(watcher), is_whole: false };
        let (less, more) = (REST - PAUSE, REST + PAUSE);
        assert_eq!((rest.bound(Some(less)), rest.is_due()), (Some(less), false));
        assert_eq!((rest.bound(Some(more)), rest.is_due()), (Some(REST), true));
        assert_eq!((rest.bound(None), rest.is_due()), (Some(REST), true));
    }

    #[test]
    fn a_claim_ends_with_its_process_or_when_it_was_not_renewed() {
        let claim = |process: u64, tick: u32| Claim(process << 32 | u64::from(tick));
        assert!(claim(7, 100).holds(claim(7, 100)));
        assert!(claim(7, 100).holds(claim(7, 99 + OVER)));
        assert!(!claim(7, 100).holds(claim(7, 100 + OVER)), "its thread has gone");
        assert!(!claim(7, 100).holds(claim(8, 100)), "of the parent");
        assert!(claim(7, u32::MAX).holds(claim(7, 5)), "ticks wrap");
        assert!(!Claim(0).holds(claim(7, 100)), "none");
    }
}
