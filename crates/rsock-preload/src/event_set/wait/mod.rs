//! `epoll_wait` on sets that this process has made.

mod kernel;
mod rings;
#[cfg(test)]
mod tests;

use super::mistake::is_mistaken;
use super::{BRIEFLY, EventSet, PolledEventSet, State, in_core, needs_library, report};
use crate::own_fds::OwnEvent;
use crate::slot::Handle;
use crate::{arg, errno};
use libc::{c_int, epoll_event};
use rsock_core::accelerate::{PolledSet, Rest, StreamRef, spin_until};
use rsock_core::interrupt::{Section, Watch};
use rustix::fd::RawFd;
use rustix::thread::{Timespec, nanosleep};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// One call of the program.
pub(crate) struct Wait<'a> {
    /// The set.
    pub(crate) set: RawFd,
    /// Where the events go, and for how many there is room.
    pub(crate) events: *mut epoll_event,
    /// At least 1.
    pub(crate) room: usize,
    /// How long it may take; none means for ever.
    pub(crate) limit: Option<Duration>,
    /// Whether the program has given a signal mask, which is in force during each sleep.
    pub(crate) is_masked: bool,
    /// Calls the kernel with the program's signal mask, and with this room for events and limit.
    pub(crate) sleep: &'a Sleep<'a>,
}

pub(crate) type Sleep<'a> = dyn Fn(*mut epoll_event, usize, Option<Duration>) -> c_int + 'a;

/// Most events that one call returns.
const MOST: usize = 128;

/// After its time is over, a wait that has not slept yet tries so often to sleep.
const MOST_ROUNDS_OVER: u32 = 4;
/// After so many looks in a row that found nothing to report, a wait asks the kernel: a peer may
/// announce for ever what is nothing.
const MOST_ROUNDS_AWAKE: u32 = 64;
/// Waits as `epoll_wait(2)` does. Returns the number of events, or -1 with `errno` set.
///
/// # Safety
/// `events` is memory of the program, or an address where there is none.
pub(crate) unsafe fn wait(set: &'static EventSet, call: &Wait<'_>) -> c_int {
    // SAFETY: the caller's promise; integers.
    let first = unsafe { arg::load(call.events) };
    // SAFETY: as above. The program gets back what was there.
    let is_there = first.and_then(|first| unsafe { arg::store(&first, call.events) });
    if is_there.is_err() {
        let polled = PolledEventSet { set, fd: call.set };
        // The first looks may lead to events of this library's own, which the last takes.
        if [(); 3].map(|()| polled.is_ready())[2] {
            return errno::fail_int(libc::EFAULT);
        }
        // The kernel keeps what it cannot report.
        return (call.sleep)(call.events, call.room, call.limit);
    }
    // SAFETY: the caller's promise.
    let n_places = unsafe { report::places(call.events, call.room.min(MOST)) };
    // The program's buffer gets the events that are returned and no others.
    let mut room = [epoll_event { events: 0, u64: 0 }; MOST];
    let n = wait_in(set, call, &mut room[..n_places]);
    let Ok(n) = usize::try_from(n) else { return n };
    // SAFETY: the caller's promise.
    unsafe { report::hand_over(set, &mut room[..n], call.events) }
}

