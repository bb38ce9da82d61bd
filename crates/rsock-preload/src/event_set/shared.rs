//! Sets that the kernel alone is to serve: a process without this library, or a set of which the
//! library does not know, watches them, or a child has them too.
//!
//! The streams of such a set go back to TCP. Then their entries go back into the kernel's set, and
//! the descriptors of this library leave it, so that nothing tells it from a set without the
//! library.

use super::{
    EventSet, PolledEventSet, SETS, Sets, State, kernel_watch, lock, numbers_of, stream_of,
};
use crate::own_fds::OwnEvent;
use crate::slot::{self, Handle};
use crate::{fdtable, guard};
use rsock_core::interrupt::Section;
use rustix::fd::RawFd;
use std::ptr;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long all streams in sets together may take to leave their rings before a fork.
const LEAVE_LIMIT: Duration = Duration::from_millis(10);

/// A member of a set that the kernel alone is to serve.
#[derive(Clone, Copy)]
pub(crate) enum StayingMember {
    Stream(RawFd),
    Set(&'static EventSet),
}

/// Which members that are sets go back to the kernel's set.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nested {
    /// Those that the kernel alone serves.
    Plain,
    /// All: those in which the library watches streams are about to lose these.
    All,
}

/// No stream that enters `set` moves to the ring any more. Returns the members, whose streams are
/// to leave the ring before [`settle`].
pub(crate) fn keep_on_tcp(set: &'static EventSet) -> Vec<StayingMember> {
    let _section = Section::enter();
    set.is_shared.store(true, Ordering::Relaxed);
    kernel_watch::make_members(set);
    let members = guard::call_core(|| {
        let mut state = set.lock();
        state.forget_deleted(set);
        let all = state.members.all().map(|(_, member)| match member.set {
            Some(of_member) => StayingMember::Set(of_member.set),
            None => StayingMember::Stream(member.fd),
        });
        Ok(all.collect())
    });
    members.unwrap_or_default()
}

/// Lets the members of `set` that the kernel alone can serve by now go back into the kernel's set.
pub(crate) fn settle(set: &'static EventSet) {
    let _section = Section::enter();
    let _ = guard::call_core(|| {
        set.lock().settle(set, Nested::Plain);
        Ok(())
    });
}

/// As [`settle`], for all sets of the program.
pub(crate) fn settle_all() {
    let all = all_sets();
    // A set in a set goes back when nothing in it is the library's: the innermost first.
    for _ in 0..MOST_NESTED {
        all.iter().copied().for_each(settle);
    }
}

/// As [`settle`], for the sets that the program has after an `exec`.
pub(crate) fn settle_for_exec() {
    let _section = Section::enter();
    for set in all_sets().into_iter().filter(|set| is_left_open(set)) {
        let _ = guard::call_core(|| {
            set.lock().settle(set, Nested::All);
            Ok(())
        });
    }
}

/// As [`settle`], for the sets that a program gets which is about to be started.
pub(crate) fn settle_for_spawn() {
    let all: Vec<_> = all_sets().into_iter().filter(|set| is_left_open(set)).collect();
    for _ in 0..MOST_NESTED {
        all.iter().copied().for_each(settle);
    }
}

/// Sets that have other sets among their members.
pub(crate) fn nesting_sets() -> Vec<&'static EventSet> {
    let _section = Section::enter();
    let is_nesting = |set: &&EventSet| !set.lock().members.watched_sets().is_empty();
    all_sets().into_iter().filter(is_nesting).collect()
}

/// Whether `set` is `outer`, or is in it by way of any number of sets.
pub(crate) fn is_in(set: &'static EventSet, outer: &'static EventSet) -> bool {
    let _section = Section::enter();
    let inner: Vec<_> = outer.lock().members.all().filter_map(|(_, member)| member.set).collect();
    ptr::eq(set, outer) || inner.into_iter().any(|inner| is_in(set, inner.set))
}

/// The process is about to fork, and its streams have been asked to go back to TCP. Most do so at
/// once. Then the set is the kernel's alone for both processes.
pub(crate) fn settle_before_fork() {
    let _section = Section::enter();
    let _ = guard::call_core(|| {
        let mut leaving: Vec<Handle> = Vec::new();
        for set in all_sets() {
            let was_shared = set.is_shared.swap(true, Ordering::Relaxed);
            let mut state = set.lock();
            state.forget_deleted(set);
            // What had not left the ring by the last fork may stay there for long.
            if !was_shared {
                let streams = state.members.all().filter(|(_, member)| member.ring.is_some());
                leaving.extend(streams.filter_map(|(_, member)| stream_of(member.fd)));
            }
        }
        slot::await_leave(&leaving, LEAVE_LIMIT);
        Ok(())
    });
    settle_all();
    for set in all_sets() {
        let _ = guard::call_core(|| {
            set.lock().take_own_events(set);
            Ok(())
        });
    }
}

