//! Turning what a table word says into something else, by one thread, while others look at the word and
//! the program may close the descriptor.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Whether `entry` was `old` and is `new` now.
pub(super) fn replace(entry: &AtomicU64, old: u64, new: u64) -> bool {
    // SYNC(claim): Release publishes what `new` names, Acquire takes what `old` named.
    entry.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Replaces `seen` by what `make` makes of it, and lets `claim` stand in between, which keeps other threads
/// from making the same. What `make` answers is the new word: with `Ok` it names something, which `discard`
/// ends if the descriptor was closed meanwhile. Does nothing where `entry` is not `seen` any more.
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

/// Takes the word out: of several threads that close a descriptor, one gets what it named.
pub(super) fn take(entry: &AtomicU64) -> u64 {
    // SYNC(gate): SeqCst, see `slot::Gate::enter`.
    entry.swap(0, Ordering::SeqCst)
}

/// Counts a thread that is about to wait in the kernel alone, and waits for adoptions under way that may
/// not have seen it; `yield_now` is called in between.
pub(super) fn begin_wait(
    waiters: &AtomicU32,
    is_being_adopted: impl Fn() -> bool,
    yield_now: impl Fn(),
) {
    // SYNC(kernel-waiters): a thread that adopts claims the entry, and then looks here; we count, and then look at
    // the entry. One of the two sees the other. Pairs with the fence in `is_heard`.
    waiters.fetch_add(1, Ordering::Relaxed);
    fence(Ordering::SeqCst);
    while is_being_adopted() {
        yield_now();
    }
}

/// Ends what [`count_in`] began.
pub(super) fn end_wait(waiters: &AtomicU32) {
    // SYNC(kernel-waiters): a thread that finds the count at zero finds what the wait has left behind.
    waiters.fetch_sub(1, Ordering::Release);
}

/// Whether no thread waits in the kernel alone. To be asked after the entry has been claimed.
pub(super) fn no_waiters<'a>(counts: impl IntoIterator<Item = &'a AtomicU32>) -> bool {
    // SYNC(kernel-waiters): pairs with the fence in `count_in`.
    fence(Ordering::SeqCst);
    counts.into_iter().all(|waiters| waiters.load(Ordering::Acquire) == 0)
}
