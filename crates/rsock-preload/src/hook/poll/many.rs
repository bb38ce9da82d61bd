//! `poll` of many descriptors, few of which have something to report.
//!
//! The whole call looks at each stream under its locks, and makes room for what it finds. Here the
//! streams on which the last look found nothing, and nothing has happened since, are passed over
//! after a few loads; the rest is polled as a call on few descriptors. That is done only if those
//! have events, and if the whole call would not ask the kernel about the streams passed over.

use super::{Named, event_flags, wait};
use crate::fdtable;
use crate::slot::Direction;
use libc::{c_int, pollfd};
use rsock_core::accelerate::{self, StreamRef};
use rustix::event::PollFlags;
use std::cell::Cell;
use std::time::Duration;

/// A call on fewer descriptors looks at all of them.
const MANY: usize = 64;
/// One of so many descriptors may have something to report; with more, the whole call is made.
const QUIET_FOR_ONE: usize = 4;
/// Most calls in a row that do not try this, after tries in vain.
const MOST_SKIPPED: u32 = 15;

thread_local! {
    static TRIES: Tries = const { Tries { left_to_skip: Cell::new(0), to_skip: Cell::new(0) } };
}

/// How often to try: in vain, a try costs as much as a small part of the whole call.
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

/// Reports the events that entries have now. `None` if there are none, or all entries have to be
/// looked at.
pub(super) fn report(fds: &mut [pollfd]) -> Option<c_int> {
    if fds.len() < MANY || !TRIES.with(Tries::is_due) {
        return None;
    }
    let found = report_few(fds);
    TRIES.with(|tries| tries.learn(found.is_some()));
    found
}

fn report_few(fds: &mut [pollfd]) -> Option<c_int> {
    if !accelerate::may_skip_ends(fds.iter().map(|p| (p.fd, event_flags(p)))) {
        return None;
    }
    let mut at = Vec::new();
    for (i, p) in fds.iter().enumerate().filter(|(_, p)| p.fd >= 0 && !is_quiet(p)) {
        if at.len() * QUIET_FOR_ONE >= fds.len() {
            return None;
        }
        at.push((i, *p));
    }
    let mut few: Vec<pollfd> = at.iter().map(|(_, p)| *p).collect();
    let mut handles: Vec<Option<Named>> = Vec::new();
    handles.resize_with(few.len(), || None);
    let found = wait(&mut few, &mut handles, Some(Duration::ZERO), None).filter(|n| *n > 0)?;
    fds.iter_mut().for_each(|p| p.revents = 0);
    for ((i, _), p) in at.iter().zip(&few) {
        fds[*i].revents = p.revents;
    }
    Some(found)
}

/// Whether only input is asked for, on a stream on which nothing has happened.
fn is_quiet(p: &pollfd) -> bool {
    const INPUT: PollFlags = PollFlags::IN.union(PollFlags::RDNORM);
    let asked = event_flags(p);
    if asked.is_empty() || !INPUT.contains(asked) {
        return false;
    }
    let handle = fdtable::find(p.fd, Direction::Recv);
    handle.is_some_and(|handle| match handle.stream() {
        StreamRef::Accelerated(stream) => stream.is_quiet(),
        StreamRef::Native(_) => false,
    })
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
}
