//! Turns of a spin, between which the clock is read.

use crate::engine::wait::cpu_contention::TIME_SLICE;
use once_cell::race::OnceBox;
use std::time::{Duration, Instant};

/// Turns before the clock is first read: about a microsecond.
pub(super) const FREE_TURNS: u32 = 64;
/// Turns of the spin loop between two readings of the clock.
const TURNS: u32 = 32;
/// Reading the clock without a system call takes much less than this.
const CHEAP_READING: Duration = Duration::from_nanos(100);
/// Most turns between readings, as a multiple of [`TURNS`]. PERF: in a guest whose clock takes 2 to
/// 4 us, waiters spent two fifths of their time in it, and found what arrived meanwhile late: 27.8
/// thousand round trips a second, and 32.7 with four times the turns; 31.7 with eight times.
const MAX_STRETCH: u32 = 4;

/// Spins until `ready` holds, for about a microsecond.
///
/// PERF: part of its callers: outside of them, round trips of a byte were a twentieth fewer.
#[inline(always)]
pub(super) fn take_turns(ready: impl Fn() -> bool) -> bool {
    for _ in 0..FREE_TURNS * stretch() {
        if ready() {
            return true;
        }
        std::hint::spin_loop();
    }
    false
}

/// Lets about a microsecond pass, in which the caller looks at nothing that the peer writes. Does
/// nothing where the clock cannot tell such a time.
pub(super) fn hold_back() {
    const FOR: Duration = Duration::from_micros(1);
    /// Turns between two readings of the clock.
    const FEW: u32 = 4;
    if stretch() != 1 {
        return;
    }
    let start = Instant::now();
    while start.elapsed() < FOR {
        (0..FEW).for_each(|_| std::hint::spin_loop());
    }
}

/// How a spin ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spun {
    /// Something came, after about so long.
    Ready(Duration),
    /// Nothing came.
    InVain,
    /// Another thread had the CPU for a time slice.
    Preempted,
}

/// Spins until `ready` holds, for at most `budget` nanoseconds.
#[inline]
pub(super) fn spin_for(budget: u32, ready: impl Fn() -> bool) -> Spun {
    let limit = Duration::from_nanos(budget.into());
    let turns = TURNS * stretch();
    let start = Instant::now();
    let (mut elapsed, mut chunk) = (Duration::ZERO, Duration::ZERO);
    loop {
        for _ in 0..turns {
            if ready() {
                return Spun::Ready(elapsed + chunk);
            }
            std::hint::spin_loop();
        }
        let now = start.elapsed();
        (elapsed, chunk) = (now, now.saturating_sub(elapsed));
        if chunk >= TIME_SLICE {
            return Spun::Preempted;
        }
        if elapsed >= limit {
            return Spun::InVain;
        }
    }
}

/// By how much to stretch the turns between two readings of the clock: more than 1 where a reading
/// takes a system call.
#[inline]
pub(super) fn stretch() -> u32 {
    static STRETCH: OnceBox<u32> = OnceBox::new();
    *STRETCH.get_or_init(|| {
        let readings = (0..4).map(|_| Instant::now().elapsed());
        Box::new(stretch_for(readings.min().unwrap_or_default()))
    })
}

/// As [`stretch`], where one reading takes `reading`.
pub(super) fn stretch_for(reading: Duration) -> u32 {
    let times = reading.as_nanos() / CHEAP_READING.as_nanos();
    u32::try_from(times).unwrap_or(u32::MAX).clamp(1, MAX_STRETCH)
}
