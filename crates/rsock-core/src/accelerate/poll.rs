//! `ppoll(2)` over streams, native listeners, datagram sockets and ordinary descriptors.
//!
//! The kernel knows the readiness of ordinary descriptors, of directions on TCP, and the end of
//! every connection; the ring knows its own readiness. One round asks both. If neither has an
//! event, the thread spins a little on the rings, then arms its doorbell on each and sleeps in the
//! kernel's `ppoll` with the doorbell among the descriptors.
//!
//! A call on a few descriptors allocates nothing: `poll(2)` is safe in signal handlers.

use crate::accelerate::ask::Subject;
use crate::accelerate::kernel_look::{FEW, KernelLook, Skipped};
use crate::accelerate::kernel_only_waiter::KernelOnlyWaiter;
use crate::accelerate::path::{Arming, Bells, Path};
use crate::accelerate::peer_check::check_peer;
use crate::accelerate::poll_state::{INPUT, OUTPUT, State};
use crate::accelerate::state::{FLAG_PINNED, Receiving};
use crate::accelerate::{AcceleratedStream, NativeListener, PATIENCE, StreamRef, Waited};
use crate::closing::{Call, notice};
use crate::datagram::kernel_udp::AcceleratedUdp;
use crate::engine::{WITHOUT_BELL, spin_on_peers};
use crate::interrupt::{Section, Watch};
use crate::metrics::Direction;
use crate::page_reclaim::rest;
use crate::sys::{self, LazyDeadline};
use rsock_proto::switch::{
    DirectionSwitch, Fact, KernelInput, Output, Receiver, RingInput, Sender,
};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use smallvec::SmallVec;
use std::io;
use std::time::Duration;

/// An epoll set that watches rings too.
pub trait PolledSet: std::fmt::Debug {
    /// Whether a ring has something that the set reports. Afterwards the kernel's set is readable
    /// for what the kernel has to report alone, until something else comes.
    fn is_ready(&self) -> bool;

    /// Has the kernel's set become readable with the next thing that comes on a ring. Returns for
    /// how long it is safe to sleep, without a limit if none; `Err` if something has come already.
    ///
    /// # Errors
    /// Not an error: try again.
    fn arm(&self) -> Result<Option<Duration>, Changed>;
}

/// Something has come already.
#[derive(Clone, Copy, Debug)]
pub struct Changed;

/// One entry of [`poll`]: a descriptor of the program, and what lies beside it.
#[derive(Debug)]
pub struct PollDescriptor<'a> {
    /// The descriptor as the program named it; negative ones are skipped, as by `poll(2)`.
    pub fd: i32,
    /// The stream whose descriptor it is.
    pub stream: Option<StreamRef<'a>>,
    /// The native listener beside it, if it listens.
    pub listener: Option<&'a NativeListener>,
    /// The datagram socket whose descriptor it is.
    pub udp: Option<&'a AcceleratedUdp>,
    /// The epoll set whose descriptor it is, if it watches rings.
    pub set: Option<&'a dyn PolledSet>,
    /// Keeps the socket of `stream` or `udp` if another thread closes `fd` meanwhile.
    pub call: Option<Call<'a>>,
    /// Whether it is a socket of which every change passes this library, or is the peer's.
    pub is_socket: bool,
    /// Events asked for.
    pub events: PollFlags,
    /// Events found.
    pub revents: PollFlags,
}

impl PollDescriptor<'_> {
    /// An entry that is skipped.
    pub const SKIPPED: Self = Self {
        fd: -1,
        stream: None,
        listener: None,
        udp: None,
        set: None,
        call: None,
        is_socket: false,
        events: PollFlags::empty(),
        revents: PollFlags::empty(),
    };

    /// An entry with nothing beside its descriptor.
    #[must_use]
    pub fn new(fd: i32, events: PollFlags) -> Self {
        Self { fd, events, ..Self::SKIPPED }
    }

    /// The descriptor for the kernel's `ppoll`: negative for an entry that is skipped, and a number
    /// that no descriptor has if the socket could not be kept.
    fn number(&self) -> RawFd {
        match &self.call {
            Some(call) if self.fd >= 0 => call.fd().map_or(RawFd::MAX, |fd| fd.as_raw_fd()),
            _ => self.fd,
        }
    }

    /// Whether a close of its descriptor has to wake a sleeper by [`notice`], because it has no
    /// ring that could.
    fn needs_notice(&self) -> bool {
        self.call.is_some() && self.stream.is_none_or(|stream| stream.path().is_none())
    }
}

