//! Which descriptors are members of epoll sets ([`crate::event_set`]): below the descriptor table,
//! which keeps the streams of such descriptors on TCP until their sets know of rings.
//!
//! A connection that the kernel alone serves so far has its watch noted here and nowhere else
//! ([`KernelWatch`]): short connections enter and leave their sets without a lock. When the table
//! adopts such a connection, its set makes a member of the watch ([`on_adoption`]).

use crate::rows::{self, Row, row, row_or_map};
use libc::{c_int, epoll_event};
use rsock_core::accelerate::{AcceleratedStream, WatchId};
use std::sync::OnceLock;
use std::sync::atomic::{Ordering, fence};

/// Beside the watch of a descriptor: it has been a member of more than one set.
const IN_SEVERAL: u64 = 1 << 63;
/// The word is a [`KernelWatch`].
const BY_KERNEL: u64 = 1 << 62;
/// Beside [`BY_KERNEL`]: a thread changes the watch, and the others wait for it.
const CHANGING: u64 = 1 << 61;

/// What is known of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Membership {
    /// It is a member of no set.
    None,
    /// The kernel alone watches it, for one set.
    ByKernel,
    /// It has one watch.
    Of(WatchId),
    /// It has been a member of several sets.
    Several,
}

/// A set as a watch of the kernel's names it: less than 2^61.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KernelWatch(pub(crate) u64);

fn word(fd: c_int) -> u64 {
    row(fd).map_or(0, |at| at.watch.load(Ordering::SeqCst))
}

/// The sets that `fd` is a member of, as far as is known.
pub(crate) fn membership(fd: c_int) -> Membership {
    match word(fd) {
        0 => Membership::None,
        kernels if kernels & BY_KERNEL != 0 => Membership::ByKernel,
        several if several & IN_SEVERAL != 0 => Membership::Several,
        one => Membership::Of(WatchId(one)),
    }
}

/// The watch of `fd`, the first of several. None if the kernel alone watches it.
#[inline]
pub(crate) fn watch_of(fd: c_int) -> Option<WatchId> {
    let word = word(fd);
    (word != 0 && word & BY_KERNEL == 0).then_some(WatchId(word & !IN_SEVERAL))
}

/// Notes a watch of `fd`; false if the number is out of range, or the kernel alone watches it.
pub(crate) fn note(fd: c_int, watch: WatchId) -> bool {
    let Some(at) = row_or_map(fd) else { return false };
    let more = |known: u64| match known {
        0 => Some(watch.0),
        known => (known & BY_KERNEL == 0).then_some(known | IN_SEVERAL),
    };
    at.watch.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).is_ok()
}

