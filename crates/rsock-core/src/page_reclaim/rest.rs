//! A process at rest: a thread that sleeps for long reclaims what has not been used meanwhile.
//!
//! A ring that grows makes room for itself, so a process whose streams all come to rest would keep
//! what the last of them have used. So one of the threads that sleep in the library watches the
//! rings: it sleeps for [`REST`] at first, and once more after it has marked all of them, and then
//! gives back the pages of those that are still unused, a few at a time. Then it sleeps as long as
//! it was asked to. A process whose rings are small does nothing of this.

use super::{HEAVY_TOTAL, LIGHT_TOTAL, REGISTRY, Reclaimable};
use crate::interrupt::Section;
use crate::sys;
use rsock_verbs::family;
use std::io;
use std::sync::Weak;
use std::sync::atomic::{AtomicU32, Ordering};
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

/// The process whose thread watches the rings; 0 for none. A forked child begins without.
static WATCHED_BY: AtomicU32 = AtomicU32::new(0);

/// The calling thread watches the rings, until this is dropped.
#[derive(Debug)]
struct Watcher {
    next: Next,
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

impl Watcher {
    /// For a thread that is about to sleep for at most `limit`. `None` if that is short, if there
    /// is little to give back, or if another thread watches the rings.
    fn begin(limit: Option<Duration>) -> Option<Self> {
        let is_wanted =
            LIGHT_TOTAL.get() + HEAVY_TOTAL.get() > FLOOR && limit.is_none_or(|limit| limit > REST);
        if !is_wanted {
            return None;
        }
        let here = family::process().0;
        let last = WATCHED_BY.load(Ordering::Relaxed);
        let swap = || WATCHED_BY.compare_exchange(last, here, Ordering::Relaxed, Ordering::Relaxed);
        (last != here && swap().is_ok()).then_some(Self { next: Next::Mark })
    }

    /// How long the next sleep lasts, if nothing happens.
    fn nap(&self) -> Duration {
        if let Next::GoOn(_) = self.next { PAUSE } else { REST }
    }

    /// Goes on after a nap in which nothing happened. False if there is nothing left to do.
    fn step(&mut self) -> bool {
        let _section = Section::enter();
        // A thread that holds the lock reclaims pages itself.
        let Ok(registry) = REGISTRY.try_lock() else { return true };
        let is_here = registry.owner == family::process().0;
        is_here && self.examine(&registry.streams)
    }

    fn examine(&mut self, streams: &[Weak<dyn Reclaimable>]) -> bool {
        self.next = match self.next {
            Next::Mark => {
                mark(streams);
                Next::Reclaim
            }
            Next::Reclaim => reclaim(streams, 0),
            Next::GoOn(at) => reclaim(streams, at),
            Next::Nothing => Next::Nothing,
        };
        self.next != Next::Nothing
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let here = family::process().0;
        let _ = WATCHED_BY.compare_exchange(here, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// Marks all rings as unused from now on.
fn mark(streams: &[Weak<dyn Reclaimable>]) {
    let now = sys::tick();
    for stream in streams.iter().filter_map(Weak::upgrade) {
        stream.usage().mark(now);
    }
}

/// Reclaims the unused ones of some rings, from that at index `at` on.
fn reclaim(streams: &[Weak<dyn Reclaimable>], at: usize) -> Next {
    let mut n_bytes = 0;
    let mut end = at;
    for stream in streams.iter().skip(at).take(MOST_STREAMS) {
        end += 1;
        if let Some(stream) = stream.upgrade()
            && stream.usage().is_unused()
        {
            n_bytes += stream.reclaim();
        }
        if n_bytes >= MOST_BYTES {
            break;
        }
    }
    if end < streams.len() { Next::GoOn(end) } else { Next::Nothing }
}

/// How a sleep ended.
pub trait Slept {
    /// Whether its time was over.
    fn is_timeout(&self) -> bool;
}

impl Slept for io::Result<usize> {
    fn is_timeout(&self) -> bool {
        matches!(self, Ok(0))
    }
}

/// What `epoll_wait(2)` returns.
impl Slept for libc::c_int {
    fn is_timeout(&self) -> bool {
        *self == 0
    }
}

/// Sleeps by `sleep`, which takes the longest time, for at most `limit`; if the process is at rest
/// meanwhile, reclaims pages of its rings. `in_core` runs each step of that.
pub fn sleep<R: Slept>(
    limit: Option<Duration>,
    mut sleep: impl FnMut(Option<Duration>) -> R,
    in_core: impl Fn(&mut dyn FnMut() -> bool) -> bool,
) -> R {
    let Some(mut watcher) = Watcher::begin(limit) else { return sleep(limit) };
    let until = limit.and_then(|limit| sys::now().checked_add(limit));
    loop {
        let nap = watcher.nap();
        if sys::time_left(until).is_some_and(|left| left <= nap) {
            break;
        }
        let slept = sleep(Some(nap));
        if !slept.is_timeout() {
            return slept;
        }
        if !in_core(&mut || watcher.step()) {
            break;
        }
    }
    drop(watcher);
    sleep(sys::time_left(until))
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
        let mut watcher = Watcher { next: Next::Mark };
        assert_eq!(watcher.nap(), REST);
        assert!(watcher.examine(&streams));
        assert!(rings.iter().all(|ring| ring.n_reclaimed() == 0), "only marked");
        let used_again = [0, MOST_STREAMS, 3 * MOST_STREAMS - 1];
        used_again.iter().for_each(|i| rings[*i].usage.note(1));
        assert_eq!(watcher.nap(), REST);
        let mut n_steps = 1;
        while watcher.examine(&streams) {
            assert_eq!(watcher.nap(), PAUSE);
            n_steps += 1;
        }
        assert!(n_steps >= 3, "{n_steps}");
        for (i, ring) in rings.iter().enumerate() {
            assert_eq!(ring.n_reclaimed(), usize::from(!used_again.contains(&i)), "{i}");
        }
        assert!(!watcher.examine(&streams), "nothing more to do");
    }
}
