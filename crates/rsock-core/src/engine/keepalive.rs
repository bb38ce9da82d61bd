//! Keepalive, on a device that has to be asked whether the peer still lives.
//!
//! The soft device needs none of this: the kernel tells of a process that has ended, and there is no other
//! host. On an RDMA device the connection manager tells of a process that has ended, and of a host that says so;
//! of one that was switched off nothing tells until something is sent to it. With `SO_KEEPALIVE` a stream
//! sends probes: writes of length zero without immediate, of which the peer's software hears nothing, and
//! which its device acknowledges.
//!
//! Probes are sent by the calls that wait. Each of them looks before it sleeps, and sleeps no longer than
//! until the next look is due ([`Armed::bound`](crate::engine::Armed::bound)); a task has a timer for that. So there
//! is no thread, and a program that does not wait for a stream does not probe it:
//! `docs/decisions/0016-keepalive.md`.

use crate::engine::resources::{CONTROL, PLAIN};
use crate::engine::shared::FLAG_DISCONNECTED;
use crate::engine::stream::Stream;
use crate::interrupt::Section;
use crate::sys;
use rsock_proto::{Keepalive, KeepaliveStep};
use rsock_verbs::{Backend, QueuePair, RKey, RemoteAddr, SendFlags, SendOp};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The keepalive of one stream. Private to the process, as the stream's queue pair is.
#[derive(Debug, Default)]
pub(super) struct Prober {
    /// Whether there is anything to do: waiting calls look here first.
    is_on: AtomicBool,
    /// Whether a probe is not answered.
    is_asking: AtomicBool,
    /// Locked before the locks of the directions.
    vigil: Mutex<Option<Vigil>>,
}

/// What is known of the peer's life.
#[derive(Debug)]
struct Vigil {
    settings: Keepalive,
    /// What had been heard of the peer at the last look.
    signs: Signs,
    /// The last sign of life, as far as looks can tell, or the last probe after it.
    since: Instant,
    n_unanswered: u32,
    /// Where probes are counted for `rsock stat`.
    count: Option<&'static AtomicU64>,
}

/// Numbers that change when the peer, or its device, has done something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Signs {
    /// Dispatches of the pump.
    events: u32,
    /// Requests of ours that the peer's device has acknowledged.
    n_done: u64,
}

impl Vigil {
    fn look(&mut self, now: Instant, signs: Signs) -> KeepaliveStep {
        if signs != self.signs {
            (self.signs, self.since, self.n_unanswered) = (signs, now, 0);
        }
        self.settings.step(now.saturating_duration_since(self.since), self.n_unanswered)
    }

    /// A probe is sent at `now`. Returns how long to wait for its answer.
    fn note_probe(&mut self, now: Instant) -> Duration {
        (self.since, self.n_unanswered) = (now, self.n_unanswered.saturating_add(1));
        self.settings.patience(self.n_unanswered)
    }
}

impl Prober {
    fn lock(&self) -> MutexGuard<'_, Option<Vigil>> {
        self.vigil.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a probe is under way: then a device that gives up says that the peer is gone.
    pub(super) fn is_asking(&self) -> bool {
        self.is_asking.load(Ordering::Relaxed)
    }
}

impl<B: Backend> Stream<B> {
    /// `SO_KEEPALIVE` and its times; `None` switches it off. Probes are added to `count`. Does nothing on
    /// a device whose peers the kernel watches.
    pub(crate) fn set_keepalive(
        &self,
        settings: Option<Keepalive>,
        count: Option<&'static AtomicU64>,
    ) {
        if !B::SENDS_WAIT {
            return;
        }
        let _section = Section::enter();
        let mut vigil = self.prober.lock();
        *vigil = settings.map(|settings| {
            let (signs, since) = (self.signs(), sys::now());
            Vigil { settings, signs, since, n_unanswered: 0, count }
        });
        self.prober.is_asking.store(false, Ordering::Relaxed);
        self.prober.is_on.store(vigil.is_some(), Ordering::Relaxed);
        drop(vigil);
        // Who sleeps already may have to look sooner.
        self.announce();
    }

