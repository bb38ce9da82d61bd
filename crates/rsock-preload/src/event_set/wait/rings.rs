//! What the rings of a set's members have to report.

use crate::event_set::members::AnnouncedBy;
use crate::event_set::ring::Found;
use crate::event_set::{EventSet, State, stream_of};
use crate::slot::Handle;
use libc::epoll_event;
use rsock_core::accelerate::RingWatch;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// More streams between hosts than this are not worth spinning on.
const MOST_SPUN: usize = 8;

impl State {
    pub(in crate::event_set) fn take_announced(&mut self, set: &EventSet) {
        if self.check_at.is_some_and(|at| at <= Instant::now()) {
            self.check_at = None;
            for number in self.members.remote.clone() {
                self.note_candidate(number);
            }
        }
        for number in std::mem::take(&mut self.impatient) {
            self.note_candidate(number);
        }
        // A wait on such a set itself takes what would tell of its news.
        for number in self.members.watched_sets() {
            self.note_candidate(number);
        }
        let Some(own_fds) = self.own_fds.clone().filter(|_| !self.is_inherited) else { return };
        let mut found = |place| {
            if let Some(number) = self.members.at_place(RingWatch(place)) {
                self.note_candidate(number);
            }
        };
        own_fds.ready.take(&mut found);
        if set.n_sleepers.load(Ordering::SeqCst) != 0 {
            // The doorbell that has woken this thread serves the threads that still sleep.
            own_fds.ready.take_and_arm(found);
        } else if !self.is_polled {
            // The lock is held, in which threads arm it before they sleep.
            own_fds.ready.disarm();
        }
    }

    /// The streams between hosts that a thread spins on: none if there are many. With each, the
    /// mark after which something may have happened.
    pub(super) fn spun_remote(&self) -> Vec<(u32, Handle, u32)> {
        if self.members.remote.len() > MOST_SPUN {
            return Vec::new();
        }
        let of = |&number: &u32| {
            let member = self.members.get(number).filter(|member| !member.is_deleted)?;
            let AnnouncedBy::Doorbell { mark, .. } = member.ring.as_ref()?.announced_by else {
                return None;
            };
            Some((number, stream_of(member.fd)?, mark))
        };
        self.members.remote.iter().filter_map(of).collect()
    }

    /// Looks at each candidate once, as far as there is room.
    pub(super) fn look_at_candidates(&mut self, set: &EventSet, room: &mut [epoll_event]) -> usize {
        let mut n = 0;
        let mut left = self.candidates.len();
        while left != 0 && n != room.len() {
            left -= 1;
            let Some(number) = self.candidates.pop_front() else { break };
            let others = self.candidates.len();
            if self.members.get(number).is_some_and(|member| member.reported_in == self.turn) {
                // It has been reported by this wait.
                self.candidates.push_back(number);
                continue;
            }
            if let Found::Event(event) = self.look(set, number) {
                room[n] = event;
                n += 1;
                if let Some(member) = self.members.get_mut(number) {
                    member.reported_in = self.turn;
                }
            }
            // The look may have found news of other members.
            let is_again = self.members.get(number).is_some_and(|member| member.is_candidate);
            left += self.candidates.len().saturating_sub(others + usize::from(is_again));
        }
        n
    }
}
