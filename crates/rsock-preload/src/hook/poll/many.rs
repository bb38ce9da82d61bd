//! `poll` and `select` of many descriptors, few of which have something to report.
//!
//! The whole call looks at each stream under its locks, and sleeps on each descriptor. Here the
//! streams of a [quiet set](crate::quiet_set) are passed over, and the thread sleeps on the set's
//! descriptor in their place; the rest is polled as a call on few descriptors.

use super::named::{Named, event_flags, fill_in};
use crate::fdtable::datagrams;
use crate::quiet_set::{self, User};
use crate::slot::Direction;
use crate::{fdtable, guard};
use libc::{c_int, pollfd, sigset_t};
use rsock_core::accelerate::{self, PollDescriptor};
use rsock_core::interrupt::Watch;
use rustix::event::PollFlags;
use std::cell::Cell;
use std::time::{Duration, Instant};

/// A call on fewer descriptors looks at all of them.
const MANY: usize = 64;
/// One of so many descriptors is looked at; with more, the set is of little use.
const QUIET_FOR_ONE: usize = 4;
/// One of so many streams joins the set in one call: it costs as much as some looks.
const ONE_JOINS_OF: usize = 16;
/// A call that has not slept so many times, since the set has had something each time, lets the
/// kernel deliver signals once more: a peer may announce for ever what is nothing.
const ROUNDS_AWAKE: u32 = 64;
/// After its time is over, a call looks so often at what the set has.
const MOST_ROUNDS_OVER: u32 = 4;
/// Most calls in a row that do not try this, after tries that were of little use.
const MOST_SKIPPED: u32 = 15;

thread_local! {
    static TRIES: Tries = const { Tries { left_to_skip: Cell::new(0), to_skip: Cell::new(0) } };
}

/// How often to try: where few streams are quiet, a try costs more than the whole call.
struct Tries {
    /// Calls that are still to be skipped.
    left_to_skip: Cell<u32>,
    /// Calls to skip after the next try in vain.
    to_skip: Cell<u32>,
}

impl Tries {
    fn is_due(&self) -> bool {
        let left = self.left_to_skip.get();
        self.left_to_skip.set(left.saturating_sub(1));
        left == 0
    }

    fn learn(&self, has_helped: bool) {
        let to_skip = if has_helped { 0 } else { (2 * self.to_skip.get() + 1).min(MOST_SKIPPED) };
        self.to_skip.set(to_skip);
        self.left_to_skip.set(to_skip);
    }
}

/// Whether a call on so many entries is to try [`poll`].
pub(in crate::hook) fn is_due(n: usize) -> bool {
    n >= MANY && TRIES.with(Tries::is_due)
}

/// Waits for all entries. `None`: the caller is to look at all of them.
///
/// The error is an `errno` of `poll(2)`.
pub(in crate::hook) fn poll(
    fds: &mut [pollfd],
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<Result<usize, c_int>> {
    // The kernel refuses more entries than the process may have descriptors, and here the set's is
    // added.
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    if most.is_some_and(|most| fds.len() as u64 >= most) {
        return None;
    }
    let stream_of = |fd| fdtable::find_in_core(fd, Direction::Recv);
    let user = guard::call_core(|| Ok(quiet_set::begin_use(stream_of))).ok()??;
    let (all, may_join) = (fds.len(), fds.len() / ONE_JOINS_OF);
    let mut call = Call { fds, user, watch: Watch::begin(), may_join, n_looked: all };
    let found = call.wait(limit, mask);
    let has_helped = call.n_looked * QUIET_FOR_ONE < all || call.may_join < may_join;
    TRIES.with(|tries| tries.learn(has_helped));
    Some(found)
}

/// One call.
struct Call<'a> {
    fds: &'a mut [pollfd],
    user: User,
    watch: Watch,
    /// Streams that may still join the set.
    may_join: usize,
    /// How many entries were looked at last.
    n_looked: usize,
}

/// What a look at some of the entries has found.
struct Looked {
    /// How many have events.
    n: usize,
    /// Whether the set has something, too, if it was slept on.
    has_set: bool,
    /// The entries without events that are not passed over from now on.
    rest: Vec<usize>,
}

