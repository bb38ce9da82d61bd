//! `ppoll(2)` over twins and ordinary descriptors alike.
//!
//! The kernel answers for ordinary descriptors, for directions on TCP, and for the end of every
//! connection; the ring answers for itself. One round asks both; if nobody has anything, the thread
//! spins a little on the rings, then arms its doorbell on each and sleeps in the kernel's `ppoll`
//! with the doorbell among the descriptors.

use super::rx::Deaf;
use super::state::{RxMode, TxMode};
use super::{PATIENCE, Twin};
use crate::engine::{Stream, ThreadBell, spin_on};
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_verbs::Bell;
use rsock_verbs::soft::{Soft, SoftContext};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use std::io;
use std::time::Duration;

/// One entry of [`poll`].
#[derive(Debug)]
pub struct PollEntry<'a> {
    /// The descriptor as the program named it; negative ones are skipped, as by `poll(2)`.
    pub fd: i32,
    /// Its twin, if it is one of ours.
    pub twin: Option<&'a Twin>,
    /// Events asked for.
    pub events: PollFlags,
    /// Events found.
    pub revents: PollFlags,
}

const INPUT: PollFlags = PollFlags::IN.union(PollFlags::RDNORM);
const OUTPUT: PollFlags = PollFlags::OUT.union(PollFlags::WRNORM);

/// What a twin says of itself.
struct State<'a> {
    /// Events that hold, of those asked for.
    ready: PollFlags,
    /// Events that the kernel is to be asked for.
    kernel: PollFlags,
    /// The end of the socket means input: nothing else can come from the ring.
    end_is_input: bool,
    /// The ring to be armed, with the mark taken before looking.
    ring: Option<(&'a Stream<Soft>, u32)>,
    /// A full ring is given this long before the writer moves to TCP.
    impatient: bool,
    deaf: Option<Deaf<'a>>,
}

impl Twin {
    fn poll_state(&self, fd: BorrowedFd<'_>, events: PollFlags) -> State<'_> {
        let _section = Section::enter();
        let mut state = State {
            ready: PollFlags::empty(),
            kernel: events.difference(INPUT | OUTPUT),
            end_is_input: false,
            ring: None,
            impatient: false,
            deaf: None,
        };
        let path = self.path.get();
        let mark = path.map_or(0, |p| p.mark());
        if events.intersects(INPUT) {
            let mut rx = self.dirs.rx.0.lock();
            let steered = path.map_or(Ok(()), |p| self.steer_rx(fd, &mut rx, p));
            if steered.is_err() {
                state.ready |= events & INPUT;
            }
            match (rx.mode, path) {
                (RxMode::Ring, Some(path)) => {
                    state.ring = Some((path, mark));
                    state.kernel |= PollFlags::RDHUP;
                    state.end_is_input = true;
                    if path.has_input() {
                        state.ready |= events & INPUT;
                    }
                }
                (RxMode::Invited | RxMode::Clamped, Some(path)) => {
                    state.ring = Some((path, mark));
                    state.kernel |= events & INPUT;
                }
                _ => {
                    state.kernel |= events & INPUT;
                    if !self.is_plain() {
                        state.deaf = Some(Deaf::new(&self.dirs.shared.0));
                    }
                }
            }
        }
        if events.intersects(OUTPUT) {
            let mut tx = self.dirs.tx.0.lock();
            match (tx.mode, path) {
                (TxMode::Ring, Some(path)) => {
                    if path.has_room() {
                        tx.full_since = None;
                        state.ready |= events & OUTPUT;
                    } else {
                        self.ring_is_full(&mut tx, path);
                        if tx.mode == TxMode::Tcp {
                            state.kernel |= events & OUTPUT;
                        } else {
                            state.ring = Some((path, mark));
                            state.impatient = true;
                        }
                    }
                }
                _ => state.kernel |= events & OUTPUT,
            }
        }
        state
    }
}

/// As `ppoll(2)` over twins and ordinary descriptors alike: `None` as the timeout waits without
/// end; `sigmask` is applied while sleeping. Returns the number of entries with events.
///
/// # Errors
/// As `ppoll(2)`.
pub fn poll(
    entries: &mut [PollEntry<'_>],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    let watch = Watch::begin();
    let deadline = timeout.and_then(|t| sys::now().checked_add(t));
    let mut first = true;
    loop {
        let states = look(entries);
        let mut fds = kernel_entries(entries, &states);
        let is_ready = states.iter().flatten().any(|s| !s.ready.is_empty());
        let left = sys::time_left(deadline);
        // What there is comes before an interruption, or frequent signals would starve the caller.
        let fired = watch.has_fired();
        let kernel_first = first && needs_kernel_first(entries);
        if is_ready || fired || left == Some(Duration::ZERO) || kernel_first {
            sys::ppoll(&mut fds, Some(Duration::ZERO), None)?;
            let n = collect(entries, &states, &fds);
            if n != 0 || left == Some(Duration::ZERO) {
                return Ok(n);
            }
        }
        first = false;
        if fired {
            return Err(rustix::io::Errno::INTR.into());
        }
        if spin(&states) {
            continue;
        }
        let slept = sleep(entries, &states, &mut fds, left, sigmask, watch)?;
        if slept == Slept::Events {
            let n = collect(entries, &states, &fds);
            if n != 0 {
                return Ok(n);
            }
        }
    }
}

/// Before the first spin: whether an entry only the kernel knows might be ready already.
fn needs_kernel_first(entries: &[PollEntry<'_>]) -> bool {
    entries.iter().any(|e| e.fd >= 0 && !e.twin.is_some_and(|t| t.on_ring().1))
}

fn look<'a>(entries: &[PollEntry<'a>]) -> Vec<Option<State<'a>>> {
    entries
        .iter()
        .map(|e| {
            let twin = e.twin.filter(|t| e.fd >= 0 && !t.is_plain())?;
            // SAFETY: the program keeps the descriptor open during its own call.
            let fd = unsafe { BorrowedFd::borrow_raw(e.fd) };
            Some(twin.poll_state(fd, e.events))
        })
        .collect()
}