/// Number of further descriptors of each call: the doorbells, and the notice of closings.
const N_ADDED: usize = Bells::MOST + 1;
/// More rings than this are not worth spinning on.
const MOST_SPUN: usize = 8;
const NO_FD: libc::pollfd = libc::pollfd { fd: -1, events: 0, revents: 0 };

impl State<'_> {
    /// The state of a listening socket with a native listener.
    fn of_listener(listener: &NativeListener, events: PollFlags) -> Self {
        let mut state = Self::of_kernel(events);
        if events.intersects(INPUT) && listener.is_ready() {
            state.ready = events & INPUT;
        }
        state
    }
}

impl AcceleratedStream {
    /// The state of this stream's entry. The result is written to `state`: PERF: to return it
    /// would copy what has just been stored.
    pub(super) fn poll_state<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        events: PollFlags,
        state: &mut State<'a>,
    ) {
        let _section = Section::enter();
        state.kernel = events.difference(INPUT | OUTPUT);
        let path = self.path();
        let mark = path.map_or(0, |p| p.mark());
        let look = self.begin_look(mark);
        let is_quiet = events.intersects(INPUT) && self.poll_input(fd, path, mark, events, state);
        self.answer_leave(fd);
        if let Some(path) = path.filter(|_| is_quiet) {
            self.note_quiet(look, path);
        }
        if events.intersects(OUTPUT) {
            self.poll_output(fd, path, mark, events, state);
        }
        if state.ring.is_none() {
            state.asking = self.asking_path().map(|path| (path, mark));
        }
    }

    /// Whether nothing is there, and the next byte comes from the ring.
    fn poll_input<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        path: Option<&'a Path>,
        mark: u32,
        events: PollFlags,
        state: &mut State<'a>,
    ) -> bool {
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, path);
        let mut seen = self.begin(&*rx, &subject);
        let asked = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::poll_input);
        let Ok(input) = asked else {
            // The kernel's `ppoll` reports the error of the descriptor.
            state.kernel |= events & INPUT;
            return false;
        };
        if input.fault.is_some() {
            state.ready |= events & INPUT;
        }
        match input.kernel {
            KernelInput::Bytes => state.kernel |= events & INPUT,
            KernelInput::End => {
                state.kernel |= PollFlags::RDHUP;
                state.end_is_input = true;
            }
        }
        let is_settled = rx.switch.is_settled(seen.now());
        match (input.ring, path) {
            (RingInput::Unused, _) | (_, None) => {
                if !is_settled && input.fault.is_none() {
                    let waiters = &self.dirs.shared.0.kernel_only_waiters;
                    state.kernel_only = Some(KernelOnlyWaiter::new(waiters, &*rx));
                }
            }
            (RingInput::WakeOnly, Some(path)) => state.ring = Some((path, mark)),
            (RingInput::AfterTcp | RingInput::Input, Some(path)) => {
                state.ring = Some((path, mark));
                let has_end = input.ring == RingInput::Input && path.has_eof();
                let is_enough = |rx: &mut Receiving, subject: &mut Subject<'_>| {
                    !self.has(FLAG_PINNED) || has_end || self.reaches_low_water(rx, subject)
                };
                let has_input = path.has_input();
                if has_input && !path.has_end_alone() && is_enough(&mut rx, &mut subject) {
                    state.ready |= events & INPUT;
                }
                return !has_input && input.fault.is_none() && input.kernel == KernelInput::End;
            }
        }
        false
    }

    fn poll_output<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        path: Option<&'a Path>,
        mark: u32,
        events: PollFlags,
        state: &mut State<'a>,
    ) {
        let mut tx = self.dirs.tx.0.lock();
        let mut subject = Subject::new(fd, path);
        let mut seen = self.begin(&*tx, &subject);
        loop {
            let asked = self.ask(&mut *tx, &mut seen, &mut subject, Sender::poll_output);
            self.note_answers(&tx);
            match (asked, path) {
                (Ok(Output::Kernel), _) | (Err(_), _) => state.kernel |= events & OUTPUT,
                (Ok(Output::Now), _) => state.ready |= events & OUTPUT,
                (Ok(Output::Ring), Some(path)) if path.has_room() => {
                    tx.full_since = None;
                    state.ready |= events & OUTPUT;
                }
                (Ok(Output::Ring), Some(path)) => {
                    check_peer(fd, &mut tx, path);
                    tx.full_since.get_or_insert_with(sys::now);
                    self.note(&*tx, &mut seen, &subject, Fact::RingFull);
                    continue;
                }
                (Ok(Output::WaitForRing), Some(path)) => {
                    state.ring = Some((path, mark));
                    state.impatient = true;
                }
                (Ok(Output::Ring | Output::WaitForRing), None) => state.ready |= events & OUTPUT,
            }
            return;
        }
    }
}

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

