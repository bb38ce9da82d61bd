//! Clocks.

use std::time::{Duration, Instant};

/// Time left until `deadline`; `None` without a deadline.
pub(crate) fn time_left(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|d| d.saturating_duration_since(now()))
}

/// The end of a call's time, for which no clock is read before [`Self::begin`].
///
/// PERF: most calls find what they wait for at once, and reading the clock takes some 25 ns.
pub(crate) enum LazyDeadline {
    NotBegun(Option<Duration>),
    Until(Option<Instant>),
}

impl LazyDeadline {
    /// The call may take as long as `limit`; without end if `None`.
    pub(crate) fn new(limit: Option<Duration>) -> Self {
        Self::NotBegun(limit)
    }

    /// The time counts from now on, if it does not yet.
    pub(crate) fn begin(&mut self) {
        if let Self::NotBegun(limit) = *self {
            *self = Self::Until(limit.and_then(|limit| now().checked_add(limit)));
        }
    }

    /// How much time is left; `None` is without end.
    pub(crate) fn left(&self) -> Option<Duration> {
        match *self {
            Self::NotBegun(limit) => limit,
            Self::Until(deadline) => time_left(deadline),
        }
    }
}

/// The monotonic clock. Outside of the engine it is read here only.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The monotonic clock in nanoseconds.
#[inline]
pub(crate) fn nanos() -> u64 {
    let now = rsock_verbs::clock::monotonic();
    now.as_secs().wrapping_mul(1_000_000_000).wrapping_add(now.subsec_nanos().into())
}

/// The kernel's coarse monotonic clock in milliseconds, wrapping: it advances every 1 to 10 ms. For
/// work that is due now and then, in calls that have no time to read a precise clock.
#[inline]
pub(crate) fn tick() -> u32 {
    let now = rsock_verbs::clock::coarse();
    #[expect(clippy::cast_possible_truncation, reason = "it wraps")]
    let secs = now.as_secs() as u32;
    secs.wrapping_mul(1000).wrapping_add(now.subsec_millis())
}
