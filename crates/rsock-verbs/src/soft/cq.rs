//! Completion queues.
//!
//! There is no ring of completions: a queue polls the queue pair that completes to it, which is
//! found without a lock.

use super::bell::SoftBell;
use super::qp::QpCore;
use super::wait::Waiters;
use super::{Soft, SoftCq};
use crate::device::{CompletionQueue, Parked};
use crate::error::Error;
use crate::wc::Completion;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

impl SoftCq {
    pub(super) fn new() -> Result<Self, Error> {
        Ok(Self {
            qp: OnceLock::new(),
            attached: AtomicPtr::new(ptr::null_mut()),
            pausing: Mutex::new(()),
            waiters: Arc::new(Waiters::new()?),
        })
    }

    pub(super) fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    /// From here on `qp` completes here.
    pub(super) fn attach(&self, qp: &Arc<QpCore>) {
        // A second queue pair would be ignored; there is none.
        let kept = self.qp.get_or_init(|| Arc::clone(qp));
        self.attached.store(Arc::as_ptr(kept).cast_mut(), Ordering::Release);
    }

    /// The queue pair is going away: what of it was not polled is lost, as with any device.
    ///
    /// Waits while another thread is in [`exclusively`](CompletionQueue::exclusively): that uses
    /// the lane, whose memory goes to another queue pair soon.
    pub(super) fn detach(&self) {
        let _pausing = self.pausing();
        self.attached.store(ptr::null_mut(), Ordering::Release);
    }

    fn pausing(&self) -> MutexGuard<'_, ()> {
        self.pausing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue pair, unless it is going away. PERF: one load, as a receive asks five times.
    #[inline(always)]
    fn qp(&self) -> Option<&QpCore> {
        // SAFETY: null, or the queue pair that `self.qp` holds for as long as this queue lives.
        unsafe { self.attached.load(Ordering::Acquire).as_ref() }
    }
}

impl SoftCq {
    /// Has the next thing that becomes ready announced to the ready set that
    /// [watches](super::SoftReadySet::watch) this queue. The caller checks for work afterwards.
    pub fn announce_next(&self) {
        self.waiters.announce_next();
    }

    /// Undoes [`Self::announce_next`] for what this process itself makes ready.
    pub fn announce_no_more(&self) {
        self.waiters.announce_no_more();
    }

    /// Whether no other process uses this queue: a fork shares all that exist.
    #[must_use]
    pub fn is_unshared(&self) -> bool {
        self.waiters.are_unshared()
    }
}

impl CompletionQueue<Soft> for SoftCq {
    #[inline]
    fn poll(&self, out: &mut [Completion]) -> usize {
        let Some(qp) = self.qp() else { return 0 };
        let n = if qp.has_events() { qp.poll_sends(out) } else { 0 };
        n + qp.poll_recvs(&mut out[n..])
    }

    #[inline(always)]
    fn poll_one(&self) -> Option<Completion> {
        let qp = self.qp()?;
        if qp.has_events()
            && let Some(sent) = Completion::one(|out| qp.poll_sends(out))
        {
            return Some(sent);
        }
        qp.poll_recv()
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.qp().is_some_and(|qp| qp.is_ready())
    }

    #[inline(always)]
    fn has_granted_room(&self) -> bool {
        self.qp().is_some_and(|qp| qp.has_granted_room())
    }

    fn arm(&self, bell: &SoftBell) -> bool {
        self.waiters.arm_bell_unless(bell.name(), || self.is_ready())
    }

    fn disarm(&self, bell: &SoftBell) {
        self.waiters.disarm_bell(bell.id());
    }

    fn park(&self, timeout: Option<Duration>) -> Parked {
        self.park_since(self.wake_epoch(), timeout)
    }

    fn wake_epoch(&self) -> u32 {
        self.waiters.epoch()
    }

    fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked {
        self.waiters.park(epoch, timeout, || self.is_ready())
    }

    fn wake_waiters(&self) {
        self.waiters.wake_all();
    }

    fn exclusively(&self, f: &mut dyn FnMut()) -> bool {
        // A forked child must not pause a queue that it shares with its parent, even for a moment.
        if !self.is_unshared() {
            return false;
        }
        let _pausing = self.pausing();
        self.qp().is_some_and(|qp| qp.exclusively(f))
    }

    fn punch(&self) {
        if let Some(qp) = self.qp() {
            qp.punch_lane();
        }
    }

    fn is_peer_elsewhere(&self) -> Option<bool> {
        self.waiters.is_peer_elsewhere()
    }
}
