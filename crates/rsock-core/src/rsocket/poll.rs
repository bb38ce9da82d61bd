//! `poll` over sockets of the pure mode and ordinary descriptors alike.
//!
//! Streams are looked at in memory. Only when nothing is ready does the caller sleep, on its own
//! doorbell, which every stream of the set rings, and on the descriptors: those of listeners and
//! connects, the streams' anchors, and the program's own.

use crate::datagram::{self, Datagram, PollUdp};
use crate::engine::Interest;
use crate::interrupt::Watch;
use crate::rsocket::any_device::{ArmedOn, Bells, Established};
use crate::rsocket::socket::Socket;
use crate::sys;
use rustix::event::PollFlags;
use std::io;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// What an entry of [`poll`] is about.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A socket of the pure mode.
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
    /// Events asked for.
    pub events: PollFlags,
    /// Events found.
    pub revents: PollFlags,
}

/// A thread that drives a connect takes the messages that another one polls for, so nobody sleeps
/// longer than this on one.
const SHARED_CONNECT: Duration = Duration::from_millis(20);

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
    // COMPAT: C subtracts the time since the first turn again in every turn.
    let deadline = match timeout {
        Some(Duration::ZERO) => None,
        Some(t) => sys::now().checked_add(t),
        None => None,
    };
    let has_fds = entries.iter().any(|e| match e.source {
        Source::Fd(fd) => fd >= 0,
        // Has one besides its memory.
        Source::Datagram(_) => true,
        Source::Socket(_) => false,
    });
    loop {
        let marks = marks(entries);
        // PERF: streams that are ready cost no system call. Who does not wait must still learn of
        // a hang-up; who does learns it from the sleep.
        let mut n = if has_fds { 0 } else { look_at_sockets(entries) };
        if n == 0 && (has_fds || timeout == Some(Duration::ZERO) && is_look_due(entries)) {
            n = look_at_all(entries)?;
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
            // One last look, whatever woke us.
            return look_at_all(entries);
        }
    }
}

/// The streams' marks, taken before they are looked at.
fn marks(entries: &[PollEntry<'_>]) -> Vec<u32> {
    let mark = |e: &PollEntry<'_>| match e.source {
        Source::Socket(s) => s.established().map_or(0, |e| e.mark()),
        Source::Datagram(_) | Source::Fd(_) => 0,
    };
    entries.iter().map(mark).collect()
}

