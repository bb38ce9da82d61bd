//! Ready sets of a process: how an event loop waits for many completion queues at the cost of those
//! that have something.
//!
//! A set has a page ([`ReadySet`]) in the segment of every link whose queues it watches, which the
//! peer writes, and one in this process for what its own threads dispatch. All pages use the same
//! numbers: those that [`SoftReadySet::watch`] gives out.
//!
//! A page stays a page of ready sets as long as its link lives (see
//! [`Link::free_ready_page`](super::Link)): a peer that announces late sets a bit for nothing.

use super::Link;
use super::SoftCq;
use super::bell::{self, SoftBell};
use super::creation_stamp::CreationStamp;
use super::doorbell_pipe::PeerPipes;
use super::layout::PAGE;
use super::segment::Mapping;
use super::wake::wake_sleepers;
use crate::error::Error;
use crate::sync::ready_set::{QUEUES, ReadySet};
use crate::sync::waiter::{BELL, WaitLine};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Which of the watched completion queues have something new.
#[derive(Debug)]
pub struct SoftReadySet {
    pages: Arc<Pages>,
    /// Rung for the thread that sleeps on the set.
    bell: SoftBell,
    /// The CPU of the thread whose ring was last drained, plus 1; 0 if unknown.
    woken_from: AtomicU32,
    created: CreationStamp,
}

/// What announcements need of a set.
#[derive(Debug)]
pub(super) struct Pages {
    /// For what this process announces itself.
    own: Box<ReadySet>,
    of_links: Mutex<Vec<Arc<Page>>>,
    numbers: Mutex<Numbers>,
}

/// The page of a set in the segment of one link.
#[derive(Debug)]
pub(super) struct Page {
    at: u64,
    link: Arc<Link>,
    created: CreationStamp,
}

impl Page {
    fn new(link: &Arc<Link>) -> Result<Self, Error> {
        let at = link.alloc_ready_page()?;
        Ok(Self { at, link: Arc::clone(link), created: CreationStamp::now() })
    }

    /// Its offset in the segment, for the peer.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    fn set(&self) -> Option<&ReadySet> {
        self.link.own_segment().at(self.at)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if self.created.is_unshared() {
            self.link.free_ready_page(self.at);
        }
    }
}

/// The number of a queue in its set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ReadyNumber(pub u32);

/// Numbers of a set that are not in use.
#[derive(Debug, Default)]
struct Numbers {
    free: Vec<u32>,
    used: u32,
}

