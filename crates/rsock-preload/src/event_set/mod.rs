//! Epoll sets of the program that watch streams on a ring.
//!
//! A set stays the kernel's, and a member of it as well, until the member's stream has found its
//! peer. From then on the library watches the member: its entry in the kernel's set is taken out,
//! and `epoll_wait` adds what the ring has. A second set of the kernel's, of which the program does
//! not know (the *socket watch*), watches the sockets of such members: for their ends, and for what
//! comes on TCP. The socket watch and the doorbell of the ready set are in the program's set, so
//! that a thread that sleeps there wakes; their events are never shown. When the stream has left
//! the ring for good, the member's entry goes back into the program's set, as the program made it.
//!
//! Decision 18 (`docs/decisions/0018-epoll-sets.md`) says why. The rules of what is reported are
//! [`rsock_proto::event_set`].
//!
//! INVARIANT: the lock of a set is taken inside of a [`Section`] only, so a signal handler that
//! waits for a set never waits for the code that it interrupted. No lock is held over a sleep. A
//! lock of a set comes before those of streams.

mod closing;
mod control;
mod kernel_watch;
mod members;
mod mistake;
mod news;
mod polled;
mod report;
mod reported;
mod ring;
mod shared;
mod wait;

pub(crate) use closing::{note_changed, note_closing, note_replaced};
pub(crate) use control::{Control, control};
pub(crate) use kernel_watch::control_by_kernel;
pub(crate) use shared::{
    ForkLocks, StayingMember, after_fork_in_child, is_in, keep_on_tcp, nesting_sets, prepare_fork,
    settle, settle_all, settle_before_fork, settle_for_exec, settle_for_spawn,
};
pub(crate) use wait::{Sleep, Wait, wait, wait_by_kernel_or, while_asleep, without_own};

use crate::chunked::{Chunked, Zeroed};
use crate::guard::lock;
use crate::own_fds::OwnFds;
use crate::rows::{self, Row};
use crate::slot::{Direction, Handle};
use crate::vfork;
use crate::watched::{self, Membership};
use crate::{errno, fdtable, guard};
use libc::{c_int, c_uint};
use members::Members;
use reported::Reported;
use rsock_core::accelerate::{WatchId, on_path_found};
use rsock_core::interrupt::Section;
use rsock_verbs::mutex::try_lock;
use rustix::fd::RawFd;
use std::collections::{HashMap, VecDeque};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE.cast_unsigned();

/// An epoll set that this process made by a hooked call. It lives for ever: when the program has
/// closed it, it serves for the next one.
pub(crate) struct EventSet {
    /// Its place in the list of all sets.
    number: u32,
    /// Counts the sets of the program that it has served; the count wraps.
    generation: AtomicU32,
    /// How many descriptors name it.
    n_descriptors: AtomicU32,
    /// Members that the library watches.
    n_watched: AtomicU32,
    /// Whether descriptors of this library are in it.
    has_own_fds: AtomicBool,
    /// Whether members that the kernel alone watches have proxies in it: two descriptors with the
    /// same data, of which the program is to see one event.
    has_proxies: AtomicBool,
    /// Threads that sleep in the kernel, or are about to.
    n_sleepers: AtomicU32,
    /// Members whose streams have found their peers since the last wait.
    found: Mutex<Vec<u32>>,
    has_found: AtomicBool,
    /// The program has changed what the kernel watches in the set: the next wait asks the kernel.
    has_kernel_change: AtomicBool,
    /// The kernel alone serves the set, or is to serve it as soon as it can: another process has
    /// the set too, or the library may not put its own sets between it and another.
    is_shared: AtomicBool,
    state: Mutex<State>,
}

/// A set, and the descriptor by which it is polled: by `poll` and `select`, or as a member of
/// another set.
#[derive(Clone, Copy)]
pub(crate) struct PolledEventSet {
    pub(crate) set: &'static EventSet,
    pub(crate) fd: RawFd,
}

/// How long a thread sleeps while a ring is full, or brings news that are not announced.
const BRIEFLY: Duration = Duration::from_millis(1);

/// What the lock of a set guards.
#[derive(Default)]
struct State {
    /// A descriptor of the set.
    fd: c_int,
    members: Members,
    /// Made with the first member that the library watches.
    own_fds: Option<Arc<OwnFds>>,
    /// Members to look at: those that may have something to report.
    candidates: VecDeque<u32>,
    /// Members whose rings are full, to be looked at again after a moment.
    impatient: Vec<u32>,
    /// Counts waits.
    turn: u64,
    /// When streams between hosts are to be looked at, although nothing announces them.
    check_at: Option<Instant>,
    /// When the kernel was asked last.
    kernel_asked: Option<Instant>,
    /// Looks at the kernel in a row that found nothing for the program.
    n_quiet: u32,
    /// The process has it from its parent, to which the own descriptors belong.
    is_inherited: bool,
    /// News that the set has had for sets that it is in; the count wraps.
    n_news: u32,
    /// Threads have slept in `poll` over the set, or over a set that it is in: they rely on its
    /// doorbell, and are not counted.
    is_polled: bool,
    /// What this wait has reported so far and the kernel may report once more.
    reported: Reported,
    /// The next wait looks at the rings before it asks the kernel.
    is_rings_turn: bool,
    /// The data of members that have proxies, by their descriptors.
    proxied: HashMap<c_int, u64>,
}

