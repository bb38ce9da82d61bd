//! Threads that sleep in the kernel where the ring cannot wake them: the peer is not invited to the
//! ring meanwhile.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, Ordering};

/// A thread that is about to sleep where the ring cannot wake it.
pub(crate) struct KernelOnlyWaiter<'a>(&'a AtomicU32);

impl<'a> KernelOnlyWaiter<'a> {
    /// Counted in `count` until dropped. Takes what the lock of the direction guards as a proof
    /// that it is held. An invitation is made under that lock too: it either came before this
    /// waiter, and has been seen, or comes after it.
    pub(crate) fn new<L>(count: &'a AtomicU32, _locked: &L) -> Self {
        // SYNC(kernel-only): ordered before the read of an invitation by the lock.
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for KernelOnlyWaiter<'_> {
    fn drop(&mut self) {
        // SYNC(kernel-only): pairs with the Acquire in `is_any`: an invitation comes after the
        // sleep.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Whether an invitation has to wait; asked under the same lock.
pub(crate) fn is_any<L>(count: &AtomicU32, _locked: &L) -> bool {
    count.load(Ordering::Acquire) != 0
}
