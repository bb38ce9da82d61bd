//! Sleeping on a completion queue and waking its sleepers: peers wake them through wait lines in
//! the segments, this process family through words in family memory.
//!
//! A queue has one wait line for each link that it receives from ([`OwnedWaitLine`]). Waiters
//! are recorded in family memory; the wait lines are copies for the peers. A peer that corrupts one
//! costs the queue pairs of its link their wake-ups, and nothing else.

use super::Link;
use super::bell;
use super::creation_stamp::CreationStamp;
use super::doorbell_pipe::PeerPipes;
use super::layout::WAIT_LINE;
use super::ready_set::{self, Page, Pages, ReadyNumber, this_cpu};
use super::segment::Mapping;
use super::wake::wake_sleepers;
use crate::clock;
use crate::device::Parked;
use crate::error::Error;
use crate::family::{self, FamilyBox, FamilySafe, ProcessId};
use crate::sync::parking::{Registry, WaitLines};
use crate::sync::primitive::{Native, Platform};
use crate::sync::waiter::{ANNOUNCE, BellName, Lines, WaitLine};
use rustix::io::Errno;
use rustix::thread::futex;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// A wait line of one queue for one link.
///
/// # Invariants
/// `line` lies in this process's segment of `link` at `at`, and belongs to this value until `drop`.
#[derive(Debug)]
pub(super) struct OwnedWaitLine {
    line: NonNull<WaitLine>,
    at: u64,
    created: CreationStamp,
    link: Arc<Link>,
}

// SAFETY: the wait line is made of atomics.
unsafe impl Send for OwnedWaitLine {}
// SAFETY: as for `Send`.
unsafe impl Sync for OwnedWaitLine {}

impl OwnedWaitLine {
    fn new(link: &Arc<Link>) -> Result<Self, Error> {
        let at = link.alloc(WAIT_LINE)?;
        let line = link.own_segment().slice(at, 1).ok_or(Error::Exhausted("segment"))?;
        let owned = Self { line, at, created: CreationStamp::now(), link: Arc::clone(link) };
        Ok(owned)
    }

    fn line(&self) -> &WaitLine {
        // SAFETY: by the type's invariant; the link, and so its mapping, outlives `self`.
        unsafe { self.line.as_ref() }
    }

    /// Its offset in the segment, for the peer.
    pub(super) fn at(&self) -> u64 {
        self.at
    }
}

impl Drop for OwnedWaitLine {
    fn drop(&mut self) {
        if self.created.is_unshared() {
            self.link.free(self.at, WAIT_LINE);
        }
    }
}

/// Wakes the waiters that the taken `bits` of `line` name. `segment` is the segment of the line's
/// owner, `pipes` are the owner's doorbell pipes.
#[cold]
pub(super) fn wake(line: &WaitLine, bits: u32, segment: &Mapping, pipes: Option<&PeerPipes>) {
    wake_sleepers(line, bits, pipes);
    if bits & ANNOUNCE != 0 {
        ready_set::announce(line, segment, pipes);
    }
}

// SAFETY: atomics only.
unsafe impl FamilySafe for Registry {}

/// The ready set that a queue is announced to, in the process that made the set.
#[derive(Debug, Default)]
struct Announcing {
    /// Set while the next dispatch of this process is to be announced.
    is_armed: AtomicBool,
    to: Mutex<Option<Announced>>,
}

#[derive(Debug)]
struct Announced {
    set: Arc<Pages>,
    number: ReadyNumber,
    /// The pages that the wait lines name.
    pages: Vec<Arc<Page>>,
    by: ProcessId,
}

/// All waiters of one completion queue.
#[derive(Debug)]
pub(super) struct Waiters {
    registry: FamilyBox<Registry>,
    /// The first wait line; most queues have no other.
    first: OnceLock<Arc<OwnedWaitLine>>,
    more: Mutex<Vec<Arc<OwnedWaitLine>>>,
    announcing: Announcing,
    created: CreationStamp,
    /// Length of `more`, or the length that it is about to have. While it is 0 the lock is not
    /// taken: a child forked while another thread held it would wait for ever.
    n_more: AtomicUsize,
}

