//! Keepalive, on a device that does not report that the peer's host is gone.
//!
//! The soft device needs none of this: the kernel reports a process that has ended, and there is no
//! other host. On an RDMA device the connection manager reports a process that has ended, and a
//! host that shuts down in good order. A host that lost its power shows only once something is sent
//! to it. With `SO_KEEPALIVE` a stream sends probes: writes of length zero without immediate, which
//! the peer's device acknowledges and its software does not see.
//!
//! The calls that wait send the probes. Each calls [`QpStream::keep_alive`] before it sleeps, and
//! sleeps no longer than that allows ([`Armed::bound`](crate::engine::Armed::bound)); a task has a
//! timer for it. So there is no thread, and a program that does not wait for a stream does not
//! probe it: `docs/decisions/0016-keepalive.md`.

use crate::engine::QpStream;
use crate::engine::resources::{CONTROL, PLAIN};
use crate::engine::shared::FLAG_DISCONNECTED;
use crate::interrupt::Section;
use crate::sys;
use rsock_proto::{Keepalive, KeepaliveStep};
use rsock_verbs::{Backend, QueuePair, RKey, RemoteAddr, SendFlags, SendOp};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The keepalive of one stream. Private to the process, as the stream's queue pair is.
#[derive(Debug, Default)]
pub(super) struct KeepaliveProber {
    /// Whether keepalive is on: waiting calls load this first.
    is_on: AtomicBool,
    /// Whether a probe is under way.
    is_probing: AtomicBool,
    /// Locked before the locks of the directions.
    state: Mutex<Option<ProbeState>>,
}

/// What is known about whether the peer lives.
#[derive(Debug)]
struct ProbeState {
    settings: Keepalive,
    /// The peer's activity at the last check.
    activity: Activity,
    /// When that activity was first seen, or the last probe was sent after it.
    since: Instant,
    n_unanswered: u32,
    /// Where probes are counted for `rsock stat`.
    count: Option<&'static AtomicU64>,
}

/// Counters that change when the peer, or its device, has done something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Activity {
    /// Dispatches of the pump.
    events: u32,
    /// Requests of this end that the peer's device has acknowledged.
    n_done: u64,
}

impl ProbeState {
    fn step(&mut self, now: Instant, activity: Activity) -> KeepaliveStep {
        if activity != self.activity {
            (self.activity, self.since, self.n_unanswered) = (activity, now, 0);
        }
        self.settings.step(now.saturating_duration_since(self.since), self.n_unanswered)
    }

    /// Notes that a probe is sent at `now`. Returns how long to wait for its answer.
    fn note_probe(&mut self, now: Instant) -> Duration {
        (self.since, self.n_unanswered) = (now, self.n_unanswered.saturating_add(1));
        self.settings.wait_after(self.n_unanswered)
    }
}

impl KeepaliveProber {
    fn lock(&self) -> MutexGuard<'_, Option<ProbeState>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a probe is under way: then an exhausted retry of the device means that the peer is
    /// gone.
    pub(super) fn is_probing(&self) -> bool {
        self.is_probing.load(Ordering::Relaxed)
    }
}

impl<B: Backend> QpStream<B> {
    /// Sets `SO_KEEPALIVE` and its times; `None` switches it off. Each probe adds one to `count`.
    /// Does nothing on the soft device, where the kernel reports the peer's end.
    pub(crate) fn set_keepalive(
        &self,
        settings: Option<Keepalive>,
        count: Option<&'static AtomicU64>,
    ) {
        if !B::SENDS_WAIT {
            return;
        }
        let _section = Section::enter();
        let mut probing = self.prober.lock();
        *probing = settings.map(|settings| {
            let (activity, since) = (self.activity(), sys::now());
            ProbeState { settings, activity, since, n_unanswered: 0, count }
        });
        self.prober.is_probing.store(false, Ordering::Relaxed);
        self.prober.is_on.store(probing.is_some(), Ordering::Relaxed);
        drop(probing);
        // A thread that sleeps already may have to check sooner.
        self.announce();
    }

