//! When to probe whether the peer is still alive, and when to give up.
//!
//! Times are durations, so there is no clock here: the engine says how long ago the last message
//! arrived, or the last probe was sent. The rules are those of kernel TCP (idle, interval, count).
//! COMPAT: C probes at each idle interval whether there was traffic or not, and never gives up by
//! itself. What a probe is (a write of length zero) is the engine's business; one that completed is
//! a sign of life.

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
    /// No probe is due for this long; then call again.
    Wait(Duration),
    /// Send a probe now.
    Probe,
    /// The peer is dead (`ETIMEDOUT`).
    Dead,
}

impl Keepalive {
    /// What to do when `unanswered` probes were sent since the peer's last sign of life, `since`
    /// ago the last of them; if there are none, `since` is how long ago the sign of life was.
    ///
    /// Each probe is given its interval, however late it was sent: a process that was stopped
    /// meanwhile sends a probe before it gives up.
    #[must_use]
    pub fn step(&self, since: Duration, unanswered: u32) -> KeepaliveStep {
        match self.wait_after(unanswered).checked_sub(since) {
            Some(left) if !left.is_zero() => KeepaliveStep::Wait(left),
            _ if unanswered >= self.probes => KeepaliveStep::Dead,
            _ => KeepaliveStep::Probe,
        }
    }

    /// How long to wait for a sign of life after `unanswered` probes.
    #[must_use]
    pub fn wait_after(&self, unanswered: u32) -> Duration {
        if unanswered == 0 { self.idle } else { self.interval }
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
        for (since, unanswered, step) in [
            (0, 0, Wait(10 * SECOND)),
            (9, 0, Wait(SECOND)),
            (10, 0, Probe),
            (0, 1, Wait(2 * SECOND)),
            (2, 1, Probe),
            (1, 2, Wait(SECOND)),
            (2, 2, Probe),
            (1, 3, Wait(SECOND)),
            (2, 3, Dead),
            (1000, 3, Dead),
            (1000, 0, Probe),
        ] {
            assert_eq!(keepalive.step(since * SECOND, unanswered), step, "{since} {unanswered}");
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