impl Announcing {
    fn lock(&self) -> MutexGuard<'_, Option<Announced>> {
        self.to.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiters {
    pub(super) fn new() -> Result<Self, Error> {
        let registry =
            FamilyBox::new(Registry::fresh()).ok_or(Error::Exhausted("family memory"))?;
        Ok(Self {
            registry,
            first: OnceLock::new(),
            more: Mutex::new(Vec::new()),
            announcing: Announcing::default(),
            created: CreationStamp::now(),
            n_more: AtomicUsize::new(0),
        })
    }

    fn lines(&self) -> Kernel<'_> {
        Kernel { waiters: self, timeout: None }
    }

    fn more(&self) -> MutexGuard<'_, Vec<Arc<OwnedWaitLine>>> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on every wait line.
    fn for_each(&self, mut f: impl FnMut(&OwnedWaitLine)) {
        if let Some(owned) = self.first.get() {
            f(owned);
            if self.n_more.load(Ordering::Relaxed) != 0 {
                self.more().iter().for_each(|p| f(p));
            }
        }
    }

    /// The wait line for `link`, created if there is none.
    pub(super) fn wait_line(&self, link: &Arc<Link>) -> Result<Arc<OwnedWaitLine>, Error> {
        let mut more = self.more();
        let known = self.first.get().into_iter().chain(more.iter());
        if let Some(owned) = known.into_iter().find(|p| Arc::ptr_eq(&p.link, link)) {
            return Ok(Arc::clone(owned));
        }
        let owned = Arc::new(OwnedWaitLine::new(link)?);
        if let Err(owned) = self.first.set(Arc::clone(&owned)) {
            more.push(owned);
            self.n_more.store(more.len(), Ordering::Relaxed);
        }
        self.registry.bells.copy_to(owned.line());
        drop(more);
        // Threads that sleep now do not watch this wait line yet.
        self.wake_all();
        Ok(owned)
    }

    /// Drops wait lines, other than the first, that only the queue itself still holds.
    pub(super) fn prune(&self) {
        if self.n_more.load(Ordering::Relaxed) != 0 {
            let mut more = self.more();
            more.retain(|p| Arc::strong_count(p) > 1);
            self.n_more.store(more.len(), Ordering::Relaxed);
        }
    }

    /// Whether the peer that last woke a sleeper ran on another CPU than the calling thread; `None`
    /// if that is unknown. Of several peers the first one counts.
    pub(super) fn is_peer_elsewhere(&self) -> Option<bool> {
        let from = self.first.get()?.line().woken_from()?;
        Some(from != this_cpu())
    }

    /// Wakes the waiting threads after something became ready that no peer announces.
    #[inline]
    pub(super) fn notify(&self) {
        self.registry.notify(&self.lines());
        self.announce();
    }

    /// Wakes every waiting thread; a [`Self::park`] with an older epoch returns at once.
    pub(super) fn wake_all(&self) {
        self.registry.wake_all(&self.lines());
        self.announce();
    }

    /// Announces the queue to its ready set if that is armed. The caller has executed a full fence
    /// since it made something ready.
    #[inline]
    fn announce(&self) {
        if !self.created.is_this_process() {
            self.announce_to_family();
        } else if self.announcing.is_armed.load(Ordering::Relaxed) {
            // SYNC(arm-ring): pairs with the fence in `announce_next`.
            self.announce_armed();
        }
    }

    #[cold]
    fn announce_armed(&self) {
        let to = self.announcing.lock();
        if let Some(to) = to.as_ref()
            && self.announcing.is_armed.swap(false, Ordering::AcqRel)
        {
            to.set.announce(to.number);
        }
    }

    /// In a child of the process that made the queue, where the parent's lock may never be freed:
    /// announces it through the wait lines, which both have, as a peer does.
    #[cold]
    fn announce_to_family(&self) {
        self.for_each(|owned| {
            // SYNC(arm-ring): the caller's fence pairs with the one in `announce_next`.
            let bits = owned.line().take();
            if bits != 0 {
                wake(owned.line(), bits, owned.link.own_segment(), None);
            }
        });
    }

