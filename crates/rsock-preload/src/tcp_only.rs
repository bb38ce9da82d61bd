//! Whether the whole process stays on TCP for good: then no socket is adopted any more.
//! `process_handoff` moves its streams when that begins.

use rsock_core::accelerate::FallbackReason;
use std::sync::atomic::{AtomicU8, Ordering, fence};

/// The reason; `FallbackReason::None` as long as streams may leave TCP.
static REASON: AtomicU8 = AtomicU8::new(FallbackReason::None as u8);

/// Whether the process stays on TCP.
#[inline]
pub(crate) fn is_on() -> bool {
    REASON.load(Ordering::Relaxed) != FallbackReason::None as u8
}

/// Whether the program restricts its own system calls: the hooks make none of their own then.
#[inline]
pub(crate) fn is_sandboxed() -> bool {
    REASON.load(Ordering::Relaxed) == FallbackReason::Sandbox as u8
}

/// Keeps the process on TCP from now on. Streams that are on a ring stay there.
pub(crate) fn note(why: FallbackReason) {
    REASON.store(why as u8, Ordering::SeqCst);
    // SYNC(tcp-only): a thread that adopts a candidate which the caller does not see below loads
    // the reason after this fence in the order of `SeqCst`, for it claims the entry by a
    // compare-and-swap first.
    fence(Ordering::SeqCst);
}