    /// For a caller that is about to sleep: sends a probe if one is due, and returns how long the
    /// caller may sleep before it must call again, `None` without limit. Fails the stream if the
    /// peer does not answer, which shows as a change.
    pub(crate) fn keep_alive(&self) -> Option<Duration> {
        if !B::SENDS_WAIT || !self.prober.is_on.load(Ordering::Relaxed) {
            return None;
        }
        if self.ring.shared.mail.has(FLAG_DISCONNECTED) {
            return None;
        }
        let _section = Section::enter();
        let mut probing = self.prober.lock();
        let probing = probing.as_mut()?;
        let mut step = probing.step(sys::now(), self.activity());
        if !matches!(step, KeepaliveStep::Wait(_)) {
            // A message that has arrived and is not dispatched yet is activity too.
            self.progress();
            step = probing.step(sys::now(), self.activity());
        }
        let left = match step {
            KeepaliveStep::Wait(left) => Some(left),
            KeepaliveStep::Probe => {
                self.probe(probing.count);
                Some(probing.note_probe(sys::now()))
            }
            KeepaliveStep::Dead => {
                self.ring.shared.mail.fail(libc::ETIMEDOUT);
                self.announce();
                None
            }
        };
        self.prober.is_probing.store(probing.n_unanswered != 0, Ordering::Relaxed);
        left
    }

    fn activity(&self) -> Activity {
        let events = self.ring.shared.mail.events.now();
        Activity { events, n_done: self.resources.qp.n_done() }
    }

    /// Sends a probe. If the queue has no room for one, a request under way serves as well: it was
    /// posted since the peer's last activity, or the device retries it, and its completion is
    /// activity.
    fn probe(&self, count: Option<&'static AtomicU64>) {
        let mut recv = self.ring.lock_recv();
        let is_limited = self.limits_ctrl;
        if self.resources.qp.is_full() || is_limited && !recv.ctrl.has_room_for_grant() {
            return;
        }
        let op = SendOp::Write { remote: RemoteAddr::default(), rkey: RKey::default() };
        let id = if is_limited { CONTROL } else { PLAIN };
        if self.resources.qp.post_copy(id, op, &[], SendFlags::SIGNALED).is_err() {
            return;
        }
        if is_limited {
            let had_room = recv.ctrl.post();
            debug_assert!(had_room, "checked above");
        }
        if let Some(count) = count {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeepaliveStep::{Dead, Probe, Wait};

    const SECOND: Duration = Duration::from_secs(1);
    const QUIET: Activity = Activity { events: 7, n_done: 70 };

    /// A peer that was last active at `start`, with three probes after ten seconds.
    fn probing(start: Instant) -> ProbeState {
        let settings = Keepalive { idle: 10 * SECOND, interval: 2 * SECOND, probes: 3 };
        ProbeState { settings, activity: QUIET, since: start, n_unanswered: 0, count: None }
    }

    /// Sleeps as a waiting call does, on a virtual clock, until the peer is given up. Returns the
    /// seconds at which probes were sent, and the last second. `life` is the peer's activity at a
    /// second.
    fn run(start: Instant, life: impl Fn(u32) -> Activity) -> (Vec<u32>, u32) {
        let (mut state, mut probes) = (probing(start), Vec::new());
        let mut second = 0;
        loop {
            assert!(second < 1000, "never given up, after {probes:?}");
            let now = start + SECOND * second;
            let left = match state.step(now, life(second)) {
                Wait(left) => left,
                Probe => {
                    probes.push(second);
                    state.note_probe(now)
                }
                Dead => return (probes, second),
            };
            second += u32::try_from(left.as_secs()).expect("a short sleep").max(1);
        }
    }

    #[test]
    fn a_silent_peer_is_given_up_after_idle_and_all_intervals() {
        assert_eq!(run(Instant::now(), |_| QUIET), (vec![10, 12, 14], 16));
    }

    #[test]
    fn an_answer_restarts_the_idle_time() {
        let answered = |second| if second < 13 { QUIET } else { Activity { n_done: 71, ..QUIET } };
        assert_eq!(run(Instant::now(), answered), (vec![10, 12, 24, 26, 28], 30));
    }

    #[test]
    fn messages_of_the_peer_delay_probes() {
        let comes = |second: u32| Activity { events: 7 + second.min(20) / 5, ..QUIET };
        assert_eq!(run(Instant::now(), comes), (vec![30, 32, 34], 36));
    }

    #[test]
    fn a_process_that_was_stopped_probes_before_it_gives_the_peer_up() {
        let start = Instant::now();
        let mut state = probing(start);
        let late = start + 3600 * SECOND;
        for i in 0..3 {
            let now = late + SECOND * (i * 100);
            assert_eq!(state.step(now, QUIET), Probe, "{i}");
            assert_eq!(state.note_probe(now), 2 * SECOND);
            assert_eq!(state.step(now, QUIET), Wait(2 * SECOND));
        }
        assert_eq!(state.step(late + SECOND * 202, QUIET), Dead);
    }
}
