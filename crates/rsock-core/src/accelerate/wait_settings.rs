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
use rustix::io::Errno;
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
#[inline]
pub fn report_wait_settings() {
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

/// The questions of one call, and what they have told.
pub(super) struct Questions {
    limit: TimeLimit,
    state: State,
}

#[derive(Clone, Copy)]
enum State {
    /// Nothing is known.
    New,
    /// A sleep was spared the questions after so many [`CHANGES`].
    Spared(u32),
    /// The kernel has told that the call waits, as long as its limit says.
    Asked,
    /// The call began without a limit. What has been set since is for later calls.
    WithoutLimit,
}

/// One sleep of a call that waits.
pub(super) struct Sleep {
    /// How long the call may still wait; `None` is without limit.
    pub(super) left: Option<Duration>,
    /// How long the sleep may last.
    pub(super) longest: Option<Duration>,
}

impl Questions {
    /// Of a call whose time `limit` sets.
    pub(super) fn new(limit: TimeLimit) -> Self {
        Self { limit, state: State::New }
    }

    /// The sleep that is due now of a call by `fd`. `settings` are those of its stream, if the
    /// sleep ends by itself.
    ///
    /// # Errors
    /// `EAGAIN` if the call does not wait, as `is_nonblocking` asks the kernel, or its time is
    /// over.
    pub(super) fn begin_sleep(
        &mut self,
        fd: BorrowedFd<'_>,
        settings: Option<&WaitSettings>,
        is_nonblocking: impl FnOnce() -> bool,
    ) -> io::Result<Sleep> {
        let (changes, now) = (changes(), sys::tick());
        let without_limit = Ok(Sleep { left: None, longest: None });
        match self.state {
            State::Asked => return self.limited(fd),
            State::WithoutLimit => return without_limit,
            State::Spared(at) if at != changes => {
                self.state = State::WithoutLimit;
                return without_limit;
            }
            State::New if self.may_spare(settings, changes, now) => {
                self.state = State::Spared(changes);
                return Ok(Sleep { left: None, longest: Some(PARK) });
            }
            State::New | State::Spared(_) => {}
        }
        // PERF: a call of a server that waits for events asks for no limit.
        let sleep = if is_nonblocking() { Err(Errno::AGAIN.into()) } else { self.limited(fd) };
        if matches!(self.state, State::Spared(_)) && self::changes() != changes {
            self.state = State::WithoutLimit;
            return without_limit;
        }
        self.state = State::Asked;
        if let (Some(settings), Ok(Sleep { left: None, .. })) = (settings, &sleep) {
            settings.note(changes, now);
        }
        sleep
    }

    /// Whether the questions are spared. A call that has asked for its time limit keeps it.
    ///
    /// PERF: not where `RSOCK_SPIN_US` is 0, because a peer on another CPU may answer while the
    /// kernel is asked: round trips of a byte fell from 104 to 65 thousand a second without the
    /// questions (netperf TCP_RR on two CPUs, medians of twelve by turns).
    fn may_spare(&self, settings: Option<&WaitSettings>, changes: u32, now: u32) -> bool {
        let are_known = |settings: &WaitSettings| settings.are_known(changes, now);
        changes != 0
            && !self.limit.is_known()
            && settings.is_some_and(are_known)
            && environment::spin_us() != Some(0)
    }

    /// A sleep within the call's limit.
    fn limited(&mut self, fd: BorrowedFd<'_>) -> io::Result<Sleep> {
        let left = self.limit.left(fd)?;
        Ok(Sleep { left, longest: left })
    }

    /// A signal handler has run, and the call goes on as if it began now.
    pub(super) fn note_restart(&mut self) {
        self.state = State::New;
        self.limit.restart();
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

    /// How `call` begins a sleep, and whether it has asked whether it may wait.
    fn begin(
        call: &mut Questions,
        socket: &TcpListener,
        settings: &WaitSettings,
    ) -> (Option<Duration>, Option<Duration>, bool) {
        let mut has_asked = false;
        let sleep = call.begin_sleep(socket.as_fd(), Some(settings), || {
            has_asked = true;
            false
        });
        let Sleep { left, longest } = sleep.expect("it waits");
        (left, longest, has_asked)
    }

    #[test]
    fn questions_are_spared_for_a_moment_after_the_usual_answers() {
        report_wait_settings();
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
        let settings = WaitSettings::default();
        // Another test may change settings in between, or the moment be over.
        let is_spared_once = (0..1000).any(|_| {
            assert_eq!(begin(&mut call(), &socket, &settings).0, None);
            begin(&mut call(), &socket, &settings) == (None, Some(PARK), false)
        });
        assert!(is_spared_once);
        let limit = Some(Duration::from_secs(3600));
        change_wait_settings(|| set_socket_timeout(&socket, Timeout::Recv, limit)).expect("set");
        for _ in 0..2 {
            let (left, longest, has_asked) = begin(&mut call(), &socket, &settings);
            assert!(has_asked && left.is_some() && longest.is_some(), "asked for each time");
        }
    }

    #[test]
    fn what_is_set_during_a_call_is_for_later_ones() {
        report_wait_settings();
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
        let settings = WaitSettings::default();
        let mut spared = call();
        let is_spared = (0..1000).any(|_| {
            spared = call();
            settings.note(changes(), sys::tick());
            begin(&mut spared, &socket, &settings) == (None, Some(PARK), false)
        });
        assert!(is_spared);
        let mut asked = call();
        assert!(begin(&mut asked, &socket, &WaitSettings::default()).2);
        let limit = Some(Duration::from_secs(3600));
        change_wait_settings(|| set_socket_timeout(&socket, Timeout::Recv, limit)).expect("set");
        for call in [&mut spared, &mut asked] {
            assert_eq!(begin(call, &socket, &settings), (None, None, false));
        }
        spared.note_restart();
        let (left, _, has_asked) = begin(&mut spared, &socket, &settings);
        assert!(has_asked && left.is_some());
    }

    #[test]
    fn a_change_while_a_call_asks_after_a_spared_sleep_is_for_later_ones() {
        report_wait_settings();
        let socket = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut call = Questions { state: State::Spared(changes()), ..call() };
        let sleep = call.begin_sleep(socket.as_fd(), None, || change_wait_settings(|| true));
        assert!(sleep.expect("it waits").longest.is_none());
    }

    #[test]
    fn an_answer_is_forgotten_with_a_change_and_after_a_moment() {
        let settings = WaitSettings::default();
        settings.note(7, u32::MAX);
        assert!(settings.are_known(7, STANDS_FOR - 2));
        assert!(!settings.are_known(7, STANDS_FOR - 1));
        assert!(!settings.are_known(8, 0));
    }
}