    /// For a caller that is about to sleep: asks after the peer if that is due, and returns how long it may
    /// sleep before it must call again; `None` for as long as it likes. Fails the stream if the peer
    /// is dead, which shows as a change.
    pub(crate) fn keep_alive(&self) -> Option<Duration> {
        if !B::SENDS_WAIT || !self.prober.is_on.load(Ordering::Relaxed) {
            return None;
        }
        if self.ring.shared.mail.has(FLAG_DISCONNECTED) {
            return None;
        }
        let _section = Section::enter();
        let mut vigil = self.prober.lock();
        let vigil = vigil.as_mut()?;
        let mut step = vigil.look(sys::now(), self.signs());
        if !matches!(step, KeepaliveStep::Wait(_)) {
            // What has come and is not dispatched yet is a sign of life, too.
            self.progress();
            step = vigil.look(sys::now(), self.signs());
        }
        let left = match step {
            KeepaliveStep::Wait(left) => Some(left),
            KeepaliveStep::Probe => {
                self.probe(vigil.count);
                Some(vigil.note_probe(sys::now()))
            }
            KeepaliveStep::Dead => {
                self.ring.shared.mail.fail(libc::ETIMEDOUT);
                self.announce();
                None
            }
        };
        self.prober.is_asking.store(vigil.n_unanswered != 0, Ordering::Relaxed);
        left
    }

    fn signs(&self) -> Signs {
        let events = self.ring.shared.mail.marks.now();
        Signs { events, n_done: self.parts.qp.n_done() }
    }

    /// Sends a probe. Where there is no room for one, what is under way is as good: it has been posted since
    /// the peer was last heard of, or is repeated by the device, and its completion will tell.
    fn probe(&self, count: Option<&'static AtomicU64>) {
        let mut recv = self.ring.lock_recv();
        let is_limited = self.limits_ctrl;
        if self.parts.qp.is_full() || is_limited && !recv.ctrl.has_room_for_grant() {
            return;
        }
        let op = SendOp::Write { remote: RemoteAddr::default(), rkey: RKey::default() };
        let id = if is_limited { CONTROL } else { PLAIN };
        if self.parts.qp.post_copy(id, op, &[], SendFlags::SIGNALED).is_err() {
            return;
        }
        if is_limited {
            let had_room = recv.ctrl.post();
            debug_assert!(had_room, "looked for above");
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
    const QUIET: Signs = Signs { events: 7, n_done: 70 };

    /// A peer that was heard of at `start`, with three probes after ten seconds.
    fn vigil(start: Instant) -> Vigil {
        let settings = Keepalive { idle: 10 * SECOND, interval: 2 * SECOND, probes: 3 };
        Vigil { settings, signs: QUIET, since: start, n_unanswered: 0, count: None }
    }

    /// Sleeps as a waiting call does, on a clock of its own, until the peer is given up; the seconds at
    /// which probes were sent, and the last one. `life` says what is heard of the peer by then.
    fn watch(start: Instant, life: impl Fn(u32) -> Signs) -> (Vec<u32>, u32) {
        let (mut vigil, mut probes) = (vigil(start), Vec::new());
        let mut second = 0;
        loop {
            assert!(second < 1000, "never given up, after {probes:?}");
            let now = start + SECOND * second;
            let left = match vigil.look(now, life(second)) {
                Wait(left) => left,
                Probe => {
                    probes.push(second);
                    vigil.note_probe(now)
                }
                Dead => return (probes, second),
            };
            second += u32::try_from(left.as_secs()).expect("a short sleep").max(1);
        }
    }

    #[test]
    fn a_silent_peer_is_given_up_after_idle_and_all_intervals() {
        assert_eq!(watch(Instant::now(), |_| QUIET), (vec![10, 12, 14], 16));
    }

    #[test]
    fn an_answer_begins_anew() {
        let answered = |second| if second < 13 { QUIET } else { Signs { n_done: 71, ..QUIET } };
        assert_eq!(watch(Instant::now(), answered), (vec![10, 12, 24, 26, 28], 30));
    }

    #[test]
    fn what_comes_puts_probes_off() {
        let comes = |second: u32| Signs { events: 7 + second.min(20) / 5, ..QUIET };
        assert_eq!(watch(Instant::now(), comes), (vec![30, 32, 34], 36));
    }

    #[test]
    fn who_was_stopped_asks_before_giving_up() {
        let start = Instant::now();
        let mut vigil = vigil(start);
        let late = start + 3600 * SECOND;
        for i in 0..3 {
            let now = late + SECOND * (i * 100);
            assert_eq!(vigil.look(now, QUIET), Probe, "{i}");
            assert_eq!(vigil.note_probe(now), 2 * SECOND);
            assert_eq!(vigil.look(now, QUIET), Wait(2 * SECOND));
        }
        assert_eq!(vigil.look(late + SECOND * 202, QUIET), Dead);
    }
}
