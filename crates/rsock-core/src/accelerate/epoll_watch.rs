//! What an epoll set of the program needs of a stream that it watches while the stream is on a
//! ring: the state of the stream, and announcements of what happens next.
//!
//! An epoll set that the kernel alone serves does not see a ring. So a stream in such a set is
//! [held on TCP](AcceleratedStream::hold_on_tcp), from before its first byte until the code that
//! waits for the set has taken over ([`AcceleratedStream::watch_by`]).

#![forbid(unsafe_code)]

use crate::Doorbell;
use crate::accelerate::offsets;
use crate::accelerate::path::Path;
use crate::accelerate::poll_state::State;
use crate::accelerate::state::{FLAG_BROKEN, FLAG_HELD_ON_TCP, FLAG_TX_SHUT};
use crate::accelerate::{AcceleratedStream, Mark, PATIENCE};
use crate::engine::spin_on_peers;
use crate::interrupt::Section;
use crate::sys::{self, INPUT, OUTPUT};
use rsock_proto::event_set::{Events, News, ReadinessSnapshot};
use rsock_proto::switch::DirectionSwitch;
use rsock_verbs::Error;
use rsock_verbs::soft::{ReadyNumber, SoftReadySet};
use rustix::event::PollFlags;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// A number by which the caller of [`AcceleratedStream::hold_on_tcp`] knows its watch; not zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(pub u64);

static ON_PATH_FOUND: OnceLock<fn(WatchId)> = OnceLock::new();

/// Registers the function that is called when a watched stream has found its peer, so that it could
/// move to the ring. The function must not use the stream, whose lock the caller may hold.
pub fn on_path_found(f: fn(WatchId)) {
    let _ = ON_PATH_FOUND.set(f);
}

/// Spins as long as spinning has paid off on this thread lately, until `ready` holds, which one of
/// `n_peers` brings about. `is_peer_elsewhere` tells whether the one that last woke this thread ran
/// on another CPU. False if the caller should sleep.
pub fn spin_until(
    n_peers: usize,
    is_peer_elsewhere: impl FnOnce() -> Option<bool>,
    ready: impl Fn() -> bool,
) -> bool {
    spin_on_peers(n_peers, is_peer_elsewhere, ready)
}

/// The watch that a stream belongs to, if any.
#[derive(Debug, Default)]
pub(super) struct WatchSlot(AtomicU64);

impl WatchSlot {
    /// To be called when the stream has found its peer.
    pub(super) fn on_path(&self) {
        let id = self.0.load(Ordering::Acquire);
        if id != 0
            && let Some(f) = ON_PATH_FOUND.get()
        {
            f(WatchId(id));
        }
    }
}

/// A stream's place in a ready set: see [`AcceleratedStream::watch_by`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingWatch(pub ReadyNumber);

/// The doorbell by which an epoll set watches a stream between hosts: its descriptor is readable
/// when something has happened to the stream.
#[derive(Debug)]
pub struct RemoteWatch {
    bell: Doorbell,
    is_armed: AtomicBool,
    connection: Option<RawFd>,
}

impl RemoteWatch {
    /// The descriptor of the connection, which is readable when the peer's host or the device ends
    /// it. It is open as long as the stream.
    #[must_use]
    pub fn connection_fd(&self) -> Option<RawFd> {
        self.connection
    }
}