/// Ends a watch of `fd`. A descriptor that was in several sets counts as such until it is closed.
pub(crate) fn forget(fd: c_int, watch: WatchId) {
    if let Some(at) = row(fd) {
        let _ = at.watch.compare_exchange(watch.0, 0, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// `fd` is no longer a member of any set.
pub(crate) fn forget_all(fd: c_int) {
    if let Some(at) = row(fd) {
        at.watch.store(0, Ordering::SeqCst);
    }
}

/// A thread that changes the kernel's watch of a descriptor, inside of a section: other threads
/// wait for it.
#[must_use]
pub(crate) struct Change {
    at: &'static Row,
    before: u64,
}

/// Begins to change what the kernel watches of `fd`, which is `watch` so far. `None` if it is not.
#[inline]
pub(crate) fn begin_change(fd: c_int, watch: Option<KernelWatch>) -> Option<Change> {
    let (at, before) = match watch {
        Some(watch) => (row(fd)?, BY_KERNEL | watch.0),
        None => (row_or_map(fd)?, 0),
    };
    let claimed = at.watch.compare_exchange(
        before,
        BY_KERNEL | CHANGING,
        Ordering::SeqCst,
        Ordering::Relaxed,
    );
    claimed.is_ok().then_some(Change { at, before })
}

impl Change {
    /// The kernel watches it as the program has asked.
    #[inline]
    pub(crate) fn end_watched(self, watch: KernelWatch, event: epoll_event) {
        self.at.watched_events.store(event.events, Ordering::Relaxed);
        self.at.watched_data.store(event.u64, Ordering::Relaxed);
        self.end(BY_KERNEL | watch.0);
    }

    /// The kernel does not watch it any more.
    #[inline]
    pub(crate) fn end_unwatched(self) {
        self.end(0);
    }

    /// Nothing has changed.
    pub(crate) fn undo(self) {
        let before = self.before;
        self.end(before);
    }

    /// The set has a member for it. False if the descriptor was closed meanwhile.
    pub(crate) fn end_as_member(self, watch: WatchId) -> bool {
        self.end(watch.0)
    }

    fn event(&self) -> epoll_event {
        let events = self.at.watched_events.load(Ordering::Relaxed);
        epoll_event { events, u64: self.at.watched_data.load(Ordering::Relaxed) }
    }

    #[inline]
    fn end(&self, word: u64) -> bool {
        // SYNC(kernel watch): publishes the event. Fails where another thread has closed the
        // number. SeqCst: a thread that adds a descriptor ends the change and then looks whether
        // it has been adopted, and a thread that adopts it looks here afterwards.
        let (order, claim) = (Ordering::SeqCst, BY_KERNEL | CHANGING);
        self.at.watch.compare_exchange(claim, word, order, Ordering::Relaxed).is_ok()
    }
}

/// The kernel's watch of `fd`, if it has one and no thread is changing it.
pub(crate) fn kernel_watch_of(fd: c_int) -> Option<KernelWatch> {
    let word = word(fd);
    (word & (BY_KERNEL | CHANGING) == BY_KERNEL).then_some(KernelWatch(word & !BY_KERNEL))
}

/// The kernel's watch of `fd`, if it has one, for a caller that changes it. Waits for
/// threads that change it.
pub(crate) fn take_kernel_watch(fd: c_int) -> Option<(Change, KernelWatch, epoll_event)> {
    loop {
        let word = word(fd);
        if word & BY_KERNEL == 0 {
            return None;
        }
        let watch = KernelWatch(word & !BY_KERNEL);
        if word & CHANGING == 0
            && let Some(change) = begin_change(fd, Some(watch))
        {
            let event = change.event();
            return Some((change, watch, event));
        }
        rustix::thread::sched_yield();
    }
}

/// The descriptors that the kernel alone watches for `watch`.
pub(crate) fn watched_by_kernel(watch: KernelWatch) -> impl Iterator<Item = c_int> {
    let end = c_int::try_from(rows::end()).unwrap_or(c_int::MAX);
    (0..end).filter(move |&fd| word(fd) == BY_KERNEL | watch.0)
}

/// In a forked child: ends the changes that threads of the parent were making, which this process
/// does not have, and calls `undecided` with their descriptors.
pub(crate) fn forget_changes(undecided: impl Fn(c_int)) {
    let end = c_int::try_from(rows::end()).unwrap_or(c_int::MAX);
    for fd in (0..end).filter(|&fd| word(fd) == BY_KERNEL | CHANGING) {
        forget_all(fd);
        undecided(fd);
    }
}

static ON_ADOPTION: OnceLock<fn(c_int)> = OnceLock::new();

/// Registers the function that makes a member of the kernel's watch of a descriptor.
pub(crate) fn on_adoption(f: fn(c_int)) {
    let _ = ON_ADOPTION.set(f);
}

/// Keeps the new stream of `fd` on TCP if a set of the kernel's watches it.
pub(crate) fn hold_if_member(fd: c_int, stream: &AcceleratedStream) {
    // SYNC(kernel watch): see `Change::end`; the caller has claimed the descriptor before.
    fence(Ordering::SeqCst);
    if membership(fd) == Membership::ByKernel
        && let Some(make_member) = ON_ADOPTION.get()
    {
        make_member(fd);
    }
    if let Some(watch) = watch_of(fd) {
        let _ = stream.hold_on_tcp(watch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_thread_that_takes_a_kernel_watch_waits_for_one_that_changes_it() {
        // A number that no test has open.
        let fd = 900_001;
        let watch = KernelWatch(3 << 32 | 5);
        let change = begin_change(fd, None).expect("no watch so far");
        assert!(begin_change(fd, None).is_none() && begin_change(fd, Some(watch)).is_none());
        let taking = thread::spawn(move || {
            let (change, of, event) = take_kernel_watch(fd).expect("a watch of the kernel's");
            change.end_unwatched();
            (of, event.events, { event.u64 })
        });
        change.end_watched(watch, epoll_event { events: 1, u64: 77 });
        assert_eq!(taking.join().expect("taken"), (watch, 1, 77));
        assert!(membership(fd) == Membership::None && take_kernel_watch(fd).is_none());
    }

    #[test]
    fn what_is_undone_is_as_before_and_a_watch_of_the_kernels_is_no_watch_of_the_librarys() {
        let (fd, watch) = (900_002, KernelWatch(1 << 32));
        begin_change(fd, None).expect("no watch").undo();
        assert!(membership(fd) == Membership::None);
        let event = epoll_event { events: 1, u64: 2 };
        begin_change(fd, None).expect("no watch").end_watched(watch, event);
        begin_change(fd, Some(watch)).expect("its watch").undo();
        assert!(membership(fd) == Membership::ByKernel && kernel_watch_of(fd) == Some(watch));
        assert!(watch_of(fd).is_none() && !note(fd, WatchId(7)));
        assert!(watched_by_kernel(watch).eq([fd]));
        let (change, ..) = take_kernel_watch(fd).expect("its watch");
        assert!(change.end_as_member(WatchId(7)) && watch_of(fd) == Some(WatchId(7)));
        forget_all(fd);
    }

    #[test]
    fn a_second_watch_makes_a_member_of_several_sets_until_all_are_forgotten() {
        // A number that no test has open.
        let fd = 900_000;
        assert!(membership(fd) == Membership::None && watch_of(fd).is_none());
        assert!(note(fd, WatchId(7)));
        assert!(membership(fd) == Membership::Of(WatchId(7)));
        forget(fd, WatchId(8));
        assert_eq!(watch_of(fd), Some(WatchId(7)));
        assert!(note(fd, WatchId(9)));
        forget(fd, WatchId(7));
        assert!(membership(fd) == Membership::Several);
        assert_eq!(watch_of(fd), Some(WatchId(7)));
        forget_all(fd);
        assert!(membership(fd) == Membership::None);
        assert!(!note(-1, WatchId(1)));
    }
}
