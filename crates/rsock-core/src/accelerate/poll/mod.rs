//! `ppoll(2)` over streams, native listeners, datagram sockets and ordinary descriptors.
//!
//! The kernel knows the readiness of ordinary descriptors, of directions on TCP, and the end of
//! every connection; the ring knows its own readiness. One round asks both. If neither has an
//! event, the thread spins a little on the rings, then arms its doorbell on each and sleeps in the
//! kernel's `ppoll` with the doorbell among the descriptors.
//!
//! A call on a few descriptors allocates nothing: `poll(2)` is safe in signal handlers.

mod entry;
mod round;
mod sleep;

pub use entry::{Changed, PollDescriptor, PolledSet};

use crate::accelerate::kernel_look::{FEW, KernelLook, Skipped};
use crate::accelerate::poll::round::{ask_kernel, ask_rings, collect};
use crate::accelerate::poll::sleep::{N_ADDED, NO_FD, Slept, count_waits, sleep, spin};
use crate::accelerate::poll_state::State;
use crate::accelerate::{StreamRef, Waited};
use crate::interrupt::Watch;
use crate::sys::{self, LazyDeadline, OUTPUT};
use smallvec::SmallVec;
use std::io;
use std::time::Duration;

/// As `ppoll(2)`: without a timeout it waits without end; `sigmask` is applied while it sleeps.
/// Returns the number of entries with events.
///
/// # Errors
/// As `ppoll(2)`.
pub fn poll(
    entries: &mut [PollDescriptor<'_>],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    poll_since(Watch::begin(), entries, timeout, sigmask)
}

/// As [`poll`], for a part of a call in which signal handlers have been watched for with `watch`.
///
/// # Errors
/// As `ppoll(2)`.
pub fn poll_since(
    watch: Watch,
    entries: &mut [PollDescriptor<'_>],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    for entry in entries.iter() {
        if let Some(StreamRef::Accelerated(stream)) = entry.stream {
            stream.note_poll(entry.events.intersects(OUTPUT));
        }
    }
    let n = entries.len();
    let limits = Limits { timeout, sigmask, watch };
    let mut states: SmallVec<[Option<State<'_>>; FEW]> = SmallVec::new();
    states.resize_with(n, || None);
    let mut fds: SmallVec<[libc::pollfd; 2 * FEW + N_ADDED]> = SmallVec::new();
    fds.resize(2 * n + N_ADDED, NO_FD);
    run(entries, &mut states, &mut fds, &limits)
}

/// What ends a call.
struct Limits<'a> {
    timeout: Option<Duration>,
    sigmask: Option<&'a libc::sigset_t>,
    watch: Watch,
}

/// `states` has one element for each entry; `fds` has one for each entry, then [`N_ADDED`], then
/// one for each entry's discovery.
fn run<'a>(
    entries: &mut [PollDescriptor<'a>],
    states: &mut [Option<State<'a>>],
    fds: &mut [libc::pollfd],
    limits: &Limits<'_>,
) -> io::Result<usize> {
    let n = entries.len();
    let mut first = true;
    let mut time = LazyDeadline::new(limits.timeout);
    loop {
        stop_for_handoffs(entries, states, &mut time);
        let round = ask_rings(entries, states);
        let left = time.left();
        // Events come before an interruption, or frequent signals would starve the caller.
        let fired = limits.watch.has_fired();
        let at_once = fired || left == Some(Duration::ZERO);
        // After the first round the kernel is asked in any case: a ring may change again and again
        // without an event for the program, while the kernel has one.
        if round.is_ready || at_once || round.kernel_first || !first {
            let may_skip = round.is_ready && !at_once;
            let asked = entries.iter().map(|entry| (entry.fd, entry.events));
            let look = may_skip.then(|| KernelLook::now(asked));
            let skipped = look.map_or(Skipped::Nothing, KernelLook::skipped);
            let asked = ask_kernel(entries, states, &mut fds[..n], skipped, !fired);
            // A call that does not sleep lets a signal through nevertheless, unless it has events.
            let mask = limits.sigmask.filter(|_| left == Some(Duration::ZERO) && !round.is_ready);
            if asked != 0 || mask.is_some() {
                sys::ppoll(&mut fds[..n], Some(Duration::ZERO), mask)?;
            }
            if let Some(look) = look.filter(|_| skipped == Skipped::Nothing) {
                look.note(&fds[..n]);
            }
            let found = collect(entries, states, fds);
            if found != 0 || left == Some(Duration::ZERO) {
                return Ok(found);
            }
        }
        first = false;
        time.begin();
        if fired {
            return Err(rustix::io::Errno::INTR.into());
        }
        if spin(states) {
            count_waits(entries, states, Waited::Spinning);
            continue;
        }
        count_waits(entries, states, Waited::Sleeping);
        ask_kernel(entries, states, &mut fds[..n], Skipped::Nothing, false);
        if sleep(entries, states, fds, time.left(), limits)? == Slept::Events {
            let found = collect(entries, states, fds);
            if found != 0 {
                return Ok(found);
            }
        }
    }
}

/// Stops while a stream of the entries is handed off.
fn stop_for_handoffs<'a>(
    entries: &[PollDescriptor<'a>],
    states: &mut [Option<State<'a>>],
    time: &mut LazyDeadline,
) {
    for stream in entries.iter().filter_map(|entry| entry.stream) {
        if stream.is_asked_to_stop() {
            time.begin();
            states.fill_with(|| None);
            stream.stop();
        }
    }
}