    /// Has the queue announced to a ready set, under its number there, or to none. A queue is
    /// announced to one set at a time: the first one must have been left before the next.
    pub(super) fn announce_to(&self, to: Option<(&Arc<Pages>, ReadyNumber)>) -> Result<(), Error> {
        let lines = self.more();
        let all = || self.first.get().into_iter().chain(lines.iter());
        let mut announced = None;
        if let Some((set, number)) = to {
            let is_current = |of: &Announced| of.by == family::process();
            if self.announcing.lock().as_ref().is_some_and(is_current) {
                return Err(Error::Invalid("another ready set watches the queue"));
            }
            let pages: Result<Vec<_>, _> = all().map(|owned| set.page(&owned.link)).collect();
            let (set, by) = (Arc::clone(set), family::process());
            announced = Some(Announced { set, number, pages: pages?, by });
        }
        self.announcing.is_armed.store(false, Ordering::Relaxed);
        for (i, owned) in all().enumerate() {
            let named =
                announced.as_ref().and_then(|to| Some((to.pages.get(i)?.at(), to.number.0)));
            let (at, number) = named.unwrap_or_default();
            owned.line().set_ready_set(at, number);
        }
        *self.announcing.lock() = announced;
        Ok(())
    }

    /// Has the next thing that becomes ready announced to the ready set. The caller checks for work
    /// afterwards.
    pub(super) fn announce_next(&self) {
        self.announcing.is_armed.store(true, Ordering::Release);
        self.for_each(|owned| {
            owned.line().arm(ANNOUNCE);
        });
        // SYNC(arm-ring): for a queue without wait lines. Pairs with the fence in `notify`.
        Native::fence();
    }

    /// Undoes [`Self::announce_next`] for what this process dispatches; what the peer publishes
    /// next may still be announced.
    pub(super) fn announce_no_more(&self) {
        self.announcing.is_armed.store(false, Ordering::Relaxed);
    }

    /// Whether no other process has these waiters, too.
    pub(super) fn are_unshared(&self) -> bool {
        self.created.is_unshared()
    }

    pub(super) fn epoch(&self) -> u32 {
        self.registry.epoch()
    }

    /// A number that changes when bells are rung.
    pub(super) fn n_rung(&self) -> u32 {
        let mut sum = self.epoch();
        self.for_each(|owned| sum = sum.wrapping_add(owned.line().n_taken()));
        sum
    }

    /// Registers a thread's bell and arms it; false if there is no room for another bell.
    pub(super) fn arm_bell(&self, bell: BellName) -> bool {
        self.registry.bells.arm(bell, &self.lines())
    }

    /// As [`Self::arm_bell`]; false, without arming the bell, if `is_ready` holds.
    pub(super) fn arm_bell_unless(&self, bell: BellName, is_ready: impl Fn() -> bool) -> bool {
        if is_ready() || !self.arm_bell(bell) {
            return false;
        }
        if is_ready() {
            self.disarm_bell(bell.id);
            return false;
        }
        true
    }

    /// Removes a bell.
    pub(super) fn disarm_bell(&self, id: u64) {
        self.registry.bells.disarm(id, &self.lines());
    }

    /// Sleeps until woken, unless `is_ready` holds or the epoch is no longer `epoch`.
    pub(super) fn park(
        &self,
        epoch: u32,
        timeout: Option<Duration>,
        is_ready: impl Fn() -> bool,
    ) -> Parked {
        self.registry.park(&Kernel { waiters: self, timeout }, epoch, is_ready)
    }
}

/// The wait lines of `waiters`, and sleeps of at most `timeout`.
struct Kernel<'a> {
    waiters: &'a Waiters,
    timeout: Option<Duration>,
}

/// What one `futex_waitv` call watches.
struct Watched {
    words: [futex::Wait; Self::MOST],
    n: usize,
    /// Whether there are more words than one call can watch.
    is_short: bool,
}

impl Watched {
    /// The limit of the system call.
    const MOST: usize = 128;
}

impl Default for Watched {
    fn default() -> Self {
        Self { words: [futex::Wait::new(); Self::MOST], n: 0, is_short: false }
    }
}

impl Lines<Native> for Kernel<'_> {
    fn for_each(&self, mut f: impl FnMut(&WaitLine)) {
        self.waiters.for_each(|owned| f(owned.line()));
    }
}

