//! Keeps the memory of idle streams small.
//!
//! A receive ring is sparse: pages are taken when the peer first writes them, and stay. A process
//! with a thousand streams that each moved a megabyte once would keep half a gigabyte. So every
//! process has a budget; when its rings together exceed it, those that have not been used for a
//! while and hold no unread byte give their pages back. There is no timer and no thread: growth of
//! one stream pays for the trimming of others. Rings in constant use are never trimmed, even above
//! the budget.

use rsock_verbs::family;
use std::fmt::Debug;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};

/// Ring bytes that a process may keep without anybody giving way.
const BUDGET: usize = 4 << 20;
/// Growth is counted in steps of this many bytes.
pub(super) const STEP: usize = 64 << 10;
/// Streams looked at per step, so that a step costs a bounded time.
const LOOKS: usize = 32;

/// Something whose pages can be given back.
pub(super) trait Trim: Debug + Send + Sync {
    /// Gives back what holds nothing, unless in use; how many bytes of [`STEP`]s that frees.
    fn trim(&self) -> usize;
    /// What the clock hand looks at.
    fn usage(&self) -> &Usage;
}

/// Per stream, private to the process.
#[derive(Debug, Default)]
pub(super) struct Usage {
    /// Used since the hand passed last.
    used: AtomicBool,
    /// Bytes accounted for.
    counted: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Registry {
    owner: u32,
    streams: Vec<Weak<dyn Trim>>,
    hand: usize,
    /// How many entries there may be before those of closed streams are taken out.
    prune_at: usize,
}

/// The least number of entries that are searched for closed streams.
const PRUNE: usize = 64;

static TOTAL: AtomicUsize = AtomicUsize::new(0);
static REGISTRY: Mutex<Registry> = Mutex::new(Registry::new(0));

impl Registry {
    const fn new(owner: u32) -> Self {
        Self { owner, streams: Vec::new(), hand: 0, prune_at: PRUNE }
    }

    /// Adds a stream. Entries of closed streams, each of which keeps the allocation of its stream
    /// alive, go when the list has doubled: it stays within twice the open streams, at a cost for
    /// each of them that does not depend on their number.
    fn add(&mut self, stream: Weak<dyn Trim>) {
        if self.streams.len() >= self.prune_at {
            self.streams.retain(|stream| stream.strong_count() != 0);
            self.prune_at = PRUNE.max(2 * self.streams.len());
            self.streams.shrink_to(self.prune_at);
        }
        self.streams.push(stream);
    }
}

/// The list of streams, held from before a fork until after it, in both processes.
#[must_use]
#[derive(Debug)]
pub(crate) struct Held {
    _registry: MutexGuard<'static, Registry>,
}

/// Takes the list over a fork: a child would find it locked for ever if another thread was trimming.
pub(crate) fn hold_for_fork() -> Held {
    Held { _registry: REGISTRY.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// Makes a stream known; not one of a thread that holds the list for its fork.
pub(super) fn register(stream: Weak<dyn Trim>) {
    if family::is_forking() {
        return;
    }
    crate::fork::watch();
    let mut registry = REGISTRY.lock().unwrap_or_else(PoisonError::into_inner);
    let here = family::process().0;
    if registry.owner != here {
        // A forked child leaves inherited streams to whoever made them.
        *registry = Registry::new(here);
        TOTAL.store(0, Ordering::Relaxed);
    }
    registry.add(stream);
}

impl Usage {
    /// Notes that `bytes` of the ring (a multiple of [`STEP`] is enough) are in use now.
    #[inline]
    pub(super) fn note(&self, bytes: usize) {
        if !self.used.load(Ordering::Relaxed) {
            self.used.store(true, Ordering::Relaxed);
        }
        if bytes >= self.counted.load(Ordering::Relaxed) + STEP {
            self.grow(bytes);
        }
    }

    #[cold]
    fn grow(&self, bytes: usize) {
        let old = self.counted.swap(bytes, Ordering::Relaxed);
        let total = TOTAL.fetch_add(bytes.saturating_sub(old), Ordering::Relaxed);
        if total + bytes.saturating_sub(old) > BUDGET {
            sweep();
        }
    }

    /// Notes that nothing of the ring is in use any more; how many bytes were.
    pub(super) fn clear(&self) -> usize {
        let old = self.counted.swap(0, Ordering::Relaxed);
        // Saturating, because a fork resets the total and not the streams.
        let _ = TOTAL
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |t| Some(t.saturating_sub(old)));
        old
    }
}

impl Drop for Usage {
    fn drop(&mut self) {
        self.clear();
    }
}

/// Bytes that this process's rings are taken to occupy.
#[cfg(test)]
pub(crate) fn total() -> usize {
    TOTAL.load(Ordering::Relaxed)
}

/// Moves the hand on, trimming what was not used since it last came by, until the budget is kept
/// or enough was looked at.
fn sweep() {
    let Ok(mut registry) = REGISTRY.try_lock() else { return };
    if registry.owner != family::process().0 {
        return;
    }
    for _ in 0..LOOKS.min(2 * registry.streams.len()) {
        if TOTAL.load(Ordering::Relaxed) <= BUDGET || registry.streams.is_empty() {
            return;
        }
        let at = registry.hand % registry.streams.len();
        let Some(stream) = registry.streams[at].upgrade() else {
            registry.streams.swap_remove(at);
            continue;
        };
        registry.hand = at + 1;
        let usage = stream.usage();
        if usage.counted.load(Ordering::Relaxed) == 0 || usage.used.swap(false, Ordering::Relaxed) {
            continue;
        }
        stream.trim();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Debug, Default)]
    struct Idle(Usage);

    impl Trim for Idle {
        fn trim(&self) -> usize {
            0
        }

        fn usage(&self) -> &Usage {
            &self.0
        }
    }

    #[test]
    fn closed_streams_leave_nothing_in_the_registry() {
        let mut registry = Registry::new(1);
        let open = |registry: &mut Registry| {
            let stream: Arc<dyn Trim> = Arc::new(Idle::default());
            registry.add(Arc::downgrade(&stream));
            stream
        };
        let kept: Vec<_> = (0..3 * PRUNE).map(|_| open(&mut registry)).collect();
        for _ in 0..100 * PRUNE {
            drop(open(&mut registry));
        }
        assert!(registry.streams.len() <= 2 * kept.len() + 1, "{}", registry.streams.len());
        let is_listed =
            |s: &Arc<dyn Trim>| registry.streams.iter().any(|w| w.ptr_eq(&Arc::downgrade(s)));
        assert!(kept.iter().all(is_listed));
        drop(kept);
        for _ in 0..10 * PRUNE {
            drop(open(&mut registry));
        }
        assert!(registry.streams.len() <= PRUNE && registry.streams.capacity() <= 2 * PRUNE);
    }
}
