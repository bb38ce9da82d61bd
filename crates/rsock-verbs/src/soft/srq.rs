//! Shared receive queues: several queue pairs of one domain take their receives from one queue.
//!
//! A message that finds no receive waits in its lane. The queue records which completion queues
//! found it empty, and wakes their waiters when a receive is posted.

use super::Link;
use super::pd::SoftPd;
use super::queue::{MAX_SGE, RecvQueue, Sges};
use super::wait::Waiters;
use crate::device::SharedReceiveQueue;
use crate::error::{Error, PostError};
use crate::family::{FamilyBox, FamilySafe, Lock};
use crate::types::{Access, WrId};
use crate::wr::RecvWr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A shared receive queue.
#[derive(Debug)]
pub struct SoftSrq {
    core: Arc<SrqCore>,
}

/// The part that queue pairs hold.
#[derive(Debug)]
pub(super) struct SrqCore {
    queue: RecvQueue,
    shared: FamilyBox<SrqShared>,
    /// Waiters of completion queues that found this queue empty since the last post.
    starved: Mutex<Vec<Weak<Waiters>>>,
    depth: u32,
    link: Arc<Link>,
}

#[derive(Debug)]
#[repr(C, align(128))]
struct SrqShared {
    /// Serialises posters and takers.
    lock: Lock<()>,
    /// Receives taken, and posted. Written under the lock.
    head: AtomicU32,
    tail: AtomicU32,
}

// SAFETY: atomics, and a lock around a unit.
unsafe impl FamilySafe for SrqShared {}

impl SoftSrq {
    pub(super) fn new(pd: &Arc<SoftPd>, depth: u32, max_sge: u32) -> Result<Self, Error> {
        if depth == 0 || depth > 1 << 20 || max_sge as usize > MAX_SGE {
            return Err(Error::Invalid("shared receive queue"));
        }
        let zero = || AtomicU32::new(0);
        let shared = FamilyBox::new(SrqShared { lock: Lock::new(()), head: zero(), tail: zero() })
            .ok_or(Error::Exhausted("family memory"))?;
        let core = SrqCore {
            queue: RecvQueue::new(depth, max_sge)?,
            shared,
            starved: Mutex::default(),
            depth,
            link: Arc::clone(pd.link()),
        };
        Ok(Self { core: Arc::new(core) })
    }

    pub(super) fn core(&self) -> &Arc<SrqCore> {
        &self.core
    }
}

impl SrqCore {
    pub(super) fn link(&self) -> &Arc<Link> {
        &self.link
    }

    pub(super) fn max_sge(&self) -> u32 {
        self.queue.max_sge()
    }

    pub(super) fn has_any(&self) -> bool {
        let shared = &self.shared;
        shared.head.load(Ordering::Relaxed) != shared.tail.load(Ordering::Acquire)
    }

    /// Takes the oldest receive. If there is none, `waiters` are woken at the next post.
    pub(super) fn take(&self, waiters: &Arc<Waiters>) -> Option<(WrId, Sges)> {
        let _guard = self.shared.lock.lock();
        let head = self.shared.head.load(Ordering::Relaxed);
        if head == self.shared.tail.load(Ordering::Relaxed) {
            let mut starved = self.starved.lock().unwrap_or_else(PoisonError::into_inner);
            if !starved.iter().any(|w| std::ptr::eq(w.as_ptr(), Arc::as_ptr(waiters))) {
                starved.push(Arc::downgrade(waiters));
            }
            return None;
        }
        let taken = (self.queue.id(head), self.queue.sges(head));
        self.shared.head.store(head.wrapping_add(1), Ordering::Release);
        Some(taken)
    }
}

impl SharedReceiveQueue for SoftSrq {
    unsafe fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let core = &*self.core;
        let regions = core.link.regions();
        let ok = wr.sges.len() <= core.queue.max_sge() as usize
            && wr.sges.iter().all(|sge| {
                sge.len == 0
                    || regions.covers(sge.lkey, sge.addr, sge.len.into(), Access::LOCAL_WRITE)
            });
        if !ok {
            return Err(PostError::Invalid);
        }
        let guard = core.shared.lock.lock();
        let (head, tail) = (&core.shared.head, &core.shared.tail);
        let at = tail.load(Ordering::Relaxed);
        if at.wrapping_sub(head.load(Ordering::Relaxed)) >= core.depth {
            return Err(PostError::QueueFull);
        }
        core.queue.put(at, wr.id, wr.sges);
        tail.store(at.wrapping_add(1), Ordering::Release);
        let mut starved = core.starved.lock().unwrap_or_else(PoisonError::into_inner);
        let starved = std::mem::take(&mut *starved);
        drop(guard);
        for waiters in starved.iter().filter_map(Weak::upgrade) {
            waiters.wake_all();
        }
        Ok(())
    }
}