impl WaitLines<Native> for Kernel<'_> {
    type Parked = Parked;
    type Watched = Watched;
    const WOKEN: Parked = Parked::Woken;

    fn sleep_on_single(&self, arm: impl FnOnce(&WaitLine) -> Option<u32>) -> Option<Parked> {
        let is_alone = |_: &&Arc<OwnedWaitLine>| self.waiters.n_more.load(Ordering::Relaxed) == 0;
        let line = self.waiters.first.get().filter(is_alone)?.line();
        let Some(expected) = arm(line) else { return Some(Parked::Woken) };
        let limit = Limit::new(self.timeout).relative();
        Some(parked(futex::wait(line.word(), futex::Flags::empty(), expected, Some(&limit))))
    }

    fn watch(&self, watched: &mut Watched, word: &AtomicU32, expected: u32) {
        let Some(entry) = watched.words.get_mut(watched.n) else {
            watched.is_short = true;
            return;
        };
        entry.val = u64::from(expected);
        entry.uaddr = futex::WaitPtr::new(ptr::from_ref(word).cast_mut().cast());
        entry.flags = futex::WaitFlags::SIZE_U32;
        watched.n += 1;
    }

    #[cold]
    fn sleep_on_all(&self, watched: Watched) -> Parked {
        // More words than one call can watch: check again every millisecond.
        let cap = Duration::from_millis(1);
        let short = || Some(self.timeout.map_or(cap, |t| t.min(cap)));
        let limit = Limit::new(if watched.is_short { short() } else { self.timeout });
        let slept = futex::waitv(
            &watched.words[..watched.n],
            futex::WaitvFlags::empty(),
            Some(&limit.absolute()),
            futex::ClockId::Monotonic,
        );
        parked(slept.map(|_| ()))
    }

    fn wake(&self, word: &AtomicU32) {
        let _ = futex::wake(word, futex::Flags::empty(), i32::MAX.cast_unsigned());
    }

    fn announce(&self) {
        self.waiters.for_each(|owned| {
            ready_set::announce(owned.line(), owned.link.own_segment(), None);
        });
    }

    fn ring(&self, id: u64) {
        bell::ring(id);
    }
}

/// When a sleep ends. Always bounded: the kernel restarts a futex wait without a timeout after a
/// signal handler, so the caller would not learn that a handler ran.
struct Limit(Duration);

impl Limit {
    fn new(timeout: Option<Duration>) -> Self {
        Self(timeout.unwrap_or(Duration::from_secs(3600)))
    }

    fn relative(&self) -> futex::Timespec {
        futex::Timespec {
            tv_sec: i64::try_from(self.0.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: self.0.subsec_nanos().into(),
        }
    }

    fn absolute(&self) -> futex::Timespec {
        let end = clock::monotonic().saturating_add(self.0);
        futex::Timespec {
            tv_sec: i64::try_from(end.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: end.subsec_nanos().into(),
        }
    }
}

fn parked(slept: Result<(), Errno>) -> Parked {
    match slept {
        Err(Errno::TIMEDOUT) => Parked::TimedOut,
        Err(Errno::INTR) => Parked::Interrupted,
        // Woken, the word had changed already, or the call does not exist: the caller checks again.
        Ok(()) | Err(_) => Parked::Woken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Watchdog;
    use crate::soft::testing::linked_pair;
    use crate::soft::{SoftBell, SoftContext};

    #[test]
    fn a_queue_with_one_wait_line_takes_no_lock_that_a_forked_child_could_find_held() {
        let _dog = Watchdog::new("waiting");
        let (link, _other) = linked_pair(&SoftContext::open().expect("device")).expect("link");
        let waiters = Waiters::new().expect("room");
        let _port = waiters.wait_line(&link).expect("owned");
        let bell = SoftBell::new().expect("bell");
        let _held = waiters.more();
        assert!(waiters.arm_bell(bell.name()));
        waiters.wake_all();
        waiters.disarm_bell(bell.id());
        let moment = Some(Duration::from_millis(1));
        assert_eq!(waiters.park(waiters.epoch(), moment, || false), Parked::TimedOut);
        waiters.prune();
        assert!(bell.take());
    }
}
