//! The wakers of all tasks that wait for one stream or socket, which are woken together.
//!
//! Bottom of the crate. Every event of a stream (of its socket, its doorbell, its timer, the poll
//! driver) wakes the whole set; each task then tries again by itself. INVARIANT: a task is in the
//! set before it registers with any source of events, so an event after its last try wakes it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Wake, Waker};

/// The place of a waker in the set. Reader and writer belong to the last task that polled that half
/// by a `poll` method; each future (`readable` and the like) has a place of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WakerKey {
    /// The task that reads by `poll` methods.
    Reader,
    /// The task that writes by `poll` methods.
    Writer,
    /// A future, by its number.
    Future(u64),
}

impl WakerKey {
    /// A key for a new future.
    pub(crate) fn new_future() -> Self {
        // SYNC: Relaxed, since each caller needs only a number of its own.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self::Future(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[derive(Debug, Default)]
struct Set {
    reader: Option<Waker>,
    writer: Option<Waker>,
    futures: Vec<(u64, Waker)>,
}

/// The set of one stream or socket.
#[derive(Debug, Default)]
pub(crate) struct Wakers {
    set: Mutex<Set>,
    /// Bits of the directions for which the runtime has been asked to wake the set.
    requested: AtomicU8,
}

impl Wakers {
    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores `waker` under `key`.
    pub(crate) fn insert(&self, key: WakerKey, waker: &Waker) {
        let mut set = self.lock();
        match key {
            WakerKey::Reader => store(&mut set.reader, waker),
            WakerKey::Writer => store(&mut set.writer, waker),
            WakerKey::Future(id) => match set.futures.iter_mut().find(|(other, _)| *other == id) {
                Some((_, old)) => old.clone_from(waker),
                None => set.futures.push((id, waker.clone())),
            },
        }
    }

    /// Removes what is stored under `key`. True if the set is empty then.
    pub(crate) fn remove(&self, key: WakerKey) -> bool {
        let mut set = self.lock();
        let removed = match key {
            WakerKey::Reader => set.reader.take(),
            WakerKey::Writer => set.writer.take(),
            WakerKey::Future(id) => {
                let at = set.futures.iter().position(|(other, _)| *other == id);
                at.map(|at| set.futures.swap_remove(at).1)
            }
        };
        let is_empty = set.reader.is_none() && set.writer.is_none() && set.futures.is_empty();
        drop(set);
        // Outside the lock: dropping a waker may drop a task.
        drop(removed);
        is_empty
    }

    /// Notes that the caller is about to ask the runtime to wake the set when the direction of
    /// `bit` becomes ready. False if the runtime has been asked already and has not woken it since.
    /// If the direction turns out to be ready, the caller must [cancel](Self::cancel_request).
    pub(crate) fn request(&self, bit: u8) -> bool {
        self.requested.fetch_or(bit, Ordering::AcqRel) & bit == 0
    }

    /// Takes back a [`Self::request`].
    pub(crate) fn cancel_request(&self, bit: u8) {
        self.requested.fetch_and(!bit, Ordering::AcqRel);
    }

    /// Wakes every task in the set and empties it; a task that polls again inserts itself again.
    pub(crate) fn wake_all(&self) {
        let taken = std::mem::take(&mut *self.lock());
        for waker in taken.reader.into_iter().chain(taken.writer) {
            waker.wake();
        }
        for (_, waker) in taken.futures {
            waker.wake();
        }
    }
}

fn store(place: &mut Option<Waker>, waker: &Waker) {
    match place {
        Some(old) => old.clone_from(waker),
        None => *place = Some(waker.clone()),
    }
}

/// As the runtime's waker: the runtime wakes once for each request.
impl Wake for Wakers {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.requested.store(0, Ordering::Release);
        self.wake_all();
    }
}
