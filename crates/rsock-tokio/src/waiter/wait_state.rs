//! The state of a stream's wait: *polled* by the poll driver, or *armed*, so that the peer rings
//! the stream's doorbell or announces the stream to the driver.
//!
//! INVARIANT: while a task is in the wakers and the source is open, one of the two holds, or the
//! wakers have been woken since. rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::sync::PoisonError;
use std::task::Poll;

/// What the algorithm needs of the source, its doorbells and the wakers.
pub(crate) trait Notifier {
    /// Why a doorbell could not be armed.
    type Error;

    /// Whether anything has happened since `mark`.
    fn has_changed(&self, mark: u64) -> bool;
    /// Whether anything can come through the source.
    fn is_open(&self) -> bool;
    /// Arms the announcement or each doorbell, and sets `is_armed` when one is. Ready if something
    /// has happened since `mark`, or may have.
    fn arm(&self, mark: u64, is_armed: &mut bool) -> Poll<Result<(), Self::Error>>;
    /// Disarms what [`Self::arm`] has armed.
    fn disarm(&self);
    /// Wakes every task that waits.
    fn wake_all(&self);
}

/// See the module.
#[derive(Debug)]
pub(crate) struct WaitState {
    is_armed: Mutex<bool>,
    /// Whether a task may be in the wakers. Changed under the lock.
    is_parked: AtomicBool,
    /// Whether the poll driver has it. Set under the lock, cleared by the driver.
    is_polled: AtomicBool,
    /// The mark that the driver compares with.
    mark: AtomicU64,
    /// The stream has been dropped.
    is_closed: AtomicBool,
}

impl WaitState {
    pub(crate) fn new() -> Self {
        Self {
            is_armed: Mutex::new(false),
            is_parked: AtomicBool::new(false),
            is_polled: AtomicBool::new(false),
            mark: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
        }
    }

    /// The lock, which guards whether anything is armed.
    pub(crate) fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_armed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task is about to try. `remove` takes it out of the wakers and says whether they are empty
    /// then; if so, the doorbell is disarmed, or the task's own progress would ring it.
    pub(crate) fn unpark(&self, notifier: &impl Notifier, remove: impl FnOnce() -> bool) {
        if !self.is_parked.load(Ordering::Acquire) {
            return;
        }
        let mut is_armed = self.lock();
        if remove() {
            self.is_parked.store(false, Ordering::Release);
            disarm(notifier, &mut is_armed);
        }
    }

    /// A task is about to wait. `insert` puts it into the wakers.
    pub(crate) fn park(&self, insert: impl FnOnce()) {
        let _is_armed = self.lock();
        self.is_parked.store(true, Ordering::Release);
        insert();
    }

    /// Has the wakers woken when the source changes after `mark`. Ready if it has changed already,
    /// or may have. The caller has parked. `offer` hands the wait to the poll driver, which refuses
    /// it by false.
    pub(crate) fn wait<N: Notifier>(
        &self,
        notifier: &N,
        mark: u64,
        offer: impl FnOnce() -> bool,
    ) -> Poll<Result<(), N::Error>> {
        let mut is_armed = self.lock();
        if notifier.has_changed(mark) {
            return Poll::Ready(Ok(()));
        }
        if self.is_polled.load(Ordering::Acquire) {
            // Another task waits since an older mark, and the driver, which compares with the new
            // one from now on, may not have noticed what happened between the two.
            if self.mark.swap(mark, Ordering::AcqRel) != mark {
                drop(is_armed);
                notifier.wake_all();
                return Poll::Pending;
            }
            // The driver may have released it meanwhile; then it wakes the tasks after that.
            if self.is_polled.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
        if !*is_armed && notifier.is_open() {
            self.mark.store(mark, Ordering::Release);
            self.is_polled.store(true, Ordering::Release);
            if offer() {
                return Poll::Pending;
            }
            self.is_polled.store(false, Ordering::Release);
        }
        self.arm(notifier, &mut is_armed, mark)
    }

    fn arm<N: Notifier>(
        &self,
        notifier: &N,
        is_armed: &mut bool,
        mark: u64,
    ) -> Poll<Result<(), N::Error>> {
        disarm(notifier, is_armed);
        self.mark.store(mark, Ordering::Release);
        notifier.arm(mark, is_armed)
    }

    pub(crate) fn is_polled(&self) -> bool {
        self.is_polled.load(Ordering::Relaxed)
    }

    /// For the driver: whether there is a reason to wake the tasks, or none to go on polling.
    pub(crate) fn is_due(&self, notifier: &impl Notifier) -> bool {
        notifier.has_changed(self.mark.load(Ordering::Acquire))
            || self.is_closed.load(Ordering::Relaxed)
    }

    /// For the driver: ends polling and wakes the tasks that wait.
    pub(crate) fn release(&self, notifier: &impl Notifier) {
        // Before the wakers are taken: a task that parks after this sees that it is not polled.
        self.is_polled.store(false, Ordering::Release);
        notifier.wake_all();
    }

    /// For the driver: ends polling and arms the announcement or the doorbell.
    pub(crate) fn arm_instead_of_polling(&self, notifier: &impl Notifier) {
        let mut is_armed = self.lock();
        self.is_polled.store(false, Ordering::Release);
        if !self.is_parked.load(Ordering::Acquire) || self.is_closed.load(Ordering::Acquire) {
            return;
        }
        let armed = self.arm(notifier, &mut is_armed, self.mark.load(Ordering::Acquire));
        drop(is_armed);
        if armed.is_ready() {
            // An error is reported again to the task that tries.
            notifier.wake_all();
        }
    }

    /// For the driver: the peer has announced the stream. Wakes the tasks that wait; false if that
    /// is left over from an earlier wait.
    pub(crate) fn on_announcement(&self, notifier: &impl Notifier) -> bool {
        let mut is_armed = self.lock();
        if !*is_armed {
            // A wait that arms after this sees what was announced as a change since its mark.
            return false;
        }
        disarm(notifier, &mut is_armed);
        drop(is_armed);
        // Whatever their marks are: the task that armed last may have seen what was announced.
        notifier.wake_all();
        true
    }

    /// The stream has been dropped: no task waits for it any more.
    pub(crate) fn close(&self, notifier: &impl Notifier) {
        self.is_closed.store(true, Ordering::Release);
        disarm(notifier, &mut self.lock());
    }
}

fn disarm(notifier: &impl Notifier, is_armed: &mut bool) {
    if std::mem::replace(is_armed, false) {
        notifier.disarm();
    }
}