impl AsFd for RemoteWatch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// What holds of a stream.
#[derive(Clone, Copy, Debug, Default)]
pub struct EpollState {
    /// What holds now. Of the news only the arrivals on the ring are filled in.
    pub now: ReadinessSnapshot,
    /// Bytes that have arrived on TCP so far, which wraps, and the state of the socket, if the
    /// kernel was asked.
    pub tcp_arrivals: Option<(u32, u8)>,
    /// Sends so far that found no room.
    pub full_sends: u32,
    /// What had happened on the ring when the state was taken.
    pub mark: u32,
    /// Look again after this time even if nothing is announced: a full ring is given up then.
    pub look_again: Option<Duration>,
    /// Whether an end, an error or urgent data has been found, so that the kernel has to be asked
    /// by every later look.
    pub has_kernel_news: bool,
    /// Whether the kernel knows of the end of input.
    pub ended_on_tcp: bool,
    /// Whether the kernel knows that both directions have ended.
    pub has_hung_up: bool,
    /// Whether the ring has failed, between hosts: on one host the socket tells.
    pub has_failed: bool,
    /// Between hosts: TCP has ended, and the end of the stream may still be on its way on the ring.
    pub is_end_pending: bool,
    /// The same, and a receive has found nothing, so it is to be tried again.
    pub is_receive_due: bool,
}

impl AcceleratedStream {
    /// Keeps the stream from moving to the ring, for a watch of the caller. Returns false if
    /// another watch holds it or watches it.
    #[must_use]
    pub fn hold_on_tcp(&self, id: WatchId) -> bool {
        let held =
            self.epoll_watch.0.compare_exchange(0, id.0, Ordering::AcqRel, Ordering::Acquire);
        if held.is_err_and(|other| other != id.0) {
            return false;
        }
        self.dirs.raise(FLAG_HELD_ON_TCP);
        let _section = Section::enter();
        // A call that has not seen the flag has ended after this: what it has moved is visible to
        // the caller.
        self.await_locked_calls();
        true
    }

    /// Ends [`Self::hold_on_tcp`], while the watch goes on by [`Self::watch_by`].
    pub fn end_hold(&self) {
        self.dirs.lower(FLAG_HELD_ON_TCP);
    }

    /// Ends the watch that began with [`Self::hold_on_tcp`].
    pub fn end_watch(&self, id: WatchId) {
        let ended =
            self.epoll_watch.0.compare_exchange(id.0, 0, Ordering::AcqRel, Ordering::Acquire);
        if ended.is_ok() {
            self.dirs.lower(FLAG_HELD_ON_TCP);
        }
    }

    /// The watch that the stream belongs to.
    #[must_use]
    pub fn watched_by(&self) -> Option<WatchId> {
        let id = self.epoll_watch.0.load(Ordering::Acquire);
        (id != 0).then_some(WatchId(id))
    }

    /// Whether both directions may still move to a ring of the soft device, or are there.
    #[must_use]
    pub fn has_local_path(&self) -> bool {
        self.path().is_some_and(|path| path.soft().is_some())
    }

    /// Has `set` watch the ring. `None` if there is no ring of the soft device.
    ///
    /// # Errors
    /// When the set or the memory shared with the peer is full.
    pub fn watch_by(&self, set: &SoftReadySet) -> Result<Option<RingWatch>, Error> {
        let Some(stream) = self.path().and_then(Path::soft) else { return Ok(None) };
        let _section = Section::enter();
        stream.watch_by(set).map(RingWatch).map(Some)
    }

    /// Ends [`Self::watch_by`].
    pub fn unwatch(&self, set: &SoftReadySet, watch: RingWatch) {
        if let Some(stream) = self.path().and_then(Path::soft) {
            let _section = Section::enter();
            stream.unwatch(set, watch.0);
        }
    }

    /// A watch of a stream between hosts. `None` if the peer is on this host.
    ///
    /// # Errors
    /// When descriptors or memory run out (`EMFILE`, `ENFILE`, `ENOMEM`).
    pub fn watch_remote(&self) -> io::Result<Option<RemoteWatch>> {
        let Some(path) = self.path().filter(|path| path.is_remote()) else { return Ok(None) };
        let _section = Section::enter();
        let (bell, is_armed) = (path.create_doorbell()?, AtomicBool::new(false));
        Ok(Some(RemoteWatch { bell, is_armed, connection: path.connection_fd() }))
    }

    /// Ends what [`Self::announce_next_to`] has begun. While the stream is in use, its own calls
    /// would ring the doorbell.
    pub fn pause_remote(&self, watch: &RemoteWatch) {
        if watch.is_armed.swap(false, Ordering::AcqRel) {
            self.disarm(&watch.bell);
        }
    }