/// The result of a round over all entries.
#[derive(Default)]
struct Round {
    /// An entry has an event.
    is_ready: bool,
    /// An entry whose readiness only the kernel knows might be ready already.
    kernel_first: bool,
}

/// Asks the rings and queues of all entries.
fn ask_rings<'a>(entries: &[PollDescriptor<'a>], states: &mut [Option<State<'a>>]) -> Round {
    // First: this thread no longer counts as a kernel-only waiter.
    states.fill_with(|| None);
    let mut round = Round::default();
    for (e, state) in entries.iter().zip(states) {
        if let Some(listener) = e.listener.filter(|_| e.fd >= 0) {
            let found = State::of_listener(listener, e.events);
            round.is_ready |= !found.ready.is_empty();
            round.kernel_first = true;
            *state = Some(found);
            continue;
        }
        if let Some(udp) = e.udp.filter(|_| e.fd >= 0) {
            let found = State::of_udp(udp, e.events);
            round.is_ready |= !found.ready.is_empty();
            round.kernel_first |= found.kernel_first();
            *state = Some(found);
            continue;
        }
        if let Some(set) = e.set.filter(|_| e.fd >= 0) {
            let mut found = State::of_kernel(e.events);
            if e.events.intersects(INPUT) && set.is_ready() {
                found.ready = e.events & INPUT;
            }
            round.is_ready |= !found.ready.is_empty();
            round.kernel_first = true;
            *state = Some(found);
            continue;
        }
        let Some(stream) = e.stream.filter(|s| e.fd >= 0 && !s.is_plain()) else {
            round.kernel_first |= e.fd >= 0;
            continue;
        };
        // SAFETY: the program keeps the descriptor open during its own call, or `call` does.
        let fd = unsafe { BorrowedFd::borrow_raw(e.number()) };
        let state = state.insert(State::of_kernel(PollFlags::empty()));
        stream.poll_state(fd, e.events, state);
        round.is_ready |= !state.ready.is_empty();
        round.kernel_first |= state.kernel_first();
    }
    round
}