/// Held while the process forks.
pub(crate) struct ForkLocks {
    _found: Vec<MutexGuard<'static, Vec<u32>>>,
    _states: Vec<MutexGuard<'static, State>>,
    _sets: MutexGuard<'static, Sets>,
}

/// The process is about to fork: no other thread holds a lock of a set in the child then.
pub(crate) fn prepare_fork() -> ForkLocks {
    let sets = lock(&SETS);
    let states = lock_all(&sets.all);
    // In this order: a thread that finds a path holds locks of its stream.
    let found = sets.all.iter().map(|set| lock(&set.found)).collect();
    for set in &sets.all {
        set.is_shared.store(true, Ordering::Relaxed);
    }
    ForkLocks { _found: found, _states: states, _sets: sets }
}

/// Locks all sets. A thread that holds the lock of a set may wait for that of one in it, so this
/// thread waits for a lock only while it holds no other.
fn lock_all(sets: &[&'static EventSet]) -> Vec<MutexGuard<'static, State>> {
    let mut first = 0;
    'again: loop {
        let mut held = Vec::with_capacity(sets.len());
        held.extend(sets.get(first).map(|set| set.lock()));
        for (i, set) in sets.iter().enumerate().filter(|(i, _)| *i != first) {
            let Some(state) = set.try_lock() else {
                first = i;
                continue 'again;
            };
            held.push(state);
        }
        return held;
    }
}

/// In a forked child: what the parent's sets watch on rings is not announced to the child, which
/// looks at it again and again until all of it is back on TCP.
pub(crate) fn after_fork_in_child() {
    kernel_watch::after_fork_in_child();
    for set in all_sets() {
        let mut state = set.lock();
        state.is_inherited = true;
        let watched: Vec<u32> = state.members.watched().collect();
        for number in watched {
            state.note_candidate(number);
        }
    }
}

fn all_sets() -> Vec<&'static EventSet> {
    let _section = Section::enter();
    lock(&SETS).all.clone()
}

/// Whether a descriptor of the set stays open in a program that this process becomes or starts.
fn is_left_open(set: &'static EventSet) -> bool {
    numbers_of(set).any(|fd| fdtable::closes_on_exec(fd) == Some(false))
}

impl State {
    fn settle(&mut self, set: &'static EventSet, nested: Nested) {
        self.forget_deleted(set);
        let watched: Vec<u32> = self.members.watched().collect();
        for number in watched {
            match self.members.get(number).and_then(|member| member.set) {
                Some(of_member) => self.leave_library_if_plain(set, number, of_member, nested),
                None => self.leave_ring_if_plain(set, number),
            }
        }
        self.end_own_fds(set);
    }

    /// Has the kernel watch a member that is a set.
    fn leave_library_if_plain(
        &mut self,
        set: &EventSet,
        number: u32,
        member: PolledEventSet,
        nested: Nested,
    ) {
        let is_plain = || member.set.lock().own_fds.is_none();
        if (nested == Nested::All || is_plain())
            && let Some(ring) = self.unwatch(set, number, None)
        {
            self.put_back(set, number, ring);
        }
    }

    /// Takes the events of this library's own, unless a thread may be about to wake by them: a
    /// child that polls the set would see it readable, and leaves them to its parent.
    fn take_own_events(&mut self, set: &EventSet) {
        if set.n_sleepers.load(Ordering::SeqCst) == 0 && !self.is_polled {
            self.take_own_event(OwnEvent::Doorbell);
            self.take_own_event(OwnEvent::Sockets);
        }
    }

    /// Forgets the members that the program has deleted.
    fn forget_deleted(&mut self, set: &EventSet) {
        let deleted = self.members.all().filter(|(_, member)| member.is_deleted);
        for number in deleted.map(|(number, _)| number).collect::<Vec<_>>() {
            self.remove(set, number);
        }
    }

    /// Takes the descriptors of this library out of the kernel's set, if the library watches
    /// nothing there any more.
    pub(super) fn end_own_fds(&mut self, set: &EventSet) {
        if self.is_inherited || self.members.watched().next().is_some() {
            return;
        }
        if let Some(own_fds) = self.own_fds.take() {
            own_fds.leave(self.fd);
            self.check_at = None;
            set.has_own_fds.store(false, Ordering::Release);
        }
    }
}

/// So many sets may be in each other (`EP_MAX_NESTS` in Linux, `fs/eventpoll.c`).
const MOST_NESTED: usize = 5;
