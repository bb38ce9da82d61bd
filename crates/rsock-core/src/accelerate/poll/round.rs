//! One round over all entries: the rings and queues are asked, then the kernel.

use crate::accelerate::StreamRef;
use crate::accelerate::kernel_look::Skipped;
use crate::accelerate::poll::{PollDescriptor, PolledSet};
use crate::accelerate::poll_state::State;
use crate::sys::{self, INPUT};
use rustix::event::PollFlags;
use std::time::Duration;

/// The result of a round over all entries.
#[derive(Default)]
pub(super) struct Round {
    /// An entry has an event.
    pub(super) is_ready: bool,
    /// An entry whose readiness only the kernel knows might be ready already.
    pub(super) kernel_first: bool,
}

/// Asks the rings and queues of all entries.
pub(super) fn ask_rings<'a>(
    entries: &[PollDescriptor<'a>],
    states: &mut [Option<State<'a>>],
) -> Round {
    // First: this thread no longer counts as a kernel-only waiter.
    states.fill_with(|| None);
    let mut round = Round::default();
    for (entry, state) in entries.iter().zip(states).filter(|(entry, _)| entry.fd >= 0) {
        ask_ring(entry, state);
        round.is_ready |= state.as_ref().is_some_and(|state| !state.ready.is_empty());
        round.kernel_first |= state.as_ref().is_none_or(State::kernel_first);
    }
    round
}

/// Leaves no state for a descriptor of which only the kernel knows anything.
fn ask_ring<'a>(entry: &PollDescriptor<'a>, state: &mut Option<State<'a>>) {
    let events = entry.events;
    if let Some(listener) = entry.listener {
        *state = Some(State::of_kernel_or(events, || listener.is_ready()));
    } else if let Some(udp) = entry.udp {
        *state = Some(State::of_udp(udp, events));
    } else if let Some(set) = entry.set {
        *state = Some(State::of_kernel_or(events, || set.is_ready()));
    } else if let Some(stream) = entry.stream.filter(|stream| !stream.is_plain()) {
        let state = state.insert(State::of_kernel(PollFlags::empty()));
        stream.poll_state(entry.open_fd(), events, state);
    }
}

/// Fills in the descriptors for the kernel, in the order of the entries. Returns how many it is
/// asked about.
pub(super) fn ask_kernel(
    entries: &[PollDescriptor<'_>],
    states: &[Option<State<'_>>],
    fds: &mut [libc::pollfd],
    skipped: Skipped,
    is_quick: bool,
) -> usize {
    let mut asked = 0;
    for ((e, state), fd) in entries.iter().zip(states).zip(fds) {
        let events = state.as_ref().map_or(e.events, |s| s.kernel);
        let is_end = |s: &State<'_>| skipped == Skipped::Ends && s.only_ends(e.events);
        let may_skip = |s: &State<'_>| is_end(s) || is_quick && s.is_enough();
        let is_spared = skipped == Skipped::Sockets && e.is_socket;
        let skip = is_spared || state.as_ref().is_some_and(may_skip);
        let number = if skip { -1 } else { e.number() };
        *fd = libc::pollfd { fd: number, events: sys::poll_bits(events), revents: 0 };
        asked += usize::from(number >= 0);
    }
    asked
}

/// Joins the events of the rings and of the kernel. Returns how many entries have events.
pub(super) fn collect(
    entries: &mut [PollDescriptor<'_>],
    states: &[Option<State<'_>>],
    fds: &[libc::pollfd],
) -> usize {
    let mut n = 0;
    for ((entry, state), fd) in entries.iter_mut().zip(states).zip(fds) {
        let kernel = match entry.set {
            Some(set) => kernel_part_of_set(set, fd),
            None => sys::poll_flags(fd.revents),
        };
        entry.revents = match state {
            None => kernel,
            Some(state) => {
                let always = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
                let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
                let mut found = state.ready | (kernel & (entry.events | always));
                if state.end_is_input && kernel.intersects(ended) {
                    found |= entry.events & INPUT;
                    if let Some(StreamRef::Accelerated(stream)) = entry.stream {
                        stream.note_socket();
                    }
                }
                found
            }
        };
        n += usize::from(!entry.revents.is_empty());
    }
    n
}

/// What the kernel reports of an epoll set, without news of rings that are nothing to report.
fn kernel_part_of_set(set: &dyn PolledSet, fd: &libc::pollfd) -> PollFlags {
    let mut found = sys::poll_flags(fd.revents);
    // The first look may lead to such news, which the second takes.
    for _ in 0..2 {
        if !found.intersects(INPUT) || set.is_ready() {
            return found;
        }
        let mut again = [libc::pollfd { revents: 0, ..*fd }];
        if sys::ppoll(&mut again, Some(Duration::ZERO), None).is_err() {
            return found;
        }
        found = sys::poll_flags(again[0].revents);
    }
    found
}
