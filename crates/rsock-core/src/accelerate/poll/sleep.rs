//! The wait for the next event: a spin on the rings, then a sleep in the kernel's `ppoll`.

use crate::accelerate::bells::{Arming, Bells};
use crate::accelerate::kernel_look::FEW;
use crate::accelerate::path::Path;
use crate::accelerate::poll::{Changed, Limits, PollDescriptor};
use crate::accelerate::poll_state::State;
use crate::accelerate::{PATIENCE, StreamRef, Waited};
use crate::closing::notice;
use crate::datagram::kernel_udp::AcceleratedUdp;
use crate::engine::{WITHOUT_BELL, spin_on_peers};
use crate::metrics::Direction;
use crate::page_reclaim::rest;
use crate::sys::{self, INPUT};
use rustix::fd::{AsFd, AsRawFd, RawFd};
use smallvec::SmallVec;
use std::io;
use std::time::Duration;

/// Number of further descriptors of each call: the doorbells, and the notice of closings.
pub(super) const N_ADDED: usize = Bells::MOST + 1;
/// More rings than this are not worth spinning on.
const MOST_SPUN: usize = 8;
/// Is skipped by the kernel.
pub(super) const NO_FD: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

/// Spins on the rings and queues of a few entries; false if nothing came.
pub(super) fn spin(states: &[Option<State<'_>>]) -> bool {
    let rings = || states.iter().flatten().filter_map(|s| s.ring.as_ref());
    let queues = || states.iter().flatten().filter_map(|s| s.queue).filter(|udp| udp.is_active());
    let n = rings().take(MOST_SPUN + 1).count() + queues().take(MOST_SPUN + 1).count();
    let has_any = || {
        rings().any(|(path, mark)| path.has_changed(*mark)) || queues().any(|udp| udp.is_ready())
    };
    n != 0 && n <= MOST_SPUN && spin_on_peers(n, || is_any_peer_elsewhere(rings()), has_any)
}

/// Whether one of the peers runs on another CPU than this thread; `None` if that is unknown of all.
fn is_any_peer_elsewhere<'a>(rings: impl Iterator<Item = &'a (&'a Path, u32)>) -> Option<bool> {
    let mut known = None;
    for (path, _) in rings {
        match path.is_peer_elsewhere() {
            Some(true) => return Some(true),
            Some(false) => known = Some(false),
            None => {}
        }
    }
    known
}

/// Counts a wait for each ring that it concerned: the one that ended a spin, or all.
pub(super) fn count_waits(
    entries: &[PollDescriptor<'_>],
    states: &[Option<State<'_>>],
    waited: Waited,
) {
    for (entry, state) in entries.iter().zip(states) {
        let ring = state.as_ref().and_then(|s| s.ring.as_ref());
        let (Some(stream), Some((path, mark))) = (entry.stream, ring) else { continue };
        if waited == Waited::Sleeping || path.has_changed(*mark) {
            let is_input = entry.events.intersects(INPUT);
            stream.count_wait(if is_input { Direction::Recv } else { Direction::Send }, waited);
        }
    }
}

/// How a sleep ended.
#[derive(PartialEq, Eq)]
pub(super) enum Slept {
    /// The kernel's `ppoll` has returned, and filled in the descriptors.
    Events,
    /// A ring changed before the thread slept.
    Changed,
}

/// Sleeps until an entry may have an event, for no longer than `left`.
pub(super) fn sleep<'a>(
    entries: &[PollDescriptor<'a>],
    states: &[Option<State<'a>>],
    fds: &mut [libc::pollfd],
    left: Option<Duration>,
    limits: &Limits<'_>,
) -> io::Result<Slept> {
    let n = entries.len();
    let rings = states.iter().flatten().filter_map(|state| state.ring.or(state.asking));
    let needs_soft = states.iter().flatten().any(|state| state.queue.is_some());
    Bells::with(rings.map(|(path, _)| path), needs_soft, |bells| {
        let mut armed: SmallVec<[Option<Arming<'_>>; FEW]> = SmallVec::new();
        armed.resize_with(n, || None);
        sleep_armed(bells, &mut armed, entries, states, fds, left, limits)
    })
}

/// `armed` has one element for each entry. Without a doorbell for a ring, it sleeps for a short
/// time.
fn sleep_armed<'a>(
    bells: Bells<'a>,
    armed: &mut [Option<Arming<'a>>],
    entries: &[PollDescriptor<'_>],
    states: &'a [Option<State<'_>>],
    fds: &mut [libc::pollfd],
    left: Option<Duration>,
    limits: &Limits<'_>,
) -> io::Result<Slept> {
    let n = entries.len();
    let Ok(bound) = arm_all(bells, armed, entries, states, left) else {
        return Ok(Slept::Changed);
    };
    let end = add_descriptors(bells, entries, fds);
    let mut sleep = |bound| sys::sleep(&mut fds[..end], bound, limits.sigmask, limits.watch);
    // Another signal mask is in force while the thread sleeps, and not in between.
    let mut slept = match limits.sigmask {
        Some(_) => sleep(bound),
        None => rest::sleep(bound, sleep),
    };
    if slept.as_ref().is_err_and(is_too_many) {
        // With those that were added, there are more entries than the process may have
        // descriptors. The caller's entries alone may be few enough.
        let moment = bound.map_or(WITHOUT_BELL, |bound| bound.min(WITHOUT_BELL));
        fds[n..].fill(NO_FD);
        slept = sys::sleep(&mut fds[..n], Some(moment), limits.sigmask, limits.watch);
    }
    armed.fill_with(|| None);
    bells.drain(&fds[n..n + Bells::MOST]);
    serve_auxiliaries(entries, &fds[n + N_ADDED..end]);
    slept.map(|_| Slept::Events)
}

/// Has the rings, the queues and the sets wake this thread. Returns for how long it may sleep,
/// without a limit if none.
fn arm_all<'a>(
    bells: Bells<'a>,
    armed: &mut [Option<Arming<'a>>],
    entries: &[PollDescriptor<'_>],
    states: &'a [Option<State<'_>>],
    left: Option<Duration>,
) -> Result<Option<Duration>, Changed> {
    let mut bound = left;
    let mut shorten = |limit: Option<Duration>| bound = [bound, limit].into_iter().flatten().min();
    for set in open(entries).filter_map(|entry| entry.set) {
        shorten(set.arm()?);
    }
    for (state, armed) in states.iter().flatten().zip(armed.iter_mut()) {
        if let Some(udp) = state.queue {
            match bells.arm_udp(udp) {
                Arming::Changed => return Err(Changed),
                arming => {
                    shorten(arming.bound());
                    *armed = Some(arming);
                }
            }
        }
        let ring = state.ring.as_ref().or(state.asking.as_ref());
        let Some((path, mark)) = ring else { continue };
        shorten(state.impatient.then_some(PATIENCE));
        match bells.arm(path, *mark) {
            Arming::Changed => return Err(Changed),
            Arming::Without => shorten(state.ring.is_some().then_some(WITHOUT_BELL)),
            arming => {
                shorten(arming.bound());
                *armed = Some(arming);
            }
        }
    }
    Ok(bound)
}

/// Adds the descriptors of the doorbells, of the notice of closings, and of what lies beside the
/// entries. Returns the number of all.
fn add_descriptors(
    bells: Bells<'_>,
    entries: &[PollDescriptor<'_>],
    fds: &mut [libc::pollfd],
) -> usize {
    let n = entries.len();
    let mut end = n + N_ADDED;
    fds[n..n + Bells::MOST].copy_from_slice(&bells.entries());
    let is_noticed = entries.iter().any(PollDescriptor::needs_notice);
    fds[end - 1] = if is_noticed { notice::entry() } else { NO_FD };
    for fd in open(entries).filter_map(auxiliary_fd) {
        fds[end] = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        end += 1;
    }
    end
}

/// The entries that are not skipped.
fn open<'a, 'b>(entries: &'a [PollDescriptor<'b>]) -> impl Iterator<Item = &'a PollDescriptor<'b>> {
    entries.iter().filter(|entry| entry.fd >= 0)
}

/// The descriptor beside that of the entry, by which a native listener or discovery has news.
fn auxiliary_fd(entry: &PollDescriptor<'_>) -> Option<RawFd> {
    let listener = entry.listener.filter(|_| entry.events.intersects(INPUT));
    let listener = listener.map(|listener| listener.as_fd().as_raw_fd());
    let stream = || entry.stream.and_then(StreamRef::auxiliary_fd);
    let udp = || entry.udp.and_then(AcceleratedUdp::listener_fd);
    listener.or_else(stream).or_else(udp)
}

/// Serves discovery where its descriptor, one of `fds`, has an event. The next round serves a
/// native listener.
fn serve_auxiliaries(entries: &[PollDescriptor<'_>], fds: &[libc::pollfd]) {
    for ready in fds.iter().filter(|fd| fd.revents != 0) {
        let udp = open(entries).find_map(|entry| {
            let udp = entry.udp.filter(|udp| udp.listener_fd() == Some(ready.fd))?;
            Some((entry, udp))
        });
        if let Some((entry, udp)) = udp {
            udp.on_listener_ready(entry.open_fd());
            continue;
        }
        let stream = open(entries).find_map(|entry| {
            let stream = entry.stream.filter(|stream| stream.auxiliary_fd() == Some(ready.fd))?;
            Some((entry, stream))
        });
        if let Some((entry, stream)) = stream {
            stream.on_auxiliary_ready(entry.open_fd());
        }
    }
}

fn is_too_many(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINVAL)
}
