//! Quiet sets: the streams that a `poll` of many descriptors passes over.
//!
//! A stream on which a look finds nothing joins the set of the thread that polls. From then on the
//! ready set of the rings is told of what its peer does, and a set of the kernel's (the *socket
//! watch*) of its connection. As long as neither has told of anything, a look would find nothing
//! again: the stream costs a `poll` one cache line, its row. A thread that sleeps in `poll` does so
//! on one descriptor for all of them.
//!
//! A row names the place of its stream in a set, and the word of the descriptor table with which
//! the stream was found quiet. A number that comes to name another file has another word.
//!
//! INVARIANT: the lock of a set is taken inside of a [`Section`] only, so a signal handler that
//! closes a descriptor never waits for the code that it interrupted.

mod members;
mod user;

pub(crate) use user::{User, begin_use};

use crate::guard::lock;
use crate::rows;
use crate::slot::Handle;
use libc::c_int;
use members::{Members, Place};
use rsock_core::accelerate::StreamRef;
use rsock_core::interrupt::Section;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The streams of one thread that polls many.
struct QuietSet {
    /// A thread uses it. Stays true where the thread has left `poll` by `longjmp`.
    is_in_use: AtomicBool,
    /// Another thread has taken a stream out of it: the user has to look again.
    has_lost_any: AtomicBool,
    /// Made when it is used for the first time.
    members: Mutex<Option<Members>>,
}

/// More threads that poll many descriptors at the same time look at all of them.
const SETS: usize = 16;

static ALL: [QuietSet; SETS] = [const { QuietSet::new() }; SETS];

/// A fork is under way: no stream joins a set.
static IS_FORKING: AtomicBool = AtomicBool::new(false);

impl QuietSet {
    const fn new() -> Self {
        Self {
            is_in_use: AtomicBool::new(false),
            has_lost_any: AtomicBool::new(false),
            members: Mutex::new(None),
        }
    }

    /// The caller is inside of a [`Section`].
    fn lock(&self) -> MutexGuard<'_, Option<Members>> {
        lock(&self.members)
    }

    /// Wakes the thread that uses the set, to look at all that have left it.
    fn wake_user(&self, members: &Members) {
        // SYNC(quiet-set): before the bell, so that the user that wakes sees it.
        self.has_lost_any.store(true, Ordering::Release);
        if self.is_in_use.load(Ordering::Acquire) {
            members.own_fds().ready.ring();
        }
    }
}

/// Whether the stream of `fd` may be in a set.
#[inline]
pub(crate) fn has(fd: c_int) -> bool {
    place_of(fd).is_some()
}

#[inline]
fn place_of(fd: c_int) -> Option<Place> {
    // SYNC(quiet-set): SeqCst: a thread that closes `fd` takes its word out of the table before,
    // and a thread that has the stream join looks at the word after it has stored the place. One of
    // the two sees the other.
    Place::of(rows::row(fd)?.quiet_place.load(Ordering::SeqCst))
}

/// Takes the stream of `fd`, on which `handle` is a call, out of its set: the descriptor is about
/// to be closed or duplicated, or an epoll set is about to watch it.
#[cold]
pub(crate) fn leave(handle: &Handle, fd: c_int) {
    let (Some(place), StreamRef::Accelerated(stream)) = (place_of(fd), handle.stream()) else {
        return;
    };
    let _section = Section::enter();
    let set = &ALL[place.set()];
    if let Some(members) = &mut *set.lock()
        && members.remove(fd, place, handle.key(), Some(stream))
    {
        set.wake_user(members);
    }
}

/// The process is about to fork: the child must not share a stream that a set of its parent
/// watches. No stream joins a set until [`ForkLocks`] is dropped.
pub(crate) fn settle_before_fork(stream_of: impl Fn(c_int) -> Option<Handle>) {
    IS_FORKING.store(true, Ordering::SeqCst);
    let _section = Section::enter();
    for set in &ALL {
        if let Some(members) = &mut *set.lock() {
            members.remove_all(&stream_of);
            set.wake_user(members);
        }
    }
}

/// Held while the process forks: no other thread holds a lock of a set in the child then.
pub(crate) struct ForkLocks {
    _sets: Vec<MutexGuard<'static, Option<Members>>>,
}

/// The process is about to fork.
pub(crate) fn prepare_fork() -> ForkLocks {
    ForkLocks { _sets: ALL.iter().map(QuietSet::lock).collect() }
}

impl Drop for ForkLocks {
    fn drop(&mut self) {
        IS_FORKING.store(false, Ordering::SeqCst);
    }
}

/// In a forked child: the descriptors of all sets belong to the parent, and so do the threads that
/// used them.
pub(crate) fn after_fork_in_child() {
    let _section = Section::enter();
    for set in &ALL {
        std::mem::forget(set.lock().take());
        set.is_in_use.store(false, Ordering::Relaxed);
    }
}