/// All sets that were ever made, by their numbers.
static BY_NUMBER: Chunked<SetPointer, 512, 128> = Chunked::new();

static SETS: Mutex<Sets> = Mutex::new(Sets { all: Vec::new(), free: Vec::new() });

struct Sets {
    all: Vec<&'static EventSet>,
    /// Those that no descriptor names.
    free: Vec<&'static EventSet>,
}

/// A pointer to a set that lives for ever, or null.
#[repr(transparent)]
struct SetPointer(AtomicPtr<EventSet>);

// SAFETY: a null pointer is a valid value; no drop; aligned like a pointer.
unsafe impl Zeroed for SetPointer {}

impl SetPointer {
    /// Which set the number of this row names.
    #[inline]
    fn of(row: &'static Row) -> &'static Self {
        // SAFETY: a transparent pointer to a set, where the row has one without a type, which no
        // other module touches.
        unsafe { &*(&raw const row.event_set).cast::<Self>() }
    }

    fn get(&self) -> Option<&'static EventSet> {
        // SAFETY: null, or stored by `set`: a set that lives for ever.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn set(&self, to: Option<&'static EventSet>) {
        let to = to.map_or(ptr::null_mut(), |set| ptr::from_ref(set).cast_mut());
        self.0.store(to, Ordering::SeqCst);
    }
}

/// The set that `fd` names.
#[inline]
pub(crate) fn find(fd: c_int) -> Option<&'static EventSet> {
    SetPointer::of(rows::row(fd)?).get()
}

/// All descriptors of `set`.
fn numbers_of(set: &'static EventSet) -> impl Iterator<Item = c_int> {
    let end = c_int::try_from(rows::end()).unwrap_or(c_int::MAX);
    (0..end).filter(move |&fd| find(fd).is_some_and(|found| ptr::eq(found, set)))
}

/// Every set that watches `fd`.
fn sets_of(fd: c_int) -> Vec<&'static EventSet> {
    match watched::membership(fd) {
        Membership::None | Membership::ByKernel => Vec::new(),
        Membership::Several => lock(&SETS).all.clone(),
        Membership::Of(watch) => of_watch(watch).into_iter().map(|(set, _)| set).collect(),
    }
}

/// The set and the member of a watch.
fn of_watch(watch: WatchId) -> Option<(&'static EventSet, u32)> {
    let (set, member) = members::split(watch);
    Some((BY_NUMBER.get(set as usize)?.get()?, member))
}

/// The program has made an epoll set.
pub(crate) fn note_created(fd: c_int) {
    let Some(row) = rows::row_or_map(fd) else { return };
    let _section = Section::enter();
    on_path_found(note_path);
    watched::on_adoption(kernel_watch::make_member);
    forget(fd);
    let mut sets = lock(&SETS);
    let set = sets.free.pop().or_else(|| {
        let number = sets.all.len();
        let place = BY_NUMBER.get_or_map(number)?;
        let set = &*Box::leak(Box::new(EventSet::new(u32::try_from(number).ok()?)));
        place.set(Some(set));
        sets.all.push(set);
        Some(set)
    });
    let Some(set) = set else { return };
    drop(sets);
    set.n_descriptors.store(1, Ordering::Relaxed);
    set.is_shared.store(false, Ordering::Relaxed);
    let mut state = set.lock();
    (state.fd, state.is_inherited) = (fd, false);
    drop(state);
    SetPointer::of(row).set(Some(set));
}

/// `new` names the open file of `old`.
pub(crate) fn note_duplicate(old: c_int, new: c_int) {
    let Some(set) = find(old).filter(|_| !vfork::is_child()) else { return };
    if let Some(row) = rows::row_or_map(new) {
        set.n_descriptors.fetch_add(1, Ordering::Relaxed);
        SetPointer::of(row).set(Some(set));
    }
}

/// The program is about to close `fd`, or it has turned out to name something else.
fn forget(fd: c_int) {
    let Some(at) = rows::row(fd).map(SetPointer::of) else { return };
    let Some(set) = at.get() else { return };
    at.set(None);
    if set.n_descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
        let _section = Section::enter();
        let mut state = set.lock();
        state.clear(set);
        drop(state);
        lock(&SETS).free.push(set);
    } else {
        let _section = Section::enter();
        let mut state = set.lock();
        if state.fd == fd {
            state.fd = numbers_of(set).next().unwrap_or(fd);
        }
    }
}