impl Numbers {
    fn take(&mut self) -> Option<ReadyNumber> {
        let number = self.free.pop().or_else(|| {
            let next = self.used;
            (next < QUEUES).then(|| {
                self.used += 1;
                next
            })
        });
        number.map(ReadyNumber)
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pages {
    /// Announces queue `number` from inside this process.
    pub(super) fn announce(&self, number: ReadyNumber) {
        self.own.insert(number.0);
        ring(&self.own, None);
    }

    /// The page for `link`, made if there is none.
    pub(super) fn page(&self, link: &Arc<Link>) -> Result<Arc<Page>, Error> {
        let mut pages = lock(&self.of_links);
        if let Some(page) = pages.iter().find(|page| Arc::ptr_eq(&page.link, link)) {
            return Ok(Arc::clone(page));
        }
        // Those of which no queue is left.
        pages.retain(|page| Arc::strong_count(page) > 1);
        let page = Arc::new(Page::new(link)?);
        pages.push(Arc::clone(&page));
        Ok(page)
    }

    fn for_each(&self, mut f: impl FnMut(&ReadySet)) {
        f(&self.own);
        for page in lock(&self.of_links).iter() {
            page.set().into_iter().for_each(&mut f);
        }
    }
}

/// Announces the queue of `line` to the set that it names. `segment` and `pipes` are the owner's.
#[cold]
pub(super) fn announce(line: &WaitLine, segment: &Mapping, pipes: Option<&PeerPipes>) {
    let Some((at, number)) = line.ready_set() else { return };
    if let Some(set) = Some(at).filter(|at| at.is_multiple_of(PAGE)).and_then(|at| segment.at(at)) {
        ReadySet::insert(set, number);
        ring(set, pipes);
    }
}

/// Wakes the threads that sleep on a set.
fn ring(set: &ReadySet, pipes: Option<&PeerPipes>) {
    let bits = set.line.ring();
    if bits != 0 {
        set.line.set_woken_from(this_cpu());
        wake_sleepers(&set.line, bits, pipes);
    }
}

/// The CPU that this thread runs on.
pub(super) fn this_cpu() -> u32 {
    // SAFETY: the call takes no arguments.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

impl SoftReadySet {
    /// An empty set.
    ///
    /// # Errors
    /// When no descriptor is free.
    pub fn new() -> Result<Self, Error> {
        let pages = Pages {
            own: Box::new(ReadySet::fresh()),
            of_links: Mutex::default(),
            numbers: Mutex::default(),
        };
        Ok(Self {
            pages: Arc::new(pages),
            bell: SoftBell::new()?,
            woken_from: AtomicU32::new(0),
            created: CreationStamp::now(),
        })
    }

    /// Has `cq` announced to this set from the next [`SoftCq::announce_next`] on.
    ///
    /// # Errors
    /// When another set watches it, when the segment is full, when [`QUEUES`] are watched, or in a
    /// child that has inherited the set.
    pub fn watch(&self, cq: &SoftCq) -> Result<ReadyNumber, Error> {
        if !self.created.is_this_process() {
            return Err(Error::Invalid("the ready set belongs to the parent process"));
        }
        let number = lock(&self.pages.numbers).take().ok_or(Error::Exhausted("ready set"))?;
        let watched = cq.waiters().announce_to(Some((&self.pages, number)));
        if watched.is_err() {
            lock(&self.pages.numbers).free.push(number.0);
        }
        watched.map(|()| number)
    }

    /// Ends [`Self::watch`]. A bit of `number` that is still set names the next queue that gets it.
    /// Does nothing in a child that has inherited the set: the parent's watch goes on.
    pub fn unwatch(&self, cq: &SoftCq, number: ReadyNumber) {
        if !self.created.is_this_process() {
            return;
        }
        let _ = cq.waiters().announce_to(None);
        self.forget(number);
    }

    /// As [`Self::unwatch`], of a queue that has ended.
    pub fn forget(&self, number: ReadyNumber) {
        if self.created.is_this_process() {
            lock(&self.pages.numbers).free.push(number.0);
        }
    }

    /// By which tests announce numbers as a hostile peer does.
    #[cfg(test)]
    pub(super) fn announcer(&self) -> Arc<Pages> {
        Arc::clone(&self.pages)
    }

    /// Whether [`Self::take`] would find something.
    #[must_use]
    pub fn has_any(&self) -> bool {
        let mut any = false;
        self.pages.for_each(|set| any |= set.has_any());
        any
    }

    /// Takes all announcements. `found` must not use the set.
    pub fn take(&self, mut found: impl FnMut(ReadyNumber)) {
        self.pages.for_each(|set| set.take(|number| found(ReadyNumber(number))));
    }

    /// Whether the thread whose ring was last drained ran on another CPU than this thread. `None`
    /// if that is unknown.
    #[must_use]
    pub fn is_peer_elsewhere(&self) -> Option<bool> {
        let from = self.woken_from.load(Ordering::Relaxed).checked_sub(1)?;
        Some(from != this_cpu())
    }

    /// [Arms](Self::arm) the set, and [takes](Self::take) what has been announced by then. Where
    /// more comes each time, it gives up after a few rounds and makes the descriptor readable: a
    /// hostile peer announces as fast as a thread takes.
    pub fn take_and_arm(&self, mut found: impl FnMut(ReadyNumber)) {
        for _ in 0..MOST_TAKES {
            if self.arm() {
                return;
            }
            self.take(&mut found);
        }
        self.ring();
    }

    /// Has [`Self`]'s descriptor, or its bell's pipe, become readable with the next announcement.
    /// False, without that, if there is something to take already.
    #[must_use]
    pub fn arm(&self) -> bool {
        let bell = self.bell.name();
        self.pages.for_each(|set| {
            set.line.set_bell(0, bell);
            set.line.arm(BELL);
        });
        !self.has_any()
    }

    /// Undoes [`Self::arm`], if no thread sleeps that relies on it: what comes from now on rings no
    /// doorbell. Not even what the calling thread dispatches itself, which it would be told of.
    pub fn disarm(&self) {
        // Only the doorbell of this set is ever armed on its lines.
        self.pages.for_each(|set| _ = set.line.take());
    }

    /// Makes [`Self`]'s descriptor readable.
    pub fn ring(&self) {
        bell::ring(self.bell.id());
    }

    /// The set's doorbell. Where it is given a pipe, both descriptors are to be watched.
    #[must_use]
    pub fn bell(&self) -> &SoftBell {
        &self.bell
    }

    /// Takes the rings of the descriptor; returns whether there were any. Call before
    /// [`Self::take`], so that it is known which peer has rung.
    pub fn drain(&self) -> bool {
        self.note_waker();
        self.bell.take_all()
    }

    /// As [`Self::drain`], but leaves the rings where they are: for a ring of the bell's pipe where
    /// that is watched by edges.
    pub fn note_waker(&self) {
        self.pages.for_each(|set| {
            let from = set.line.woken_from().filter(|_| set.has_any());
            if let Some(cpu) = from {
                self.woken_from.store(cpu.wrapping_add(1), Ordering::Relaxed);
            }
        });
    }
}

/// Readable after an announcement for which the set was [armed](SoftReadySet::arm), until
/// [`SoftReadySet::drain`]. Once its bell has a pipe, that may be readable in its stead.
impl AsFd for SoftReadySet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

impl AsRawFd for SoftReadySet {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// How often [`SoftReadySet::take_and_arm`] takes what has come meanwhile.
const MOST_TAKES: usize = 4;
