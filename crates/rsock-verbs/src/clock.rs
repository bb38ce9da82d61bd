//! The kernel's clocks, read by libc.
//!
//! rustix finds the vDSO by itself, in the auxiliary vector that the kernel shows in `/proc`. Under
//! Valgrind, which takes the vDSO away, that ends the program; libc asks the vector it was given.

use std::time::Duration;

/// The monotonic clock (`CLOCK_MONOTONIC`), since a moment in the past.
#[inline]
#[must_use]
pub fn monotonic() -> Duration {
    read(libc::CLOCK_MONOTONIC)
}

/// The coarse monotonic clock (`CLOCK_MONOTONIC_COARSE`), which advances every 1 to 10 ms.
#[inline]
#[must_use]
pub fn coarse() -> Duration {
    read(libc::CLOCK_MONOTONIC_COARSE)
}

/// The CPU time of the calling thread (`CLOCK_THREAD_CPUTIME_ID`). Makes a system call.
#[must_use]
pub fn of_thread() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

#[inline]
fn read(clock: libc::clockid_t) -> Duration {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live time. All these clocks exist since Linux 2.6.32, so the call does not fail.
    unsafe { libc::clock_gettime(clock, &raw mut now) };
    let nanos = u32::try_from(now.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance() {
        let (began, began_coarse) = (monotonic(), coarse());
        while coarse() == began_coarse {}
        assert!(monotonic() > began && coarse() > began_coarse);
    }
}