impl Call<'_> {
    fn wait(&mut self, limit: Option<Duration>, mask: Option<&sigset_t>) -> Result<usize, c_int> {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let at_once = Some(Duration::ZERO);
        let (mut rounds_over, mut rounds_awake) = (0, 0);
        self.fds.iter_mut().for_each(|p| p.revents = 0);
        loop {
            let left = deadline.map(|at| at.saturating_duration_since(Instant::now()));
            let is_over = left.is_some_and(|left| left.is_zero());
            let rest = self.rest();
            self.n_looked = rest.len();
            rounds_awake += 1;
            // The kernel delivers a pending signal that the mask of the call lets through.
            let is_masked = is_over || rounds_awake % ROUNDS_AWAKE == 0;
            let Looked { n, rest, .. } =
                self.look(rest, at_once, mask.filter(|_| is_masked), false)?;
            if n != 0 || limit == at_once {
                return Ok(n);
            }
            if self.watch.has_fired() {
                return Err(libc::EINTR);
            }
            rounds_over += u32::from(is_over);
            if is_over && (rounds_over == MOST_ROUNDS_OVER || !self.user.has_any()) {
                return Ok(0);
            }
            let has_ring = |&at: &usize| fdtable::is_stream(self.fds[at].fd);
            let may_spin = !rest.iter().any(has_ring);
            if is_over || self.user.has_any() || may_spin && self.user.spin() {
                continue;
            }
            let Looked { n, has_set, .. } = self.look(rest, left, mask, true)?;
            if n != 0 || !has_set {
                return Ok(n);
            }
        }
    }

    /// The entries that have to be looked at.
    fn rest(&self) -> Vec<usize> {
        self.user.take();
        let is_looked_at = |(_, p): &(usize, &pollfd)| {
            p.fd >= 0 && !(asks_for_input_alone(p) && self.user.is_quiet(p.fd))
        };
        self.fds.iter().enumerate().filter(is_looked_at).map(|(at, _)| at).collect()
    }

    /// Looks at some entries, and sleeps on them, and on the set if it `has_set`.
    fn look(
        &mut self,
        rest: Vec<usize>,
        limit: Option<Duration>,
        mask: Option<&sigset_t>,
        has_set: bool,
    ) -> Result<Looked, c_int> {
        let numbers = rest.iter().map(|&at| self.fds[at].fd);
        let is_counted = datagrams::begin_kernel_poll(numbers);
        let named: Vec<Option<Named>> = rest
            .iter()
            .map(|&at| Named::find(self.fds[at].fd, event_flags(&self.fds[at])))
            .collect();
        let mut entries: Vec<PollDescriptor<'_>> = Vec::new();
        entries.resize_with(rest.len(), || PollDescriptor::SKIPPED);
        for ((&at, named), entry) in rest.iter().zip(&named).zip(&mut entries) {
            fill_in(entry, &self.fds[at], named.as_ref());
        }
        entries.extend(has_set.then(|| set_entry(&self.user)));
        let found =
            guard::call_core(|| accelerate::poll_since(self.watch, &mut entries, limit, mask));
        datagrams::end_kernel_poll(is_counted);
        let mut looked = Looked { n: found?, has_set: false, rest: Vec::new() };
        if has_set && entries.pop().is_some_and(|set| !set.revents.is_empty()) {
            (looked.n, looked.has_set) = (looked.n - 1, true);
        }
        let found: Vec<PollFlags> = entries.into_iter().map(|entry| entry.revents).collect();
        for ((at, found), named) in rest.into_iter().zip(found).zip(named) {
            self.fds[at].revents = found.bits().cast_signed();
            if found.is_empty() && !self.passes_over(at, named) {
                looked.rest.push(at);
            }
        }
        Ok(looked)
    }

    /// Whether the entry is passed over from now on, of which a look has found nothing.
    fn passes_over(&mut self, at: usize, named: Option<Named>) -> bool {
        let Some(Named::Stream(handle)) = named else { return false };
        let p = self.fds[at];
        let (word, may_join) = (fdtable::word_of(&handle), &mut self.may_join);
        let note = || Ok(self.user.note_nothing(&handle, p.fd, word, may_join));
        asks_for_input_alone(&p) && guard::call_core(note).unwrap_or(false)
    }
}

/// The entry by which the thread sleeps on the streams of the set.
fn set_entry(user: &User) -> PollDescriptor<'_> {
    PollDescriptor { set: Some(user), ..PollDescriptor::new(user.fd(), PollFlags::IN) }
}

/// Whether nothing is asked for but input and the end of the connection.
fn asks_for_input_alone(p: &pollfd) -> bool {
    const INPUT: PollFlags = PollFlags::IN.union(PollFlags::RDNORM);
    const ALWAYS: PollFlags = PollFlags::ERR.union(PollFlags::HUP).union(PollFlags::NVAL);
    let asked = event_flags(p);
    asked.intersects(INPUT) && INPUT.union(PollFlags::RDHUP).union(ALWAYS).contains(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tries_in_vain_become_rare_and_come_back_when_one_helps() {
        let tries = Tries { left_to_skip: Cell::new(0), to_skip: Cell::new(0) };
        let calls_until_due = || (1..).find(|_| tries.is_due());
        let mut apart = Vec::new();
        for _ in 0..6 {
            apart.push(calls_until_due().unwrap_or(0));
            tries.learn(false);
        }
        assert_eq!(apart, [1, 2, 4, 8, 16, 16]);
        assert_eq!(calls_until_due(), Some(16));
        tries.learn(true);
        assert_eq!((calls_until_due(), calls_until_due()), (Some(1), Some(1)));
    }

    #[test]
    fn streams_are_passed_over_if_input_or_ends_alone_are_asked_for() {
        let asks = |events: i16| asks_for_input_alone(&pollfd { fd: 0, events, revents: 0 });
        assert!(asks(libc::POLLIN) && asks(libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP));
        assert!(!asks(libc::POLLOUT) && !asks(libc::POLLIN | libc::POLLOUT));
        assert!(!asks(libc::POLLIN | libc::POLLPRI) && !asks(0) && !asks(libc::POLLRDHUP));
    }
}
