//! What is known of how a blocking receive waits: whether by `O_NONBLOCK` it may wait at all, and
//! by `SO_RCVTIMEO` for how long.
//!
//! A call that is about to sleep asks the kernel for both. PERF: that takes 0.8 us, a tenth of the
//! CPU time of a round trip between two ends that sleep for each message. A caller that learns of
//! every change that this process makes ([`report_wait_settings`]) spares the questions for a
//! moment after they found the usual: the call waits, without a limit. Another process that holds
//! the socket may change them too, so the answer is soon forgotten, and a sleep without having
//! asked is short: after it the call asks. Unless this process has changed something meanwhile:
//! that is for later calls, as with the kernel, which looks when a call begins.

#![forbid(unsafe_code)]

use crate::accelerate::PARK;
use crate::accelerate::time_limit::TimeLimit;
use crate::config::environment;
use crate::sys;
use rustix::fd::BorrowedFd;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// How long an answer stands, in milliseconds. PERF: less than a wait takes at 100 requests a
/// second, which would end one [`PARK`] more.
const STANDS_FOR: u32 = 8;

/// Changes of this process so far, from 1 on; 0 where they are not reported.
static CHANGES: AtomicU32 = AtomicU32::new(0);

/// From now on the caller reports by [`change_wait_settings`] each time that the process sets the
/// flags or the time limits of a descriptor.
///
/// PERF: does nothing where `RSOCK_SPIN_US` is 0, because a peer on another CPU may answer while
/// the kernel is asked: round trips of a byte fell from 104 to 65 thousand a second without the
/// questions (netperf TCP_RR on two CPUs, medians of twelve by turns).
pub fn report_wait_settings() {
    if environment::spin_us() != Some(0) {
        begin_reports();
    }
}

fn begin_reports() {
    let _ = CHANGES.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed);
}

/// Calls `change`, which sets the flags or the time limits of a descriptor.
pub fn change_wait_settings<R>(change: impl FnOnce() -> R) -> R {
    // Before as well: a signal handler may run when the system call returns.
    note_change();
    let changed = change();
    note_change();
    changed
}

fn note_change() {
    // SYNC(wait-settings): pairs with the Acquire in `changes`. A call that begins after this
    // asks the kernel, which knows of the change by now.
    let _ = CHANGES.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
        (n != 0).then(|| n.checked_add(1).unwrap_or(1))
    });
}

fn changes() -> u32 {
    CHANGES.load(Ordering::Acquire)
}

/// What is known of the receives of a stream: when the kernel last told that they wait without a
/// limit.
#[derive(Debug, Default)]
pub(super) struct WaitSettings {
    /// [`CHANGES`] before the kernel was asked; 0 if it was not.
    changes: AtomicU32,
    /// When that was, on the coarse clock.
    asked_at: AtomicU32,
}

impl WaitSettings {
    /// Whether the answer after so many `changes` still stands at `now`.
    fn are_known(&self, changes: u32, now: u32) -> bool {
        let age = now.wrapping_sub(self.asked_at.load(Ordering::Relaxed));
        self.changes.load(Ordering::Relaxed) == changes && age < STANDS_FOR
    }

    fn note(&self, changes: u32, now: u32) {
        self.asked_at.store(now, Ordering::Relaxed);
        self.changes.store(changes, Ordering::Relaxed);
    }
}

/// The questions of one call.
pub(super) struct Questions {
    limit: TimeLimit,
    /// [`CHANGES`] when a sleep was first spared the questions.
    spared_at: Option<u32>,
}

