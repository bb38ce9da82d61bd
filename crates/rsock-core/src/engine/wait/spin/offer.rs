//! Offers of the CPU to other threads that wait for it.

use crate::engine::wait::cpu_contention::{CpuContention, TIME_SLICE};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A `sched_yield` that takes less has let no other thread run.
pub(super) const SHORTEST_SWITCH: Duration = Duration::from_micros(3);
/// One that has let another thread run is taken to last at least so many times as long as one that
/// has not. A thread whose yields all let another run finds that out with the first that does not,
/// or that takes [`LONGEST_WITHOUT`]. PERF: in an emulated guest one that lets none run takes 2.5
/// to 4.2 us, so that half of them counted as switches, and waits yielded instead of spinning:
/// `rstream` over soft RoCE made up to 14 `sched_yield`s in each of 10,000 round trips (`perf
/// stat`), and makes 3 at most.
const SWITCH_TIMES: u32 = 4;
/// One that takes so long has let another thread run, on any machine.
const LONGEST_WITHOUT: Duration = Duration::from_micros(20);

/// The shortest `sched_yield` of this process so far. Nanoseconds.
static SHORTEST: AtomicU32 = AtomicU32::new(u32::MAX);

/// Lets other threads that wait for this CPU run. Whether one did.
pub(crate) fn offer_cpu(contention: Option<&CpuContention>) -> bool {
    let offered = Instant::now();
    rustix::thread::sched_yield();
    let took = offered.elapsed();
    report_slice(contention, took);
    let nanos = u32::try_from(took.as_nanos()).unwrap_or(u32::MAX);
    let shortest = SHORTEST.fetch_min(nanos, Ordering::Relaxed).min(nanos);
    has_switched(took, Duration::from_nanos(shortest.into()))
}

/// Whether a `sched_yield` that took so long let another thread run, where the shortest one took
/// `shortest`.
pub(super) fn has_switched(took: Duration, shortest: Duration) -> bool {
    took >= (shortest * SWITCH_TIMES).clamp(SHORTEST_SWITCH, LONGEST_WITHOUT)
}

/// Reports that other threads had this CPU for as long as `took`, if that is a time slice.
pub(super) fn report_slice(contention: Option<&CpuContention>, took: Duration) {
    if let Some(contention) = contention.filter(|_| took >= TIME_SLICE) {
        contention.report();
    }
}
