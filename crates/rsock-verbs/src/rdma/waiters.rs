//! The waiters of a completion queue: event descriptors to ring, and a count of the rings.
//!
//! The invariant: a waiter that registered before a ring is rung; one that registers after it sees
//! the count changed. Both sides store first and load second, in one total order.
#![forbid(unsafe_code)]

use crate::error::Error;
use crate::high_fd::{HighFd, verb};
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A descriptor that is readable from `ring` to `drain`.
#[derive(Debug)]
pub(super) struct Event(HighFd);

impl Event {
    pub(super) fn new() -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Self(HighFd::new(eventfd(0, flags).map_err(verb("eventfd"))?)))
    }

    pub(super) fn ring(&self) {
        // A full counter means that it was rung.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Whether it was rung.
    pub(super) fn drain(&self) -> bool {
        rustix::io::read(&self.0, &mut [0u8; 8]).is_ok()
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The waiters of one queue.
#[derive(Debug, Default)]
pub(super) struct CqWaiters {
    epoch: AtomicU32,
    n: AtomicUsize,
    list: Mutex<Vec<Arc<Event>>>,
    /// Events of threads that have parked before.
    idle: Mutex<Vec<Arc<Event>>>,
}

impl CqWaiters {
    #[inline]
    pub(super) fn epoch(&self) -> u32 {
        // SYNC(waiters): after the registration, in the one order of SeqCst; pairs with `wake_all`.
        self.epoch.load(Ordering::SeqCst)
    }

    fn list(&self) -> MutexGuard<'_, Vec<Arc<Event>>> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers `event` for rings. False if it was registered before.
    pub(super) fn register(&self, event: &Arc<Event>) -> bool {
        let mut list = self.list();
        let is_new = !list.iter().any(|other| Arc::ptr_eq(other, event));
        if is_new {
            list.push(Arc::clone(event));
        }
        // SYNC(waiters): before the waiter reads the epoch; pairs with `wake_all`.
        self.n.store(list.len(), Ordering::SeqCst);
        is_new
    }

    /// Whether it was registered.
    pub(super) fn unregister(&self, event: &Arc<Event>) -> bool {
        let mut list = self.list();
        let n = list.len();
        list.retain(|other| !Arc::ptr_eq(other, event));
        self.n.store(list.len(), Ordering::SeqCst);
        list.len() != n
    }

    #[inline]
    pub(super) fn wake_all(&self) {
        // SYNC(waiters): the epoch first, then the waiters. SeqCst, because a waiter stores the one
        // and loads the other: with less, both could miss.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.n.load(Ordering::SeqCst) != 0 {
            self.list().iter().for_each(|event| event.ring());
        }
    }

    /// An event for a thread that parks.
    pub(super) fn borrow(&self) -> Result<Arc<Event>, Error> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Event::new().map(Arc::new), Ok)
    }

    pub(super) fn give_back(&self, event: Arc<Event>) {
        event.drain();
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(event);
    }
}
