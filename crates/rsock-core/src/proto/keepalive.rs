//! When to ask whether the peer still lives, and when to give up.
//!
//! Times are distances, so there is no clock here: the engine says how long the peer has been quiet.
//! The rules are those of kernel TCP (idle, interval, count). COMPAT: C probes at each idle interval
//! whether there was traffic or not, and never gives up by itself. What a probe is (a write of
//! length zero) is the engine's business; one that completed is a sign of life.

use std::time::Duration;

/// The settings of `SO_KEEPALIVE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Quiet time before the first probe (`TCP_KEEPIDLE`).
    pub idle: Duration,
    /// Time between probes that are not answered (`TCP_KEEPINTVL`).
    pub interval: Duration,
    /// Unanswered probes before the peer counts as dead (`TCP_KEEPCNT`).
    pub probes: u32,
}

/// What to do about a quiet peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepaliveStep {
    /// Nothing for this long; then ask again.
    Wait(Duration),
    /// Send a probe now.
    Probe,
    /// The peer is dead (`ETIMEDOUT`).
    Dead,
}

impl Keepalive {
    /// What to do when the peer has been quiet for `quiet`, and `unanswered` probes were sent since
    /// its last sign of life.
    #[must_use]
    pub fn step(&self, quiet: Duration, unanswered: u32) -> KeepaliveStep {
        let due = self.expiry(unanswered);
        match due.checked_sub(quiet) {
            Some(left) if !left.is_zero() => KeepaliveStep::Wait(left),
            _ if unanswered >= self.probes => KeepaliveStep::Dead,
            _ => KeepaliveStep::Probe,
        }
    }

    /// Quiet time after which the next step is due, when `unanswered` probes were sent.
    #[must_use]
    pub fn expiry(&self, unanswered: u32) -> Duration {
        self.idle.saturating_add(self.interval.saturating_mul(unanswered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use KeepaliveStep::{Dead, Probe, Wait};

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_quiet_peer_is_probed_and_then_given_up() {
        let keepalive = Keepalive { idle: 10 * SECOND, interval: 2 * SECOND, probes: 3 };
        for (quiet, unanswered, step) in [
            (0, 0, Wait(10 * SECOND)),
            (9, 0, Wait(SECOND)),
            (10, 0, Probe),
            (10, 1, Wait(2 * SECOND)),
            (12, 1, Probe),
            (14, 2, Probe),
            (15, 3, Wait(SECOND)),
            (16, 3, Dead),
            (1000, 3, Dead),
            (1000, 0, Probe),
        ] {
            assert_eq!(keepalive.step(quiet * SECOND, unanswered), step, "{quiet} {unanswered}");
        }
    }

    #[test]
    fn absurd_settings_do_not_overflow() {
        let keepalive =
            Keepalive { idle: Duration::MAX, interval: Duration::MAX, probes: u32::MAX };
        assert_eq!(keepalive.step(Duration::ZERO, u32::MAX), Wait(Duration::MAX));
        assert_eq!(keepalive.step(Duration::MAX, u32::MAX), Dead);
    }
}
