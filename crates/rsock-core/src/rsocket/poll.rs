//! `poll` over rsockets, datagram sockets and ordinary descriptors together.
//!
//! Streams are checked in memory. Only when nothing is ready does the caller sleep: on its thread's
//! doorbells, which every stream of the set rings, and on descriptors, which are those of listeners
//! and connects, the hang-up descriptors of streams, and the program's own.

use crate::datagram::{self, Datagram, PollUdp};
use crate::engine::Interest;
use crate::interrupt::Watch;
use crate::rsocket::any_device::{AnyArmed, AnyConnection, ThreadBells};
use crate::rsocket::pending_connect::CONNECT_SLEEP;
use crate::rsocket::socket::Socket;
use crate::sys::{self, INPUT, OUTPUT};
use rustix::event::PollFlags;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// What an entry of [`poll`] watches.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A stream socket of the rsockets API.
    Socket(&'a Socket),
    /// A datagram socket.
    Datagram(&'a Datagram),
    /// An ordinary descriptor; a negative one is skipped, as by `poll(2)`.
    Fd(RawFd),
}

/// One entry of [`poll`].
#[derive(Clone, Copy, Debug)]
pub struct PollEntry<'a> {
    /// What to watch.
    pub source: Source<'a>,
    /// The events to wait for.
    pub events: PollFlags,
    /// The events found, with `POLLERR` and `POLLHUP`.
    pub revents: PollFlags,
}

