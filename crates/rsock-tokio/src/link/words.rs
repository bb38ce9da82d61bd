//! How a wait for the ring is looked after: *listed*, so that the hub looks at the ring, or *armed*, so that
//! the peer rings.
//!
//! Invariant: while a task is in the wakers and the ring is there, one of the two holds, or the wakers have
//! been woken since. rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
use std::task::Poll;

/// The ring with its doorbells and the wakers, as far as the algorithm asks them.
pub(crate) trait Source {
    /// Why a doorbell could not be armed.
    type Error;

    fn has_changed(&self, mark: u64) -> bool;
    /// Whether there is a ring to look at.
    fn is_there(&self) -> bool;
    /// Arms each doorbell, and sets `is_armed` when one is. Ready if something has come after `mark`, or may
    /// have.
    fn arm(&self, mark: u64, is_armed: &mut bool) -> Poll<Result<(), Self::Error>>;
    /// Disarms what [`Self::arm`] has armed.
    fn disarm(&self);
    /// Wakes every task that waits.
    fn wake_all(&self);
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Words {
    is_armed: Mutex<bool>,
    /// Whether a task may be in the wakers. Changed under the lock.
    is_parked: AtomicBool,
    /// Whether the hub has it. Set under the lock, cleared by the hub.
    is_listed: AtomicBool,
    /// The mark that the hub compares with.
    mark: AtomicU64,
    /// The stream has been dropped.
    is_closed: AtomicBool,
}

impl Words {
    pub(crate) fn new() -> Self {
        Self {
            is_armed: Mutex::new(false),
            is_parked: AtomicBool::new(false),
            is_listed: AtomicBool::new(false),
            mark: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task is about to try. `remove` takes it out of the wakers, and says whether none is left; then the
    /// doorbell is disarmed, or the task's own progress would ring it.
    pub(crate) fn unpark(&self, source: &impl Source, remove: impl FnOnce() -> bool) {
        if !self.is_parked.load(Ordering::Acquire) {
            return;
        }
        let mut is_armed = self.lock();
        if remove() {
            self.is_parked.store(false, Ordering::Release);
            disarm(source, &mut is_armed);
        }
    }

    /// A task is about to wait. `put` puts it into the wakers.
    pub(crate) fn park(&self, put: impl FnOnce()) {
        let _is_armed = self.lock();
        self.is_parked.store(true, Ordering::Release);
        put();
    }

    /// Has the wakers woken when the ring changes after `mark`. Ready if it has, or may have, changed
    /// already. The caller has parked. `offer` has the hub list it, unless it answers false.
    pub(crate) fn watch<S: Source>(
        &self,
        source: &S,
        mark: u64,
        offer: impl FnOnce() -> bool,
    ) -> Poll<Result<(), S::Error>> {
        let mut is_armed = self.lock();
        if source.has_changed(mark) {
            return Poll::Ready(Ok(()));
        }
        if self.is_listed.load(Ordering::Acquire) {
            // Another task waits since an older mark, and what came after it went unnoticed so far.
            if self.mark.swap(mark, Ordering::AcqRel) != mark {
                drop(is_armed);
                source.wake_all();
                return Poll::Pending;
            }
            // The hub may have taken it off its list meanwhile; then it wakes after that.
            if self.is_listed.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        if !*is_armed && source.is_there() {
            self.mark.store(mark, Ordering::Release);
            self.is_listed.store(true, Ordering::Release);
            if offer() {
                return Poll::Pending;
            }
            self.is_listed.store(false, Ordering::Release);
        }
        self.arm(source, &mut is_armed, mark)
    }

    fn arm<S: Source>(
        &self,
        source: &S,
        is_armed: &mut bool,
        mark: u64,
    ) -> Poll<Result<(), S::Error>> {
        disarm(source, is_armed);
        self.mark.store(mark, Ordering::Release);
        source.arm(mark, is_armed)
    }

    pub(crate) fn is_listed(&self) -> bool {
        self.is_listed.load(Ordering::Relaxed)
    }

    /// For the hub: whether there is a reason to wake, or none to go on looking.
    pub(crate) fn is_due(&self, source: &impl Source) -> bool {
        source.has_changed(self.mark.load(Ordering::Acquire))
            || self.is_closed.load(Ordering::Relaxed)
    }

    /// For the hub: takes it off the list and wakes the tasks that wait.
    pub(crate) fn release(&self, source: &impl Source) {
        // Before the wakers are taken: a task that parks after this finds itself unlisted.
        self.is_listed.store(false, Ordering::Release);
        source.wake_all();
    }

    /// For the hub, which stops looking: the doorbell takes over.
    pub(crate) fn settle(&self, source: &impl Source) {
        let mut is_armed = self.lock();
        self.is_listed.store(false, Ordering::Release);
        if !self.is_parked.load(Ordering::Acquire) || self.is_closed.load(Ordering::Acquire) {
            return;
        }
        let armed = self.arm(source, &mut is_armed, self.mark.load(Ordering::Acquire));
        drop(is_armed);
        if armed.is_ready() {
            // An error shows itself again to the task that tries.
            source.wake_all();
        }
    }

    /// For the hub, which looks again at those that it has settled: takes the doorbell's place. False if
    /// the stream is not waiting for its doorbell any more.
    pub(crate) fn relist(&self, source: &impl Source) -> bool {
        let mut is_armed = self.lock();
        let is_settled = *is_armed && self.is_parked.load(Ordering::Acquire);
        if !is_settled || self.is_closed.load(Ordering::Acquire) {
            return false;
        }
        disarm(source, &mut is_armed);
        // What came since it was armed shows by its mark.
        self.is_listed.store(true, Ordering::Release);
        true
    }

    /// The stream is gone: no task waits for anything here any more.
    pub(crate) fn close(&self, source: &impl Source) {
        self.is_closed.store(true, Ordering::Release);
        disarm(source, &mut self.lock());
    }
}

fn disarm(source: &impl Source, is_armed: &mut bool) {
    if std::mem::replace(is_armed, false) {
        source.disarm();
    }
}