    /// Checks, between hosts, whether what was sent has arrived, and whether the peer lives.
    /// Returns for how long a thread may sleep until that is to be checked again, without a limit
    /// if none.
    #[must_use]
    pub fn check_after(&self) -> Option<Duration> {
        let _section = Section::enter();
        self.path().and_then(Path::check_after)
    }

    /// Has `watch` become readable with the next thing that happens after `mark`. False if
    /// something has happened already.
    #[must_use]
    pub fn announce_next_to(&self, watch: &RemoteWatch, mark: u32) -> bool {
        self.pause_remote(watch);
        watch.bell.drain();
        let is_armed = self.path().is_none() || self.arm(&watch.bell, Mark::of(mark));
        watch.is_armed.store(is_armed, Ordering::Release);
        is_armed
    }

    /// Whether something has happened on the ring after `mark`.
    #[must_use]
    pub fn has_changed_since(&self, mark: u32) -> bool {
        self.has_changed(Mark::of(mark))
    }

    /// To be called when [`RemoteWatch::connection_fd`] has become readable.
    pub fn note_connection(&self, fd: BorrowedFd<'_>) {
        let _section = Section::enter();
        self.on_auxiliary_ready(fd);
    }

    /// Has the ready set told of the next thing that happens after `mark`. False if something has
    /// happened already.
    #[must_use]
    pub fn announce_next(&self, mark: u32) -> bool {
        let _section = Section::enter();
        self.path().and_then(Path::soft).is_none_or(|stream| stream.announce_next(mark))
    }