/// Fills in the descriptors for the kernel, in the order of the entries. Returns how many it is
/// asked about.
fn ask_kernel(
    entries: &[PollDescriptor<'_>],
    states: &[Option<State<'_>>],
    fds: &mut [libc::pollfd],
    skipped: Skipped,
    is_quick: bool,
) -> usize {
    let mut asked = 0;
    for ((e, state), fd) in entries.iter().zip(states).zip(fds) {
        let events = state.as_ref().map_or(e.events, |s| s.kernel);
        let is_end = |s: &State<'_>| skipped == Skipped::Ends && s.only_ends(e.events);
        let may_skip = |s: &State<'_>| is_end(s) || is_quick && s.is_enough();
        let is_spared = skipped == Skipped::Sockets && e.is_socket;
        let skip = is_spared || state.as_ref().is_some_and(may_skip);
        let number = if skip { -1 } else { e.number() };
        *fd = libc::pollfd { fd: number, events: sys::poll_bits(events), revents: 0 };
        asked += usize::from(number >= 0);
    }
    asked
}

/// Joins the events of the rings and of the kernel. Returns how many entries have events.
fn collect(
    entries: &mut [PollDescriptor<'_>],
    states: &[Option<State<'_>>],
    fds: &[libc::pollfd],
) -> usize {
    let mut n = 0;
    for ((entry, state), fd) in entries.iter_mut().zip(states).zip(fds) {
        let kernel = match entry.set {
            Some(set) => kernel_part_of_set(set, fd),
            None => sys::poll_flags(fd.revents),
        };
        entry.revents = match state {
            None => kernel,
            Some(state) => {
                let always = PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL;
                let ended = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
                let mut found = state.ready | (kernel & (entry.events | always));
                if state.end_is_input && kernel.intersects(ended) {
                    found |= entry.events & INPUT;
                    if let Some(StreamRef::Accelerated(stream)) = entry.stream {
                        stream.note_socket();
                    }
                }
                found
            }
        };
        n += usize::from(!entry.revents.is_empty());
    }
    n
}

/// What the kernel reports of an epoll set, without news of rings that are nothing to report.
fn kernel_part_of_set(set: &dyn PolledSet, fd: &libc::pollfd) -> PollFlags {
    let mut found = sys::poll_flags(fd.revents);
    // The first look may lead to such news, which the second takes.
    for _ in 0..2 {
        if !found.intersects(INPUT) || set.is_ready() {
            return found;
        }
        let mut again = [libc::pollfd { revents: 0, ..*fd }];
        if sys::ppoll(&mut again, Some(Duration::ZERO), None).is_err() {
            return found;
        }
        found = sys::poll_flags(again[0].revents);
    }
    found
}

fn spin(states: &[Option<State<'_>>]) -> bool {
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
fn count_waits(entries: &[PollDescriptor<'_>], states: &[Option<State<'_>>], waited: Waited) {
    for (entry, state) in entries.iter().zip(states) {
        let ring = state.as_ref().and_then(|s| s.ring.as_ref());
        let (Some(stream), Some((path, mark))) = (entry.stream, ring) else { continue };
        if waited == Waited::Sleeping || path.has_changed(*mark) {
            let is_input = entry.events.intersects(INPUT);
            stream.count_wait(if is_input { Direction::Recv } else { Direction::Send }, waited);
        }
    }
}

#[derive(PartialEq, Eq)]
enum Slept {
    /// The kernel's `ppoll` has returned, and filled in the descriptors.
    Events,
    /// A ring changed before the thread slept.
    Changed,
}

fn sleep<'a>(
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
    let mut bound = None::<Duration>;
    let mut shorten = |limit: Option<Duration>| bound = [bound, limit].into_iter().flatten().min();
    shorten(left);
    for set in entries.iter().filter(|entry| entry.fd >= 0).filter_map(|entry| entry.set) {
        match set.arm() {
            Ok(limit) => shorten(limit),
            Err(Changed) => return Ok(Slept::Changed),
        }
    }
    for (state, armed) in states.iter().flatten().zip(armed.iter_mut()) {
        if let Some(udp) = state.queue {
            match bells.arm_udp(udp) {
                Arming::Changed => return Ok(Slept::Changed),
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
            Arming::Changed => return Ok(Slept::Changed),
            Arming::Without => shorten(state.ring.is_some().then_some(WITHOUT_BELL)),
            arming => {
                shorten(arming.bound());
                *armed = Some(arming);
            }
        }
    }
    let n = entries.len();
    let mut end = n + N_ADDED;
    fds[n..n + Bells::MOST].copy_from_slice(&bells.entries());
    let is_noticed = entries.iter().any(PollDescriptor::needs_notice);
    fds[end - 1] = if is_noticed { notice::entry() } else { NO_FD };
    for entry in entries {
        let listener = entry.listener.filter(|_| entry.fd >= 0 && entry.events.intersects(INPUT));
        let listener = listener.map(|listener| listener.as_fd().as_raw_fd());
        let stream = || entry.stream.and_then(StreamRef::auxiliary_fd);
        let udp = || entry.udp.and_then(AcceleratedUdp::listener_fd);
        if let Some(fd) = listener.or_else(stream).or_else(udp) {
            fds[end] = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            end += 1;
        }
    }
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
    for search in fds[n + N_ADDED..end].iter().filter(|f| f.revents != 0) {
        let asked = |e: &&PollDescriptor<'_>| {
            e.udp.and_then(AcceleratedUdp::listener_fd) == Some(search.fd)
        };
        if let Some((entry, udp)) = entries.iter().find(asked).and_then(|e| Some((e, e.udp?))) {
            // SAFETY: the program keeps the descriptor open during its own call, or `call` does.
            udp.on_listener_ready(unsafe { BorrowedFd::borrow_raw(entry.number()) });
            continue;
        }
        // The next round serves a native listener.
        let searching =
            |e: &&PollDescriptor<'_>| e.stream.and_then(StreamRef::auxiliary_fd) == Some(search.fd);
        let found = entries.iter().find(searching).and_then(|e| Some((e, e.stream?)));
        if let Some((entry, stream)) = found {
            // SAFETY: the program keeps the descriptor open during its own call, or `call` does.
            stream.on_auxiliary_ready(unsafe { BorrowedFd::borrow_raw(entry.number()) });
        }
    }
    slept.map(|_| Slept::Events)
}

fn is_too_many(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EINVAL)
}