/// What a call does about them before one sleep.
#[derive(Clone, Copy)]
pub(super) enum Round<'a> {
    /// It asks. If changes are reported: what to note the answer in, [`CHANGES`] and the time.
    Ask(Option<(&'a WaitSettings, u32, u32)>),
    /// They are spared, so that the sleep is short.
    Spared,
    /// What has been set since the call began is for later calls.
    BeganWithoutLimit,
}

impl Questions {
    /// Of a call whose time `limit` sets.
    pub(super) fn new(limit: TimeLimit) -> Self {
        Self { limit, spared_at: None }
    }

    /// Begins a round that sleeps; `settings` are those of its stream, if the sleep ends by itself.
    pub(super) fn begin_round<'a>(&mut self, settings: Option<&'a WaitSettings>) -> Round<'a> {
        let changes = changes();
        // A call that has asked for its time limit keeps it, whatever is set meanwhile.
        if changes == 0 || self.limit.is_known() {
            return Round::Ask(None);
        }
        if self.spared_at.is_some_and(|at| at != changes) {
            return Round::BeganWithoutLimit;
        }
        let Some(settings) = settings else { return Round::Ask(None) };
        let now = sys::tick();
        if self.spared_at.is_some() || !settings.are_known(changes, now) {
            return Round::Ask(Some((settings, changes, now)));
        }
        self.spared_at = Some(changes);
        Round::Spared
    }

    /// How long the call may still wait; `None` is without limit. The kernel has told, or is known
    /// to tell, that it waits.
    ///
    /// # Errors
    /// `EAGAIN` if the time is over.
    pub(super) fn time_left(
        &mut self,
        round: Round<'_>,
        fd: BorrowedFd<'_>,
    ) -> io::Result<Option<Duration>> {
        let Round::Ask(place) = round else { return Ok(None) };
        let left = self.limit.left(fd)?;
        if let (Some((settings, changes, now)), None) = (place, left) {
            settings.note(changes, now);
        }
        Ok(left)
    }

    /// A signal handler has run, and the call goes on as if it began now.
    pub(super) fn note_restart(&mut self) {
        self.spared_at = None;
    }
}

impl Round<'_> {
    /// Whether the call has to ask whether it may wait.
    pub(super) fn asks(self) -> bool {
        matches!(self, Self::Ask(_))
    }

    /// How long the sleep may last, of `left`.
    pub(super) fn longest_sleep(self, left: Option<Duration>) -> Option<Duration> {
        if matches!(self, Self::Spared) { Some(PARK) } else { left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use std::net::TcpListener;

    fn call() -> Questions {
        Questions::new(TimeLimit::new(Timeout::Recv))
    }

    #[test]
    fn questions_are_spared_for_a_moment_after_the_usual_answers() {
        begin_reports();
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
        let settings = WaitSettings::default();
        let ask = || {
            let mut call = call();
            let round = call.begin_round(Some(&settings));
            (round.asks(), call.time_left(round, socket.as_fd()).expect("time is left"))
        };
        // Another test may change settings in between, or the moment be over.
        let is_spared_once = (0..1000).any(|_| {
            assert_eq!(ask().1, None);
            ask() == (false, None)
        });
        assert!(is_spared_once);
        let limit = Some(Duration::from_secs(3600));
        change_wait_settings(|| set_socket_timeout(&socket, Timeout::Recv, limit)).expect("set");
        let (asks, left) = ask();
        assert!(asks && left.is_some());
        assert!(ask().0, "a limit is asked for each time");
    }

    #[test]
    fn a_call_asks_after_a_spared_sleep_but_for_what_has_changed_since_it_began() {
        begin_reports();
        let settings = WaitSettings::default();
        let mut call = call();
        let is_spared = (0..1000).any(|_| {
            settings.note(changes(), sys::tick());
            call.begin_round(Some(&settings)).longest_sleep(None) == Some(PARK)
        });
        assert!(is_spared);
        let unchanged = Questions { spared_at: Some(changes()), ..self::call() }
            .begin_round(Some(&settings))
            .asks();
        // Another test may change settings in between.
        assert!(unchanged || call.spared_at != Some(changes()));
        change_wait_settings(|| {});
        let round = call.begin_round(Some(&settings));
        assert!(!round.asks() && round.longest_sleep(None).is_none());
        call.note_restart();
        assert!(call.begin_round(Some(&settings)).asks());
    }

    #[test]
    fn an_answer_is_forgotten_with_a_change_and_after_a_moment() {
        let settings = WaitSettings::default();
        settings.note(7, u32::MAX);
        assert!(settings.are_known(7, STANDS_FOR - 2));
        assert!(!settings.are_known(7, STANDS_FOR - 1));
        assert!(!settings.are_known(8, 0));
    }

    #[test]
    fn a_call_that_has_a_limit_keeps_it() {
        begin_reports();
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut call = call();
        let _ = call.limit.left(socket.as_fd());
        let settings = WaitSettings::default();
        settings.note(changes(), sys::tick());
        assert!(call.begin_round(Some(&settings)).asks());
    }
}