fn wait_in(set: &'static EventSet, call: &Wait<'_>, room: &mut [epoll_event]) -> c_int {
    let limit = call.limit.map(|limit| if is_mistaken!(EarlyTimeout) { limit / 2 } else { limit });
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let watch = Watch::begin();
    let is_poll = call.limit == Some(Duration::ZERO);
    // The kernel delivers a pending signal that the mask of the wait lets through.
    let mut may_end = is_poll;
    let (mut rounds_over, mut rounds_awake) = (0, 0);
    let mut rest = Rest::default();
    loop {
        match in_core(|| set.collect(call.set, room, is_poll)) {
            0 => {}
            n => return n,
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let is_over = left.is_some_and(|left| left.is_zero());
        if is_over && may_end {
            return 0;
        }
        if watch.has_fired() {
            return errno::fail_int(libc::EINTR);
        }
        rounds_awake += 1;
        let must_sleep = rounds_awake > MOST_ROUNDS_AWAKE;
        if !is_over && !must_sleep && set.is_watching() && set.spin() {
            continue;
        }
        rounds_over += u32::from(is_over);
        may_end |= rounds_over > MOST_ROUNDS_OVER;
        let Some(bound) = set.begin_sleep(call.set, must_sleep) else { continue };
        rounds_awake = 0;
        let limit = [left, bound].into_iter().flatten().min();
        let limit = limit.map(|limit| limit.max(Duration::from_nanos(1)));
        let limit = if call.is_masked { limit } else { rest.bound(limit) };
        if watch.has_fired() {
            set.n_sleepers.fetch_sub(1, Ordering::AcqRel);
            return errno::fail_int(libc::EINTR);
        }
        let n = (call.sleep)(room.as_mut_ptr(), room.len(), limit);
        may_end |= n == 0;
        set.n_sleepers.fetch_sub(1, Ordering::AcqRel);
        if n < 0 {
            return n;
        }
        if n == 0 && rest.is_due() {
            in_core(|| {
                rest.work();
                0
            });
        }
        let n = in_core(|| set.after_sleep(room, n.cast_unsigned() as usize));
        if n != 0 {
            return n;
        }
        if set.is_inherited() {
            // The parent takes this library's own events, as soon as it waits.
            let limit = limit.map_or(BRIEFLY, |limit| limit.min(BRIEFLY));
            let tv_nsec = limit.subsec_nanos().into();
            let _ = nanosleep(&Timespec { tv_sec: 0, tv_nsec });
        }
    }
}

/// As [`wait`], also for a set that the library does not know.
///
/// # Safety
/// As [`wait`].
pub(crate) unsafe fn wait_by_kernel_or(set: Option<&'static EventSet>, call: &Wait<'_>) -> c_int {
    if let Some(set) = set.filter(|set| needs_library(set)) {
        // SAFETY: the caller's promise.
        return unsafe { wait(set, call) };
    }
    (call.sleep)(call.events, call.room, call.limit)
}

/// Calls the kernel for a wait of a set that has no rings yet. The thread is to be woken when it
/// has some; none if it has some by now, which another thread may serve without a look at this one.
/// A thread that is cancelled there stays counted, which costs wake-ups and loses none.
pub(crate) fn while_asleep(set: &EventSet, call: impl Fn() -> c_int) -> Option<c_int> {
    set.n_sleepers.fetch_add(1, Ordering::SeqCst);
    let n = (!needs_library(set)).then(call);
    set.n_sleepers.fetch_sub(1, Ordering::AcqRel);
    n
}

/// Removes this library's own events from `events`, which the kernel has returned; returns how many
/// are left.
pub(crate) fn without_own(set: &'static EventSet, events: &mut [epoll_event]) -> c_int {
    in_core(|| set.without_own(events))
}

impl EventSet {
    /// What there is now, of the rings and of the kernel.
    fn collect(&self, fd: RawFd, room: &mut [epoll_event], asks_kernel: bool) -> usize {
        let mut state = self.lock();
        state.fd = fd;
        state.begin_turn();
        state.take_announced(self);
        let mut n = 0;
        let has_found = self.has_found.load(Ordering::Acquire);
        let is_due = asks_kernel || has_found || state.is_kernel_due(self);
        let is_starved = is_mistaken!(StarvedListener) && !state.candidates.is_empty();
        let is_due = is_due && !is_starved;
        let is_rings_turn = std::mem::take(&mut state.is_rings_turn);
        if is_rings_turn {
            // What the kernel knows of members that rings have news of is reported at once.
            state.take_own_event(OwnEvent::Sockets);
            n += state.look_at_candidates(self, room);
        }
        if is_due {
            n = state.ask_kernel(self, room, n, has_found);
        }
        let has_room = n < room.len();
        n += state.look_at_candidates(self, &mut room[n..]);
        if n != 0 && !state.impatient.is_empty() {
            // Bytes may have come after the look at one watch of their stream and before that at
            // another. The kernel would report both in one wait.
            state.take_own_event(OwnEvent::Sockets);
            state.take_announced(self);
            n += state.look_at_candidates(self, &mut room[n..]);
        }
        if state.reported.take_left_ring() {
            n = state.ask_kernel(self, room, n, false);
        }
        state.is_rings_turn = !has_room && !is_rings_turn && !state.candidates.is_empty();
        if n != 0 {
            state.leave_to_sleepers(self);
        }
        n
    }

    /// Spins until something has been announced, or has happened to a stream between hosts.
    fn spin(&self) -> bool {
        let (own_fds, remote) = {
            let _section = Section::enter();
            let state = self.lock();
            (state.own_fds.clone(), state.spun_remote())
        };
        let Some(own_fds) = own_fds else { return false };
        let has_changed = |(_, handle, mark): &(u32, Handle, u32)| match handle.stream() {
            StreamRef::Accelerated(stream) => stream.has_changed_since(*mark),
            StreamRef::Native(_) => false,
        };
        let has_news = || own_fds.ready.has_any() || remote.iter().any(has_changed);
        let n_watched = self.n_watched.load(Ordering::Relaxed) as usize;
        if !spin_until(n_watched, || own_fds.ready.is_peer_elsewhere(), has_news) {
            return false;
        }
        let mut changed = remote.iter().filter(|remote| has_changed(remote)).peekable();
        if changed.peek().is_some() {
            let _section = Section::enter();
            let mut state = self.lock();
            changed.for_each(|(number, ..)| state.note_candidate(*number));
        }
        true
    }

    /// To be called before the thread sleeps in the kernel. Returns for how long at most, or `None`
    /// if there is something to look at, unless it `must_sleep`. Counts the thread as a sleeper.
    fn begin_sleep(&self, fd: RawFd, must_sleep: bool) -> Option<Option<Duration>> {
        let _section = Section::enter();
        let mut state = self.lock();
        state.fd = fd;
        self.n_sleepers.fetch_add(1, Ordering::SeqCst);
        let own_fds = state.own_fds.as_ref().filter(|_| !state.is_inherited);
        own_fds.into_iter().for_each(|own| own.add_pipe_if_busy(fd));
        let has_something = !state.candidates.is_empty()
            || self.has_found.load(Ordering::Acquire)
            || !is_mistaken!(LostWakeUp) && own_fds.is_some_and(|own| !own.ready.arm());
        if has_something && must_sleep {
            return Some(Some(Duration::ZERO));
        }
        if has_something {
            self.n_sleepers.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        Some(state.longest_sleep())
    }

    fn is_inherited(&self) -> bool {
        let _section = Section::enter();
        self.lock().is_inherited
    }

    /// Removes this library's own events from the first `taken` of `room`, which a sleep has
    /// returned, and adds what the rings have, if there are others; returns how many there are.
    fn after_sleep(&self, room: &mut [epoll_event], taken: usize) -> usize {
        let mut state = self.lock();
        state.begin_turn();
        let n = state.without_own(&mut room[..taken]);
        let fd = state.fd;
        let mut n = state.reported.keep_new(fd, &mut room[..n]);
        if taken < room.len() {
            state.note_kernel_asked(self, n);
        } else if n == 0 {
            // There was no room for others beside this library's own. The kernel reports in turn:
            // the next sleep returns them, or the next look once the kernel is due again. PERF: to
            // ask at once was one of five system calls that a backend of PostgreSQL, which has room
            // for one event, made for each query.
            state.kernel_asked = state.kernel_asked.map(|_| Instant::now());
        } else if n < taken {
            n = state.take_from_kernel(self, room, n);
            state.note_kernel_asked(self, n);
        }
        if n != 0 && n < room.len() {
            // The kernel would report all that is ready by now in one wait.
            state.take_announced(self);
            n += state.look_at_candidates(self, &mut room[n..]);
            if state.reported.take_left_ring() {
                n = state.ask_kernel(self, room, n, false);
            }
        }
        if n != 0 {
            state.leave_to_sleepers(self);
        }
        n
    }

    fn without_own(&self, events: &mut [epoll_event]) -> usize {
        if events.iter().all(|event| OwnEvent::of(event).is_none()) {
            return events.len();
        }
        self.lock().without_own(events)
    }
}

impl State {
    /// A wait begins to look.
    fn begin_turn(&mut self) {
        self.turn += 1;
        self.reported.clear();
    }

    /// What a wait leaves that returns events is for another thread. This one may have taken the
    /// ring that was to wake that.
    fn leave_to_sleepers(&self, set: &EventSet) {
        let has_any = || self.own_fds.as_ref().is_some_and(|own_fds| own_fds.ready.has_any());
        let has_left = || !self.candidates.is_empty() || has_any();
        if set.n_sleepers.load(Ordering::SeqCst) != 0 && has_left() {
            self.ring();
        }
    }

    /// For how long a thread may sleep, without a limit if none.
    pub(super) fn longest_sleep(&self) -> Option<Duration> {
        let brief = (!self.impatient.is_empty()).then_some(BRIEFLY);
        let check = self.check_at.map(|at| at.saturating_duration_since(Instant::now()));
        [brief, check].into_iter().flatten().min()
    }
}
