//! Replaces a table word in one thread, while other threads load it and the program may close the
//! descriptor.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Replaces `entry` if it still is `old`; returns whether it was.
pub(super) fn replace(entry: &AtomicU64, old: u64, new: u64) -> bool {
    // SYNC(claim): Release publishes what `new` names, Acquire takes what `old` named.
    entry.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Replaces `seen` by the word that `make` returns. Meanwhile the word is `claim`, so that no other
/// thread calls `make` for it. A word in `Ok` refers to a new slot, which `discard` retires if the
/// descriptor was closed meanwhile. Does nothing if `entry` is no longer `seen`.
pub(super) fn convert(
    entry: &AtomicU64,
    seen: u64,
    claim: u64,
    make: impl FnOnce() -> Result<u64, u64>,
    discard: impl FnOnce(u64),
) {
    if !replace(entry, seen, claim) {
        return;
    }
    match make() {
        Ok(made) => {
            if !replace(entry, claim, made) {
                discard(made);
            }
        }
        Err(left) => _ = replace(entry, claim, left),
    }
}

/// Takes the word out: of several threads that close a descriptor, one gets what it referred to.
pub(super) fn take(entry: &AtomicU64) -> u64 {
    // SYNC(gate): SeqCst, see `slot::Gate::enter`.
    entry.swap(0, Ordering::SeqCst)
}

/// Counts a thread that is about to wait in the kernel alone, and waits for adoptions under way
/// that may not have seen the count; `yield_now` is called in between.
pub(super) fn begin_wait(
    waiters: &AtomicU32,
    is_being_adopted: impl Fn() -> bool,
    yield_now: impl Fn(),
) {
    // SYNC(kernel-waiters): a thread that adopts claims the entry, and then loads the count; this
    // one counts, and then loads the entry. One of the two sees the other. Pairs with the fence in
    // `no_waiters`.
    waiters.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    while is_being_adopted() {
        yield_now();
    }
}

/// Ends what [`begin_wait`] began.
pub(super) fn end_wait(waiters: &AtomicU32) {
    // SYNC(kernel-waiters): a thread that finds the count at zero sees everything the wait has
    // done.
    waiters.fetch_sub(1, Ordering::Release);
}

/// Whether no thread waits in the kernel alone. To be called after the entry has been claimed.
pub(super) fn no_waiters<'a>(counts: impl IntoIterator<Item = &'a AtomicU32>) -> bool {
    // SYNC(kernel-waiters): pairs with the fence in `begin_wait`.
    fence(Ordering::SeqCst);
    counts.into_iter().all(|waiters| waiters.load(Ordering::Acquire) == 0)
}