    /// What holds of the stream, of what `asked` names. `asks_kernel` if the kernel may have
    /// something new: an end, an error, or bytes on TCP.
    ///
    /// # Errors
    /// As `poll(2)`.
    pub fn epoll_state(
        &self,
        fd: BorrowedFd<'_>,
        asked: Events,
        asks_kernel: bool,
    ) -> io::Result<EpollState> {
        let asked = poll_flags(asked);
        if !asks_kernel && let Some(state) = self.epoll_state_by_shortcut(fd, asked) {
            return Ok(state);
        }
        // In this order: what arrives after it was counted is news for the next look, and what
        // happens after the mark leads to one.
        let arrivals = self.ring_arrivals();
        let mark = self.path().map_or(0, Path::mark);
        let mut state = State::of_kernel(PollFlags::empty());
        self.poll_state(fd, asked, &mut state);
        let mut kernel = PollFlags::empty();
        let has_ended = || self.path().is_some_and(Path::has_eof);
        let asks_kernel = asks_kernel || state.kernel.intersects(INPUT | OUTPUT) || has_ended();
        if asks_kernel {
            let events = state.kernel | PollFlags::RDHUP | PollFlags::PRI;
            let events = sys::poll_bits(events);
            let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }];
            sys::ppoll(&mut fds, Some(Duration::ZERO), None)?;
            kernel = sys::poll_flags(fds[0].revents);
        }
        let ended_on_tcp = kernel.intersects(PollFlags::RDHUP | PollFlags::HUP);
        let is_local = self.has_local_path();
        // Between hosts the ring's end is that of the stream as long as the receiver reads there: a
        // ring that has failed ends too, and the stream may go on over TCP.
        let ended = ended_on_tcp || !is_local && has_ended() && self.is_receiving_on_ring();
        let is_end_input =
            ended_on_tcp && state.ring.is_some() && self.path().is_some_and(Path::has_end_alone);
        let has_error = kernel.contains(PollFlags::ERR);
        if ended_on_tcp || has_error {
            // Otherwise a receive could find the ring empty, and not look at the socket.
            self.note_socket();
        }
        let is_urgent = kernel.contains(PollFlags::PRI);
        let ready = if is_end_input { state.ready | asked & INPUT } else { state.ready };
        let holds = |of: PollFlags| {
            ready.intersects(of) || state.kernel.intersects(of) && kernel.intersects(of)
        };
        let now = ReadinessSnapshot {
            is_readable: holds(INPUT),
            has_room: holds(OUTPUT),
            is_urgent,
            input_ended: ended,
            output_ended: kernel.contains(PollFlags::HUP) || self.has(FLAG_TX_SHUT),
            has_error,
            news: News { arrivals, room: 0, changes: 0 },
        };
        Ok(EpollState {
            now,
            tcp_arrivals: asks_kernel.then(|| offsets::arrived(fd)).transpose()?,
            full_sends: self.dirs.shared.0.full_sends.load(Ordering::Relaxed),
            mark,
            look_again: state.impatient.then_some(PATIENCE),
            has_kernel_news: ended || has_error || is_urgent,
            ended_on_tcp,
            has_hung_up: kernel.contains(PollFlags::HUP),
            has_failed: self.path().is_some_and(|path| path.is_remote() && path.has_failed()),
            is_end_pending: ended_on_tcp && self.is_end_pending(),
            is_receive_due: ended_on_tcp && self.end_retry_after().is_some(),
        })
    }

    /// The state of a stream that receives on a ring of the soft device and has not ended, if only
    /// input is asked for: that of almost every look. `None`: the switch is to be asked.
    ///
    /// PERF: 640 instructions, where asking the switch takes 2,140 (callgrind, redis-server).
    fn epoll_state_by_shortcut(&self, fd: BorrowedFd<'_>, asked: PollFlags) -> Option<EpollState> {
        let path = self.path()?;
        let stream = path.soft().filter(|_| !asked.intersects(OUTPUT))?;
        let section = Section::enter();
        let rx = self.dirs.rx.0.lock();
        let now = self.dirs.conditions();
        let arrived = stream.arrived();
        // In this order: what the peer did before its last byte is among the messages.
        if arrived.has_eof || !rx.switch.polls_ring(now, path.messages()) {
            return None;
        }
        #[expect(clippy::cast_possible_truncation, reason = "the count wraps")]
        let arrivals = rx.switch.ring_bytes().wrapping_add(arrived.readable as u64) as u32;
        drop((rx, section));
        self.answer_leave(fd);
        let now = ReadinessSnapshot {
            is_readable: asked.intersects(INPUT) && arrived.readable != 0,
            output_ended: self.has(FLAG_TX_SHUT),
            news: News { arrivals, room: 0, changes: 0 },
            ..ReadinessSnapshot::default()
        };
        let full_sends = self.dirs.shared.0.full_sends.load(Ordering::Relaxed);
        Some(EpollState { now, full_sends, mark: arrived.mark, ..EpollState::default() })
    }

    /// Whether an end of the stream may still be on its way from another host, although TCP has
    /// ended.
    fn is_end_pending(&self) -> bool {
        let is_remote = |path: &&Path| path.is_remote() && !path.has_eof();
        self.path().filter(is_remote).is_some() && !self.has(FLAG_BROKEN)
    }

    /// Whether the next byte comes from the ring.
    fn is_receiving_on_ring(&self) -> bool {
        let _section = Section::enter();
        self.dirs.rx.0.lock().switch.is_on_ring()
    }

    /// Bytes that have arrived on the ring so far, which wraps.
    fn ring_arrivals(&self) -> u32 {
        let _section = Section::enter();
        let rx = self.dirs.rx.0.lock();
        let unread = self.path().map_or(0, Path::bytes_readable) as u64;
        #[expect(clippy::cast_possible_truncation, reason = "the count wraps")]
        let arrived = rx.switch.ring_bytes().wrapping_add(unread) as u32;
        arrived
    }
}

/// The events that `poll(2)` has too.
fn poll_flags(events: Events) -> PollFlags {
    let known = INPUT | OUTPUT | PollFlags::PRI | PollFlags::RDHUP;
    PollFlags::from_bits_truncate(u16::try_from(events.bits() & 0xffff).unwrap_or(0)) & known
}
