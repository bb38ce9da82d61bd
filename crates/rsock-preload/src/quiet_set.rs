//! Quiet sets: the streams that a `poll` of many descriptors passes over.
//!
//! A stream on which a look finds nothing joins the set of the thread that polls. From then on the
//! peer announces in the ready set of the rings what it does, and a set of the kernel's (the
//! *socket watch*) reports what happens to the connection. As long as neither has anything of the
//! stream, a look would find nothing again: the stream costs a `poll` one cache line, its row. A
//! thread that sleeps in `poll` does so on one descriptor for all of them.
//!
//! A row names the place of its stream in a set, and the word of the descriptor table with which
//! the stream was found quiet. A number that comes to name another file has another word.
//!
//! INVARIANT: the lock of a set is taken inside of a [`Section`] only, so no signal handler runs on
//! top of its holder; and not by a handler, which may have interrupted an allocator that the holder
//! waits for.

mod members;
mod user;

pub(crate) use user::{User, begin_use};

use crate::guard::lock;
use crate::rows;
use crate::slot::Handle;
use libc::c_int;
use members::{Members, Place};
use rsock_core::accelerate::{AcceleratedStream, StreamRef};
use rsock_core::interrupt::{Section, is_in_handler};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The streams of one thread that polls many.
struct QuietSet {
    /// The thread that uses it, or has left it by `longjmp`; 0 for none.
    user: AtomicUsize,
    /// A stream has left it: the user has to look again.
    has_lost_any: AtomicBool,
    /// Streams have left it inside of signal handlers: they are still among the members.
    has_unreaped: AtomicBool,
    /// Made when it is used for the first time.
    members: Mutex<Option<Members>>,
}

/// More threads that poll many descriptors at the same time look at all of them.
const SETS: usize = 16;

static ALL: [QuietSet; SETS] = [const { QuietSet::new() }; SETS];

/// Forks under way, in which no stream joins a set.
static N_FORKS: AtomicU32 = AtomicU32::new(0);

impl QuietSet {
    const fn new() -> Self {
        Self {
            user: AtomicUsize::new(0),
            has_lost_any: AtomicBool::new(false),
            has_unreaped: AtomicBool::new(false),
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
        if self.user.load(Ordering::Acquire) != 0 {
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
#[inline]
pub(crate) fn leave(handle: &Handle, fd: c_int) {
    if let Some(place) = place_of(fd)
        && let StreamRef::Accelerated(stream) = handle.stream()
    {
        leave_place(handle, stream, fd, place);
    }
}

#[cold]
fn leave_place(handle: &Handle, stream: &AcceleratedStream, fd: c_int, place: Place) {
    let set = &ALL[place.set()];
    if is_in_handler() {
        Members::forget_row(fd, place);
        // SYNC(quiet-set): after the row, which the user looks at.
        set.has_unreaped.store(true, Ordering::Release);
        set.has_lost_any.store(true, Ordering::Release);
        return;
    }
    let _section = Section::enter();
    if let Some(members) = &mut *set.lock()
        && members.remove(fd, place, handle.key(), Some(stream))
    {
        set.wake_user(members);
    }
}

/// The process is about to fork: the child must not share a stream that a set of its parent
/// watches. No stream joins a set until the result is dropped.
pub(crate) fn settle_before_fork(stream_of: impl Fn(c_int) -> Option<Handle>) -> Settled {
    N_FORKS.fetch_add(1, Ordering::SeqCst);
    let settled = Settled;
    let _section = Section::enter();
    for set in &ALL {
        if let Some(members) = &mut *set.lock() {
            members.remove_all(&stream_of);
            set.wake_user(members);
        }
    }
    settled
}

/// All sets are empty, and remain so.
pub(crate) struct Settled;

impl Drop for Settled {
    fn drop(&mut self) {
        N_FORKS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Held while the process forks: no other thread holds a lock of a set in the child then.
pub(crate) struct ForkLocks {
    _sets: Vec<MutexGuard<'static, Option<Members>>>,
    _settled: Settled,
}

/// The process is about to fork.
pub(crate) fn prepare_fork(settled: Settled) -> ForkLocks {
    ForkLocks { _sets: ALL.iter().map(QuietSet::lock).collect(), _settled: settled }
}

/// In a forked child: the streams are the parent's to watch, and the threads that used the sets are
/// the parent's.
pub(crate) fn after_fork_in_child() {
    N_FORKS.store(0, Ordering::SeqCst);
    let _section = Section::enter();
    for set in &ALL {
        let members = set.lock().take();
        if is_in_handler() {
            // The interrupted call may still name them.
            std::mem::forget(members);
        }
        set.user.store(0, Ordering::Relaxed);
    }
    for row in (0..rows::end()).filter_map(|fd| rows::row(c_int::try_from(fd).ok()?)) {
        if row.quiet_place.load(Ordering::Relaxed) != 0 {
            row.quiet_place.store(0, Ordering::Relaxed);
        }
    }
}