/// The program is about to close the descriptors in this range. What a child that shares this
/// memory closes, the parent keeps.
pub(crate) fn note_closing_range(first: c_uint, last: c_uint) {
    let end = c_uint::try_from(rows::end()).unwrap_or(c_uint::MAX);
    if first < end && !vfork::is_child() {
        (first..=last.min(end - 1)).filter_map(|n| c_int::try_from(n).ok()).for_each(forget);
    }
}

/// A stream that a set watches has found its peer.
fn note_path(watch: WatchId) {
    if let Some((set, member)) = of_watch(watch) {
        lock(&set.found).push(member);
        set.has_found.store(true, Ordering::Release);
    }
}

/// The stream of `fd`, for an immediate use.
fn stream_of(fd: RawFd) -> Option<Handle> {
    fdtable::find_in_core(fd, Direction::Recv)
}

/// Calls the core, for a number of events, with -1 and `errno` for a failure.
fn in_core(f: impl FnOnce() -> usize) -> c_int {
    let _section = Section::enter();
    let n = guard::call_core(|| Ok(f()));
    n.map_or_else(errno::fail_int, |n| c_int::try_from(n).unwrap_or(c_int::MAX))
}

/// Whether a wait for the set takes more than the kernel.
pub(crate) fn needs_library(set: &EventSet) -> bool {
    // SYNC: SeqCst: a thread that finds nothing here has counted itself as a sleeper before, and a
    // thread that sets this looks at that count afterwards.
    set.has_own_fds.load(Ordering::SeqCst)
        || set.has_found.load(Ordering::Acquire)
        || set.has_proxies()
}

/// `member` has been added to the set that `fd` names, or changed there, with `data`, and its proxy
/// too. No data if it has been deleted, or has no proxy.
pub(crate) fn note_proxy(fd: c_int, member: c_int, data: Option<u64>) {
    if let Some(set) = find(fd).filter(|set| data.is_some() || set.has_proxies()) {
        let _section = Section::enter();
        set.lock().note_proxy(set, member, data);
    }
}

impl EventSet {
    fn new(number: u32) -> Self {
        Self {
            number,
            generation: AtomicU32::new(0),
            n_descriptors: AtomicU32::new(0),
            n_watched: AtomicU32::new(0),
            has_own_fds: AtomicBool::new(false),
            has_proxies: AtomicBool::new(false),
            n_sleepers: AtomicU32::new(0),
            found: Mutex::default(),
            has_found: AtomicBool::new(false),
            has_kernel_change: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            state: Mutex::default(),
        }
    }

    /// The caller is inside of a [`Section`].
    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// As [`Self::lock`], unless another thread has the lock.
    fn try_lock(&self) -> Option<MutexGuard<'_, State>> {
        try_lock(&self.state)
    }

    /// Whether the library watches a member.
    fn is_watching(&self) -> bool {
        self.n_watched.load(Ordering::Acquire) != 0
    }

    /// Notes that the program has changed what the kernel watches.
    fn note_kernel_change(&self) {
        self.has_kernel_change.store(true, Ordering::Release);
    }

    fn has_proxies(&self) -> bool {
        self.has_proxies.load(Ordering::Acquire)
    }

    /// Whether streams that enter the set may move to the ring.
    fn may_watch(&self) -> bool {
        !self.is_shared.load(Ordering::Relaxed)
    }
}

impl State {
    /// `member` has this data, and a proxy; no data if it has none.
    fn note_proxy(&mut self, set: &EventSet, member: c_int, data: Option<u64>) {
        match data {
            Some(data) => _ = self.proxied.insert(member, data),
            None => _ = self.proxied.remove(&member),
        }
        set.has_proxies.fetch_or(data.is_some(), Ordering::AcqRel);
    }

    /// The set is closed.
    fn clear(&mut self, set: &EventSet) {
        // What the kernel alone has watched for it is no member of the next set.
        set.generation.fetch_add(1, Ordering::Relaxed);
        while let Some(number) = self.members.any() {
            self.remove(set, number);
        }
        lock(&set.found).clear();
        set.has_found.store(false, Ordering::Release);
        self.candidates.clear();
        self.impatient.clear();
        self.check_at = None;
        self.is_polled = false;
        self.reported = Reported::default();
        self.is_rings_turn = false;
        if self.is_inherited {
            // They belong to the parent.
            std::mem::forget(self.own_fds.take());
        }
        self.own_fds = None;
        self.is_inherited = false;
        set.has_own_fds.store(false, Ordering::Release);
        set.has_proxies.store(false, Ordering::Release);
        self.proxied.clear();
        self.kernel_asked = None;
        set.n_watched.store(0, Ordering::Release);
    }
}