/// As `ppoll(2)`: waits until an entry has an event, for `timeout` at most (`None`: without end),
/// with `sigmask` in force while it sleeps. Returns how many entries have events.
///
/// # Errors
/// `EINTR`, `EINVAL`, `ENOMEM`, as `ppoll(2)`.
pub fn poll(
    entries: &mut [PollEntry<'_>],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    let watch = Watch::begin();
    // COMPAT: C rsockets subtracts the time since the first round again in every round.
    let deadline = match timeout {
        Some(Duration::ZERO) => None,
        Some(t) => sys::now().checked_add(t),
        None => None,
    };
    let has_fds = entries.iter().any(|e| match e.source {
        Source::Fd(fd) => fd >= 0,
        // A datagram socket has a UDP socket besides its memory.
        Source::Datagram(_) => true,
        Source::Socket(_) => false,
    });
    loop {
        let marks = marks(entries);
        // PERF: streams that are ready cost no system call. A call that does not wait must check
        // for hang-ups now and then; a call that waits learns of them in its sleep.
        let mut n = if has_fds { 0 } else { check_sockets(entries) };
        if n == 0 && (has_fds || timeout == Some(Duration::ZERO) && is_check_due(entries)) {
            n = check_all(entries)?;
        }
        if n > 0 || timeout == Some(Duration::ZERO) {
            return Ok(n);
        }
        if spin(entries, &marks) {
            continue;
        }
        let left = sys::time_left(deadline);
        sleep(entries, &marks, left, sigmask, watch)?;
        if left.is_some_and(|left| left.is_zero()) {
            // The time is over: one last check.
            return check_all(entries);
        }
    }
}

/// The marks of the streams, to take before they are checked.
fn marks(entries: &[PollEntry<'_>]) -> Vec<u32> {
    let mark = |e: &PollEntry<'_>| match e.source {
        Source::Socket(s) => s.connection().map_or(0, |e| e.mark()),
        Source::Datagram(_) | Source::Fd(_) => 0,
    };
    entries.iter().map(mark).collect()
}

/// Whether a program that polls in a loop without waiting should make system calls now.
fn is_check_due(entries: &[PollEntry<'_>]) -> bool {
    // Each stream keeps its own time, so all must be asked.
    let due = entries.iter().filter(|entry| match entry.source {
        Source::Socket(s) => s.connection().is_none_or(AnyConnection::is_check_due),
        Source::Datagram(_) | Source::Fd(_) => false,
    });
    due.count() != 0
}

/// Fills in the events of rsockets and datagram sockets, without descriptors.
fn check_sockets(entries: &mut [PollEntry<'_>]) -> usize {
    for entry in entries.iter_mut() {
        entry.revents = match entry.source {
            Source::Socket(socket) => socket.readiness(entry.events),
            Source::Datagram(socket) => socket.readiness(entry.events, PollUdp::Never),
            Source::Fd(_) => PollFlags::empty(),
        };
    }
    entries.iter().filter(|e| !e.revents.is_empty()).count()
}

/// Fills in all events, with hang-ups and ordinary descriptors.
fn check_all(entries: &mut [PollEntry<'_>]) -> io::Result<usize> {
    let mut fds: Vec<_> = entries
        .iter()
        .map(|entry| match entry.source {
            Source::Fd(fd) => raw(fd, entry.events),
            Source::Datagram(_) => raw(-1, entry.events),
            Source::Socket(s) => {
                s.connection().map_or(raw(-1, entry.events), |e| e.hang_up_entry())
            }
        })
        .collect();
    if fds.iter().any(|fd| fd.fd >= 0) {
        sys::ppoll(&mut fds, Some(Duration::ZERO), None)?;
    }
    for (entry, fd) in entries.iter_mut().zip(&fds) {
        entry.revents = match entry.source {
            Source::Fd(_) => sys::poll_flags(fd.revents),
            Source::Datagram(socket) => socket.readiness(entry.events, PollUdp::IfNeeded),
            Source::Socket(socket) => {
                if let Some(connection) = socket.connection() {
                    connection.note_hang_up(fd.revents);
                }
                socket.readiness(entry.events)
            }
        };
    }
    Ok(entries.iter().filter(|e| !e.revents.is_empty()).count())
}

/// Spins if the set has one entry, where spinning is likely to pay. True if something changed.
fn spin(entries: &[PollEntry<'_>], marks: &[u32]) -> bool {
    let [entry] = entries else { return false };
    let socket = match entry.source {
        Source::Socket(socket) => socket,
        Source::Datagram(socket) => return entry.events.intersects(INPUT) && socket.spin(),
        Source::Fd(_) => return false,
    };
    let Some(connection) = socket.connection() else { return false };
    let interest = if entry.events.intersects(INPUT) { Interest::Read } else { Interest::Write };
    connection.spin(interest, marks[0])
}

/// Sleeps, with a doorbell armed for the datagram sockets of the set.
fn sleep(
    entries: &[PollEntry<'_>],
    marks: &[u32],
    left: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
    watch: Watch,
) -> io::Result<()> {
    let datagrams: Vec<_> = entries
        .iter()
        .filter_map(|entry| match entry.source {
            Source::Datagram(socket) if entry.events.intersects(INPUT) => Some(socket),
            _ => None,
        })
        .collect();
    if datagrams.is_empty() {
        return sleep_on_streams(entries, marks, left, sigmask, watch, &[]);
    }
    datagram::armed(&datagrams, |bells, limit| {
        if datagrams
            .iter()
            .any(|socket| !socket.readiness(PollFlags::IN, PollUdp::Never).is_empty())
        {
            return Ok(());
        }
        let left = [left, limit].into_iter().flatten().min();
        sleep_on_streams(entries, marks, left, sigmask, watch, bells)
    })
}

/// Sleeps, with doorbells armed for the streams of the set; `bells` are those of datagram sockets.
fn sleep_on_streams(
    entries: &[PollEntry<'_>],
    marks: &[u32],
    left: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
    watch: Watch,
    bells: &[libc::pollfd],
) -> io::Result<()> {
    let streams = entries.iter().zip(marks).filter_map(|(e, mark)| match e.source {
        Source::Socket(s) => s.connection().map(|e| (e, *mark)),
        Source::Datagram(_) | Source::Fd(_) => None,
    });
    let mut fds = Vec::with_capacity(entries.len() + 2);
    fds.extend_from_slice(bells);
    let mut hang_ups = Vec::new();
    let mut until: Option<Instant> = None;
    let mut is_connecting = false;
    for entry in entries {
        match entry.source {
            Source::Fd(fd) => fds.push(raw(fd, entry.events)),
            Source::Datagram(socket) => {
                if entry.events.intersects(INPUT) {
                    let limit = socket.poll_entries(&mut fds);
                    until = [until, limit].into_iter().flatten().min();
                }
                if entry.events.intersects(OUTPUT) {
                    let limit = socket.room_poll_entry(&mut fds);
                    until = [until, limit].into_iter().flatten().min();
                }
            }
            Source::Socket(socket) => match socket.connection() {
                Some(connection) => {
                    hang_ups.push((fds.len(), connection));
                    fds.push(connection.hang_up_entry());
                }
                None => {
                    let (entries, limit) = socket.poll_entries();
                    fds.extend(entries);
                    until = [until, limit].into_iter().flatten().min();
                    is_connecting |= socket.is_connecting();
                }
            },
        }
    }
    let limits = [left, until.map(|u| u.saturating_duration_since(sys::now()))];
    let shared = is_connecting.then_some(CONNECT_SLEEP);
    let limit = limits.into_iter().chain([shared]).flatten().min();
    ThreadBells::with(streams.clone().map(|(connection, _)| connection), |bells| {
        let mut armed = Vec::new();
        for (connection, mark) in streams {
            match bells.arm(connection, mark) {
                Some(arm) => armed.push(arm),
                None => return Ok(()),
            }
        }
        let bound = armed.iter().filter_map(AnyArmed::bound).min();
        let limit = [limit, bound].into_iter().flatten().min();
        let n_fds = fds.len();
        fds.extend(bells.poll_entries());
        // `poll(2)` is never restarted after a signal, whatever `SA_RESTART` says.
        let result = sys::sleep(&mut fds, limit, sigmask, watch).map(|_| ());
        drop(armed);
        for (at, connection) in hang_ups {
            connection.note_hang_up(fds[at].revents);
        }
        if fds[n_fds..].iter().any(|fd| fd.revents != 0) {
            bells.drain();
        }
        result
    })
}

fn raw(fd: RawFd, events: PollFlags) -> libc::pollfd {
    libc::pollfd { fd, events: sys::poll_bits(events), revents: 0 }
}