/// What to ask the kernel: the entries in their order, and room for what waiting adds.
fn kernel_entries(entries: &[PollEntry<'_>], states: &[Option<State<'_>>]) -> Vec<libc::pollfd> {
    let mut fds = Vec::with_capacity(entries.len() + 2);
    fds.extend(entries.iter().zip(states).map(|(e, s)| {
        let events = s.as_ref().map_or(e.events, |s| s.kernel);
        libc::pollfd { fd: e.fd, events: events.bits().cast_signed(), revents: 0 }
    }));
    fds
}

/// Joins both answers; how many entries have events.
fn collect(
    entries: &mut [PollEntry<'_>],
    states: &[Option<State<'_>>],
    fds: &[libc::pollfd],
) -> usize {
    let mut n = 0;
    for ((entry, state), fd) in entries.iter_mut().zip(states).zip(fds) {
        let kernel = PollFlags::from_bits_retain(fd.revents.cast_unsigned());
        entry.revents = match state {
            None => kernel,
            Some(state) => {
                let always = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
                let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
                let mut found = state.ready | (kernel & (entry.events | always));
                if state.end_is_input && kernel.intersects(ended) {
                    found |= entry.events & INPUT;
                }
                found
            }
        };
        n += usize::from(!entry.revents.is_empty());
    }
    n
}

fn spin(states: &[Option<State<'_>>]) -> bool {
    /// More rings than this are not worth a look per turn.
    const MOST: usize = 8;
    let rings = || states.iter().flatten().filter_map(|s| s.ring.as_ref());
    let n = rings().count();
    n != 0 && n <= MOST && spin_on(|| rings().any(|(path, mark)| path.has_changed(*mark)))
}

#[derive(PartialEq, Eq)]
enum Slept {
    /// The kernel's answer is in the descriptors.
    Events,
    /// A ring changed before the thread slept.
    Changed,
}

fn sleep(
    entries: &[PollEntry<'_>],
    states: &[Option<State<'_>>],
    fds: &mut Vec<libc::pollfd>,
    left: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
    watch: Watch,
) -> io::Result<Slept> {
    let ctx = SoftContext::open()?;
    Soft::with_bell(&ctx, |bell| {
        let mut armed = Vec::new();
        for (path, mark) in states.iter().flatten().filter_map(|s| s.ring.as_ref()) {
            match path.arm(bell, *mark) {
                Some(a) => armed.push(a),
                None => return Ok(Slept::Changed),
            }
        }
        let n = entries.len();
        let searches: Vec<(usize, i32)> = entries
            .iter()
            .enumerate()
            .filter_map(|(i, e)| Some((i, e.twin?.search_fd()?)))
            .collect();
        fds.push(libc::pollfd { fd: bell.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 });
        fds.extend(searches.iter().map(|(_, fd)| libc::pollfd {
            fd: *fd,
            events: libc::POLLIN,
            revents: 0,
        }));
        let impatient = states.iter().flatten().any(|s| s.impatient).then_some(PATIENCE);
        let bound = armed.iter().filter_map(super::super::engine::Armed::bound).min();
        let left = [left, impatient, bound].into_iter().flatten().min();
        let slept = sys::sleep(fds, left, sigmask, watch);
        drop(armed);
        if fds[n].revents != 0 {
            bell.drain();
        }
        for ((i, _), fd) in searches.iter().zip(&fds[n + 1..]) {
            if let (true, Some(twin)) = (fd.revents != 0, entries[*i].twin) {
                // SAFETY: the program keeps the descriptor open during its own call.
                twin.on_search_ready(unsafe { BorrowedFd::borrow_raw(entries[*i].fd) });
            }
        }
        fds.truncate(n);
        slept.map(|_| Slept::Events)
    })?
}