/// Whether it is time for system calls, for a program that polls in a loop without waiting.
fn is_look_due(entries: &[PollEntry<'_>]) -> bool {
    // Each of them keeps its own time, so all are asked.
    let due = entries.iter().filter(|entry| match entry.source {
        Source::Socket(s) => s.established().is_none_or(Established::is_look_due),
        Source::Datagram(_) | Source::Fd(_) => false,
    });
    due.count() != 0
}

/// Fills in what sockets of ours know by themselves.
fn look_at_sockets(entries: &mut [PollEntry<'_>]) -> usize {
    for entry in entries.iter_mut() {
        entry.revents = match entry.source {
            Source::Socket(socket) => socket.readiness(entry.events),
            Source::Datagram(socket) => socket.readiness(entry.events, PollUdp::Never),
            Source::Fd(_) => PollFlags::empty(),
        };
    }
    entries.iter().filter(|e| !e.revents.is_empty()).count()
}

/// Fills in what holds now, hang-ups and ordinary descriptors included.
fn look_at_all(entries: &mut [PollEntry<'_>]) -> io::Result<usize> {
    let mut fds: Vec<_> = entries
        .iter()
        .map(|entry| match entry.source {
            Source::Fd(fd) => raw(fd, entry.events),
            Source::Datagram(_) => raw(-1, entry.events),
            Source::Socket(s) => {
                s.established().map_or(raw(-1, entry.events), |e| e.anchor_entry())
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
                if let Some(established) = socket.established() {
                    established.note_anchor(fd.revents);
                }
                socket.readiness(entry.events)
            }
        };
    }
    Ok(entries.iter().filter(|e| !e.revents.is_empty()).count())
}

/// Spins where that is likely to pay: for the one stream of a set.
fn spin(entries: &[PollEntry<'_>], marks: &[u32]) -> bool {
    let [entry] = entries else { return false };
    let socket = match entry.source {
        Source::Socket(socket) => socket,
        Source::Datagram(socket) => return entry.events.contains(PollFlags::IN) && socket.spin(),
        Source::Fd(_) => return false,
    };
    let Some(established) = socket.established() else { return false };
    let interest =
        if entry.events.contains(PollFlags::IN) { Interest::Read } else { Interest::Write };
    established.spin(interest, marks[0])
}

/// Sleeps, with a bell armed for the datagram sockets of the set.
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
            Source::Datagram(socket) if entry.events.contains(PollFlags::IN) => Some(socket),
            _ => None,
        })
        .collect();
    if datagrams.is_empty() {
        return sleep_beside(entries, marks, left, sigmask, watch, &[]);
    }
    datagram::armed(&datagrams, |bells, limit| {
        if datagrams
            .iter()
            .any(|socket| !socket.readiness(PollFlags::IN, PollUdp::Never).is_empty())
        {
            return Ok(());
        }
        let left = [left, limit].into_iter().flatten().min();
        sleep_beside(entries, marks, left, sigmask, watch, bells)
    })
}

fn sleep_beside(
    entries: &[PollEntry<'_>],
    marks: &[u32],
    left: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
    watch: Watch,
    bells: &[libc::pollfd],
) -> io::Result<()> {
    let streams = entries.iter().zip(marks).filter_map(|(e, mark)| match e.source {
        Source::Socket(s) => s.established().map(|e| (e, *mark)),
        Source::Datagram(_) | Source::Fd(_) => None,
    });
    let mut fds = Vec::with_capacity(entries.len() + 2);
    fds.extend_from_slice(bells);
    let mut anchors = Vec::new();
    let mut until: Option<Instant> = None;
    let mut is_opening = false;
    for entry in entries {
        match entry.source {
            Source::Fd(fd) => fds.push(raw(fd, entry.events)),
            Source::Datagram(socket) => {
                if entry.events.contains(PollFlags::IN) {
                    let limit = socket.poll_entries(&mut fds);
                    until = [until, limit].into_iter().flatten().min();
                }
            }
            Source::Socket(socket) => match socket.established() {
                Some(established) => {
                    anchors.push((fds.len(), established));
                    fds.push(established.anchor_entry());
                }
                None => {
                    let (entries, limit) = socket.poll_entries();
                    fds.extend(entries);
                    until = [until, limit].into_iter().flatten().min();
                    is_opening |= socket.is_opening();
                }
            },
        }
    }
    let limits = [left, until.map(|u| u.saturating_duration_since(sys::now()))];
    let shared = is_opening.then_some(SHARED_CONNECT);
    let limit = limits.into_iter().chain([shared]).flatten().min();
    Bells::with(streams.clone().map(|(established, _)| established), |bells| {
        let mut armed = Vec::new();
        for (established, mark) in streams {
            match bells.arm(established, mark) {
                Some(arm) => armed.push(arm),
                None => return Ok(()),
            }
        }
        let bound = armed.iter().filter_map(ArmedOn::bound).min();
        let limit = [limit, bound].into_iter().flatten().min();
        let n_fds = fds.len();
        fds.extend(bells.poll_entries());
        let result = doze(&mut fds, limit, sigmask, watch);
        drop(armed);
        for (at, established) in anchors {
            established.note_anchor(fds[at].revents);
        }
        if fds[n_fds..].iter().any(|fd| fd.revents != 0) {
            bells.drain();
        }
        result
    })
}

fn doze(
    fds: &mut [libc::pollfd],
    limit: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
    watch: Watch,
) -> io::Result<()> {
    // `poll(2)` is never restarted, whatever the handler asked for.
    sys::sleep(fds, limit, sigmask, watch).map(|_| ())
}

fn raw(fd: RawFd, events: PollFlags) -> libc::pollfd {
    libc::pollfd { fd, events: sys::poll_bits(events), revents: 0 }
}
