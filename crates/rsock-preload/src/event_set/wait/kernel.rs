//! What the kernel's part of a set has to report.

use crate::event_set::{BRIEFLY, EventSet, State, lock};
use crate::own_fds::OwnEvent;
use crate::raw_epoll;
use libc::epoll_event;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// After so many looks that found nothing, the kernel is no longer asked before each spin.
const QUIET: u32 = 8;
/// The kernel is asked at least this often while rings have events.
const ASK_KERNEL: Duration = Duration::from_micros(50);

impl State {
    /// Whether the kernel is to be asked before the rings. A thread that finds nothing asks it by
    /// its sleep, which is enough where the kernel had nothing lately.
    pub(super) fn is_kernel_due(&mut self, set: &EventSet) -> bool {
        if set.has_kernel_change.load(Ordering::Relaxed)
            && set.has_kernel_change.swap(false, Ordering::AcqRel)
        {
            return true;
        }
        let late = self.kernel_asked.map_or(BRIEFLY, |asked| asked.elapsed());
        let is_late = late >= ASK_KERNEL;
        is_late && (late >= BRIEFLY || self.n_quiet < QUIET || self.has_candidate_to_report(set))
    }

    /// Adds the kernel's events to the first `n` of `room`; returns how many there are then. Begins
    /// to watch members whose streams have found their peers, if `has_found`: what the kernel had
    /// to report of them is among the events.
    pub(super) fn ask_kernel(
        &mut self,
        set: &EventSet,
        room: &mut [epoll_event],
        n: usize,
        has_found: bool,
    ) -> usize {
        if n == room.len() {
            return n;
        }
        let found = if has_found { std::mem::take(&mut *lock(&set.found)) } else { Vec::new() };
        let before = |&number: &u32| self.before_ring(set, number).map(|before| (number, before));
        let found: Vec<_> = found.iter().filter_map(before).collect();
        let n = self.take_from_kernel(set, room, n);
        if has_found && n == room.len() {
            // There may be more.
            lock(&set.found).extend(found.iter().map(|(number, _)| number));
        } else if has_found {
            set.has_found.store(!lock(&set.found).is_empty(), Ordering::Release);
            for (number, before) in found {
                let _ = self.enter_ring(set, number, &before, false);
                if let Some(member) = self.members.get_mut(number) {
                    member.reported_in = self.turn;
                }
            }
        }
        n
    }

    /// Adds the kernel's events to the first `n` of `room`; returns how many there are then.
    pub(super) fn take_from_kernel(
        &mut self,
        set: &EventSet,
        room: &mut [epoll_event],
        mut n: usize,
    ) -> usize {
        let mut n_found = 0;
        // Each of this library's own events may have taken the place of another, and so may each
        // event that is there already. The kernel reports in turn, so others come next.
        for _ in 0..=OwnEvent::COUNT + n {
            let more = &mut room[n..];
            let taken = raw_epoll::take(self.fd, more).unwrap_or(0);
            let kept = self.without_own(&mut more[..taken]);
            let n_new = self.reported.keep_new(self.fd, &mut more[..kept]);
            let had_room = taken < more.len();
            n_found += kept;
            n += n_new;
            if had_room || n_new == taken {
                break;
            }
        }
        self.note_kernel_asked(set, n_found);
        n
    }

    /// The kernel has been asked, and had `n` events for the program.
    pub(super) fn note_kernel_asked(&mut self, set: &EventSet, n: usize) {
        self.n_quiet = if n == 0 { self.n_quiet.saturating_add(1) } else { 0 };
        // While the kernel has events it is asked by every wait.
        let may_wait = n == 0 && set.is_watching();
        self.kernel_asked = may_wait.then(Instant::now);
    }

    /// Takes this library's own events out of `events`; returns how many are left.
    pub(super) fn without_own(&mut self, events: &mut [epoll_event]) -> usize {
        let mut kept = 0;
        for i in 0..events.len() {
            match OwnEvent::of(&events[i]) {
                None => {
                    events[kept] = events[i];
                    kept += 1;
                }
                Some(event) => self.take_own_event(event),
            }
        }
        kept
    }

    pub(in crate::event_set) fn take_own_event(&mut self, event: OwnEvent) {
        let Some(own_fds) = self.own_fds.clone().filter(|_| !self.is_inherited) else { return };
        own_fds.take_event(event, |event| self.note_socket_event(event));
    }
}
