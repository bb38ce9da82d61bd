//! The wakers of all tasks that wait for one stream, woken together.
//!
//! Bottom of the crate. Whatever happens to a stream (its socket, its doorbell, its timer, the hub)
//! wakes this one set; each task then tries again by itself. Invariant: a task is in the set before
//! it registers anywhere, so an event after its last try finds it here.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// Who waits. Reader and writer are the last task that polled that half; others are futures such as
/// `readable`, any number of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// The task that reads.
    Reader,
    /// The task that writes.
    Writer,
    /// A future with a number of its own.
    Other(u64),
}

impl Waiter {
    /// A future, with the next number.
    pub(crate) fn other() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self::Other(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
struct Set {
    reader: Option<Waker>,
    writer: Option<Waker>,
    others: Vec<(u64, Waker)>,
}

/// The set of one stream.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    set: Mutex<Set>,
    /// Bits of sides whose readiness the runtime will tell by waking all.
    watched: AtomicU8,
}

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts `waker` in the place of `who`.
    pub(crate) fn put(&self, who: Waiter, waker: &Waker) {
        let mut set = self.lock();
        match who {
            Waiter::Reader => keep(&mut set.reader, waker),
            Waiter::Writer => keep(&mut set.writer, waker),
            Waiter::Other(id) => match set.others.iter_mut().find(|(other, _)| *other == id) {
                Some((_, old)) => old.clone_from(waker),
                None => set.others.push((id, waker.clone())),
            },
        }
    }

    /// Takes `who` out. True if nobody is left.
    pub(crate) fn remove(&self, who: Waiter) -> bool {
        let mut set = self.lock();
        let removed = match who {
            Waiter::Reader => set.reader.take(),
            Waiter::Writer => set.writer.take(),
            Waiter::Other(id) => {
                let at = set.others.iter().position(|(other, _)| *other == id);
                at.map(|at| set.others.swap_remove(at).1)
            }
        };
        let is_empty = set.reader.is_none() && set.writer.is_none() && set.others.is_empty();
        drop(set);
        // Outside the lock: dropping a waker may drop a task.
        drop(removed);
        is_empty
    }

    /// Notes that the runtime is about to be asked to wake everybody when a side of the socket
    /// becomes ready; false if it has been asked already and has not done so yet. Call
    /// [`Self::unwatch`] if it was ready.
    pub(crate) fn watch(&self, side: u8) -> bool {
        self.watched.fetch_or(side, Ordering::AcqRel) & side == 0
    }

    /// Takes back a [`Self::watch`].
    pub(crate) fn unwatch(&self, side: u8) {
        self.watched.fetch_and(!side, Ordering::AcqRel);
    }

    /// Wakes everybody. Each is in the set until it polls again, or not at all.
    pub(crate) fn wake_all(&self) {
        let taken = std::mem::take(&mut *self.lock());
        for waker in taken.reader.into_iter().chain(taken.writer) {
            waker.wake();
        }
        for (_, waker) in taken.others {
            waker.wake();
        }
    }
}

fn keep(place: &mut Option<Waker>, waker: &Waker) {
    match place {
        Some(old) => old.clone_from(waker),
        None => *place = Some(waker.clone()),
    }
}

/// The runtime's own way in: it wakes once for each time it was asked.
impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.watched.store(0, Ordering::Release);
        self.wake_all();
    }
}
