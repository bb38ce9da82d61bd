//! Threads that sleep in the kernel where the ring cannot wake them: no invitation to the ring meanwhile.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU32, Ordering};

/// A thread that is about to sleep where the ring cannot wake it.
pub(crate) struct KernelOnlyWaiter<'a>(&'a AtomicU32);

impl<'a> KernelOnlyWaiter<'a> {
    /// Counted in `count` until dropped. Takes what the lock of the direction guards as a proof that it is
    /// held: an invitation, which is made under it too, either came before and has been seen, or waits.
    pub(crate) fn new<L>(count: &'a AtomicU32, _locked: &L) -> Self {
        // SYNC(deaf): ordered before the invitation's look by the lock.
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for KernelOnlyWaiter<'_> {
    fn drop(&mut self) {
        // SYNC(deaf): pairs with the Acquire in `is_any`: an invitation comes after the sleep.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

/// Whether an invitation has to wait; asked under the same lock.
pub(crate) fn is_any<L>(count: &AtomicU32, _locked: &L) -> bool {
    count.load(Ordering::Acquire) != 0
}
