//! What is known of how a blocking call waits: whether by `O_NONBLOCK` it may wait at all, and by
//! `SO_RCVTIMEO` or `SO_SNDTIMEO` for how long.
//!
//! A call that is about to sleep asks the kernel for both. PERF: that takes 0.8 us, a tenth of the
//! CPU time of a round trip between two ends that sleep for each message. A caller that learns of
//! every change that this process makes ([`report_wait_settings`]) spares the questions for a
//! moment after they found the usual: the call waits, without a limit. Another process that holds
//! the socket may change them too, so a sleep without having asked is short, and the answer is
//! soon forgotten.

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

/// From now on the caller reports by [`note_wait_settings`] each time that the process sets the
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

/// The process has set the flags or the time limits of a descriptor.
pub fn note_wait_settings() {
    // SYNC(wait-settings): pairs with the Acquire in `changes`. A call that begins after this
    // asks the kernel, which knows of the change by now.
    let _ = CHANGES.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| {
        (n != 0).then(|| n.checked_add(1).unwrap_or(1))
    });
}

fn changes() -> u32 {
    CHANGES.load(Ordering::Acquire)
}

/// What is known of the calls of one direction of a stream: when the kernel last told that they
/// wait without a limit.
#[derive(Debug, Default)]
pub(super) struct WaitSettings {
    /// [`CHANGES`] before the kernel was asked; 0 if it was not.
    changes: AtomicU32,
    /// When that was, on the coarse clock.
    asked_at: AtomicU32,
}

impl WaitSettings {
    /// Whether the answer after so many `changes` still stands.
    fn are_known(&self, changes: u32, now: impl FnOnce() -> u32) -> bool {
        let age = || now().wrapping_sub(self.asked_at.load(Ordering::Relaxed));
        changes != 0 && self.changes.load(Ordering::Relaxed) == changes && age() < STANDS_FOR
    }

    fn note(&self, changes: u32, now: u32) {
        self.asked_at.store(now, Ordering::Relaxed);
        self.changes.store(changes, Ordering::Relaxed);
    }
}

/// The questions of one call before one of its sleeps.
pub(super) struct Questions<'a> {
    settings: Option<&'a WaitSettings>,
    /// [`CHANGES`] before they are asked.
    changes: u32,
    are_spared: bool,
}

impl<'a> Questions<'a> {
    /// Before a sleep that ends by itself, of a call with `limit`, `settings` are those of its
    /// direction.
    pub(super) fn new(settings: Option<&'a WaitSettings>, limit: &TimeLimit) -> Self {
        // A call that has asked for its time limit keeps it, whatever is set meanwhile.
        let settings = settings.filter(|_| !limit.is_known());
        let changes = changes();
        let are_known = |settings: &WaitSettings| settings.are_known(changes, sys::tick);
        Self { settings, changes, are_spared: settings.is_some_and(are_known) }
    }

    /// Whether the call has to ask whether it may wait.
    pub(super) fn are_due(&self) -> bool {
        !self.are_spared
    }

    /// How long the call may still wait; `None` is without limit. The kernel has told, or is known
    /// to tell, that it waits.
    ///
    /// # Errors
    /// `EAGAIN` if the time is over.
    pub(super) fn time_left(
        &self,
        limit: &mut TimeLimit,
        fd: BorrowedFd<'_>,
    ) -> io::Result<Option<Duration>> {
        if self.are_spared {
            return Ok(None);
        }
        let left = limit.left(fd)?;
        if let (Some(settings), None) = (self.settings, left) {
            settings.note(self.changes, sys::tick());
        }
        Ok(left)
    }

    /// How long the sleep may last, of `left`.
    pub(super) fn longest_sleep(&self, left: Option<Duration>) -> Option<Duration> {
        if self.are_spared { Some(PARK) } else { left }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use rustix::net::sockopt::{Timeout, set_socket_timeout};
    use std::net::TcpListener;

    #[test]
    fn questions_are_spared_for_a_moment_after_the_usual_answers() {
        begin_reports();
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
        let settings = WaitSettings::default();
        let ask = || {
            let mut limit = TimeLimit::new(Timeout::Recv);
            let questions = Questions::new(Some(&settings), &limit);
            let left = questions.time_left(&mut limit, socket.as_fd()).expect("time is left");
            (questions.are_spared, left)
        };
        // Another test may change settings in between, or the moment be over.
        let is_spared_once = (0..1000).any(|_| {
            let (_, left) = ask();
            assert_eq!(left, None);
            ask() == (true, None)
        });
        assert!(is_spared_once);
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(3600))).expect("set");
        note_wait_settings();
        let (are_spared, left) = ask();
        assert!(!are_spared && left.is_some());
        assert!(!ask().0, "a limit is asked for each time");
    }

    #[test]
    fn an_answer_is_forgotten_with_a_change_and_after_a_moment() {
        let settings = WaitSettings::default();
        assert!(!settings.are_known(7, || 0), "never asked");
        settings.note(7, u32::MAX);
        assert!(settings.are_known(7, || STANDS_FOR - 2));
        assert!(!settings.are_known(7, || STANDS_FOR - 1));
        assert!(!settings.are_known(8, || 0));
        settings.note(0, 0);
        assert!(!settings.are_known(0, || 0), "changes are not reported");
    }

    #[test]
    fn a_call_that_has_a_limit_keeps_it() {
        begin_reports();
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut limit = TimeLimit::new(Timeout::Recv);
        let _ = limit.left(socket.as_fd());
        let settings = WaitSettings::default();
        settings.note(changes(), sys::tick());
        assert!(Questions::new(Some(&settings), &limit).are_due());
    }
}
