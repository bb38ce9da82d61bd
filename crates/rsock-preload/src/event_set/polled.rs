//! An epoll set among the descriptors of `poll` and `select`, and as a member of another set.

use super::ring::Found;
use super::{EventSet, PolledEventSet, State, in_core};
use rsock_core::accelerate::{Changed, PolledSet};
use rsock_core::interrupt::Section;
use rustix::fd::RawFd;
use std::time::Duration;

impl std::fmt::Debug for PolledEventSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PolledEventSet").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl PolledEventSet {
    /// As [`Self::is_ready`], with the number of news so far, which wraps.
    pub(super) fn look(&self) -> (bool, u32) {
        let _section = Section::enter();
        let mut state = self.set.lock();
        state.fd = self.fd;
        (state.has_something_to_report(self.set), state.n_news)
    }

    /// Another descriptor of the set.
    pub(super) fn other_number(&self) -> Option<RawFd> {
        super::numbers_of(self.set).find(|&other| other != self.fd)
    }

    /// Has the kernel's set become readable with the next news, also while it is ready. False if
    /// there are news already.
    pub(super) fn arm_for_news(&self) -> bool {
        let _section = Section::enter();
        let mut state = self.set.lock();
        state.is_polled = true;
        state.arm()
    }
}

impl PolledSet for PolledEventSet {
    fn is_ready(&self) -> bool {
        in_core(|| {
            let mut state = self.set.lock();
            state.fd = self.fd;
            usize::from(state.has_something_to_report(self.set))
        }) == 1
    }

    fn arm(&self) -> Result<Option<Duration>, Changed> {
        let _section = Section::enter();
        let mut state = self.set.lock();
        state.is_polled = true;
        let is_quiet = state.candidates.is_empty() && state.arm();
        if is_quiet { Ok(state.longest_sleep()) } else { Err(Changed) }
    }
}

impl State {
    /// Has the doorbell rung by what is announced next. False if there is something already.
    fn arm(&self) -> bool {
        // Nothing is announced to a child.
        self.is_inherited || self.own_fds.as_ref().is_none_or(|own| own.ready.arm())
    }

    /// Whether a wait would report something of the members that the library watches. Takes the
    /// events of this library's own descriptors, so that the kernel's set is readable afterwards
    /// for what the program is told.
    pub(super) fn has_something_to_report(&mut self, set: &EventSet) -> bool {
        self.take_announced(set);
        // Those of a parent are the parent's to take.
        if let Some(own_fds) = self.own_fds.clone().filter(|_| !self.is_inherited) {
            own_fds.ready.drain();
            own_fds.take_socket_events(|event| self.note_socket_event(event));
        }
        let n = self.candidates.len();
        (0..n).map_while(|_| self.next_candidate_reports(set)).fold(false, |any, one| any | one)
    }

    /// Whether a wait would report a candidate. Looks no further than to the first of these, which
    /// is the first candidate then: its turn is not lost.
    pub(super) fn has_candidate_to_report(&mut self, set: &EventSet) -> bool {
        let n = self.candidates.len();
        let has_any = (0..n).map_while(|_| self.next_candidate_reports(set)).any(|one| one);
        if has_any && let Some(number) = self.candidates.pop_back() {
            self.candidates.push_front(number);
        }
        has_any
    }

    /// Whether a wait would report the first candidate, which is the last one then.
    fn next_candidate_reports(&mut self, set: &EventSet) -> Option<bool> {
        let number = self.candidates.pop_front()?;
        Some(matches!(self.look_without_report(set, number), Found::Event(_)))
    }
}
