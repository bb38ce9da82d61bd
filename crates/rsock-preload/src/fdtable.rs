//! The descriptor table: what this library knows of each descriptor number of the process.
//!
//! An atomic word in the row of each number ([`rows`]); looking one up takes no lock and writes
//! nothing that another direction or descriptor reads. Every hook that makes or closes a descriptor
//! keeps the table up to date. A number can also be closed and reused by a system call that no hook
//! sees; the socket's inode tells, and is compared where a call fails unexpectedly or changes the
//! entry.
//!
//! A connection starts as a *candidate*: nothing is allocated for it while the kernel alone makes
//! its first calls.

mod adopt;
mod claim;
mod closed;
pub(crate) mod datagrams;
mod first_calls;
mod opened;
mod pin;
mod process_events;
mod replacement;
mod word;

pub(crate) use closed::{note_closing, note_disconnected, note_made, was_reused};
pub(crate) use first_calls::{
    recv_bytes_first, recv_first, send_bytes_first, send_first, sendfile_first,
};
pub(crate) use opened::{
    note_accepted, note_connected, note_connecting, note_duplicate, note_listening,
    note_stream_made,
};
pub(crate) use pin::{follow_keepalive, note_meant, pin};
pub(crate) use process_events::{
    after_fork_in_child, finish, forget, note_unnoted_child, prepare_fork,
};
pub(crate) use replacement::claim as claim_entries;

use crate::slot::{self, Direction, Handle, Key};
use crate::{cancel, guard, rows, tcp_only};
use adopt::adopt_or_find;
use libc::c_int;
use rustix::fd::BorrowedFd;
use rustix::io::{FdFlags, fcntl_getfd};
use std::sync::atomic::{AtomicU64, Ordering};
use word::{ADOPTED, ADOPTING, CANDIDATE, CONNECTING, EMPTY, KIND, LISTENING, Word};

/// The last of standard input, output and error.
pub(crate) const LAST_STANDARD: c_int = 2;

#[inline]
fn entry(fd: c_int) -> Option<&'static AtomicU64> {
    rows::row(fd).map(|row| &row.socket)
}

fn entry_or_map(fd: c_int) -> Option<&'static AtomicU64> {
    if tcp_only::is_sandboxed() {
        // A sandboxed process adds no entries, and mapping memory may not be allowed.
        return None;
    }
    rows::row_or_map(fd).map(|row| &row.socket)
}

/// Begins a data call on the stream of `fd` in the given direction, and adopts a candidate. `None`:
/// the call is the kernel's.
#[inline]
pub(crate) fn begin_call(fd: c_int, direction: Direction) -> Option<Handle> {
    match begin_adopted(fd, direction) {
        Begun::Stream(handle) => Some(handle),
        Begun::Kernel => None,
        Begun::Other => begin_other(fd, direction),
    }
}

/// As [`begin_call`], after [`begin_adopted`] has found [`Begun::Other`].
#[inline(never)]
pub(crate) fn begin_other(fd: c_int, direction: Direction) -> Option<Handle> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    if word.kind() == EMPTY || word.is_datagram() {
        return None;
    }
    let handle = adopt_or_find(fd, entry, direction)?;
    is_for_library(&handle).then_some(handle)
}

/// How a data call begins whose descriptor is looked up once.
pub(crate) enum Begun {
    /// On a stream that has been adopted and is not on TCP for good.
    Stream(Handle),
    /// It is the kernel's: the stream is on TCP for good, or the library itself makes the call.
    Kernel,
    /// The descriptor is none that has been adopted as a stream, or it changes at this moment.
    Other,
}

/// Begins a data call on the stream of `fd`, if it has been adopted. The short way of most calls:
/// of the others, [`begin_call`] knows more.
#[inline(always)]
pub(crate) fn begin_adopted(fd: c_int, direction: Direction) -> Begun {
    let Some(entry) = entry(fd) else { return Begun::Other };
    let word = Word(entry.load(Ordering::Acquire));
    let Some(key) = word.key().filter(|_| !word.is_datagram()) else { return Begun::Other };
    let Some(handle) = slot::begin_call(key, direction, fd) else { return Begun::Other };
    if !is_unchanged(entry, word) {
        end_call(handle);
        return Begun::Other;
    }
    if is_for_library(&handle) {
        return Begun::Stream(handle);
    }
    end_call(handle);
    Begun::Kernel
}

/// Ends a call of a thread that may be cancelled. To end a socket, as the last call does after the
/// last descriptor was closed, takes system calls.
#[inline(always)]
pub(crate) fn end_call(handle: Handle) {
    if let Some(last) = handle.leave() {
        cancel::hold(|| last.end_socket());
    }
}

/// Whether a data call on the stream is not the kernel's.
#[inline(always)]
fn is_for_library(handle: &Handle) -> bool {
    !handle.stays_on_tcp() && !guard::is_in_core()
}

/// Begins a call on the stream of `fd`, on TCP or not, if it has been adopted.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn find(fd: c_int, direction: Direction) -> Option<Handle> {
    if guard::is_in_core() { None } else { find_in_core(fd, direction) }
}

/// As [`find`], for callers that are in the core.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn find_in_core(fd: c_int, direction: Direction) -> Option<Handle> {
    let entry = entry(fd)?;
    loop {
        let word = Word(entry.load(Ordering::Acquire));
        if word.is_datagram() {
            return None;
        }
        let handle = slot::begin_call(word.key()?, direction, fd);
        if is_unchanged(entry, word) {
            return handle;
        }
    }
}

/// Begins a call on the UDP socket of `fd`, pinned or not, if it has been adopted.
pub(crate) fn find_udp(fd: c_int, direction: Direction) -> Option<Handle> {
    let word = Word(entry(fd)?.load(Ordering::Acquire));
    if !word.is_datagram() || guard::is_in_core() {
        return None;
    }
    slot::begin_call(word.key()?, direction, fd)
}

/// Whether `entry` still is what `word` was before the caller entered the slot. If so, a thread
/// that closes the number from now on finds the caller inside, and lets it keep the socket.
#[inline]
fn is_unchanged(entry: &AtomicU64, word: Word) -> bool {
    // SYNC(gate): see `slot::Gate::enter`.
    Word(entry.load(Ordering::SeqCst)) == word
}

/// The key of the stream or UDP socket that `fd` refers to now, if any. For calls of several steps.
pub(crate) fn key(fd: c_int) -> Option<Key> {
    Word(entry(fd)?.load(Ordering::Acquire)).key()
}

/// The word of the table's entries for the stream of `handle`.
pub(crate) fn word_of(handle: &Handle) -> u64 {
    Word::of_slot(handle.key()).0
}

/// Another descriptor of the stream that `fd` refers to.
pub(crate) fn other_number(fd: c_int) -> Option<c_int> {
    other_numbers(fd).next()
}

/// All other descriptors of the stream that `fd` refers to.
pub(crate) fn other_numbers(fd: c_int) -> impl Iterator<Item = c_int> {
    let wanted = key(fd);
    let last = if wanted.is_some() { u32::MAX } else { 0 };
    known_fds(0, last)
        .filter(move |&other| other != fd && key(other).is_some_and(|k| Some(k) == wanted))
}

/// Numbers in `first..=last` that have an entry.
pub(crate) fn known_fds(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = u32::try_from(rows::end()).unwrap_or(u32::MAX);
    (first..=last.min(end.saturating_sub(1)))
        .take_while(move |_| end != 0)
        .filter_map(|n| c_int::try_from(n).ok())
        .filter(|&fd| entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) != 0))
}

/// Every stream that is not on TCP for good, once each, by the lowest number in the table.
pub(crate) fn accelerated_streams() -> Vec<Handle> {
    let mut found: Vec<Handle> = Vec::new();
    for fd in known_fds(0, u32::MAX) {
        if is_stream(fd)
            && let Some(handle) = find(fd, Direction::Recv)
            && !handle.stream().is_plain()
        {
            found.push(handle);
        }
    }
    // Stable, so the lowest number of a stream stays its first.
    found.sort_by_key(|handle| handle.key().index);
    found.dedup_by(|next, kept| next.is_same_stream(kept));
    found
}

/// Whether the table has an entry for `fd`: a socket, or a reason not to adopt it.
pub(crate) fn is_known(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) != 0)
}

/// Whether `fd` has been adopted as a stream, or is being adopted.
#[inline]
pub(crate) fn is_stream(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| {
        let word = Word(e.load(Ordering::Relaxed));
        matches!(word.kind(), ADOPTED | ADOPTING) && !word.is_datagram()
    })
}

/// Whether an `exec` closes `fd`; `None` if it is not open.
pub(crate) fn closes_on_exec(fd: c_int) -> Option<bool> {
    if fd < 0 {
        return None;
    }
    // SAFETY: not negative; only asked about, and nothing follows if it is not open.
    let flags = fcntl_getfd(unsafe { BorrowedFd::borrow_raw(fd) }).ok()?;
    Some(flags.contains(FdFlags::CLOEXEC))
}

/// Whether `fd` is a stream or a candidate.
#[inline]
pub(crate) fn is_connection(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| {
        let word = Word(e.load(Ordering::Relaxed));
        word.kind() != EMPTY && !word.is_datagram()
    })
}

/// Whether `fd` is a connection that has not been adopted.
#[inline]
pub(crate) fn is_candidate(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| {
        // SYNC(kernel watch): SeqCst, see `watched::hold_if_member`.
        let word = Word(e.load(Ordering::SeqCst));
        word.kind() == CANDIDATE && !word.is_datagram()
    })
}

/// Whether `fd` is a connection whose `connect` may not have ended, and that has not been adopted.
pub(crate) fn is_connecting(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| {
        let word = Word(e.load(Ordering::Acquire));
        word.kind() == CANDIDATE && !word.is_datagram() && word.0 & CONNECTING != 0
    })
}

/// Waits until no thread is adopting `fd`.
pub(crate) fn await_adoption(fd: c_int) {
    let is_being_adopted = |e: &AtomicU64| Word(e.load(Ordering::Acquire)).kind() == ADOPTING;
    while entry(fd).is_some_and(is_being_adopted) {
        rustix::thread::sched_yield();
    }
}

/// Whether `fd` is a stream without TCP: bytes that are written to its descriptor by the kernel are
/// lost.
pub(crate) fn has_no_tcp(fd: c_int) -> bool {
    is_stream(fd) && find(fd, Direction::Send).is_some_and(|handle| handle.stream().is_native())
}

/// Whether `fd` is a listening socket that may have a native listener.
#[inline]
pub(crate) fn is_listening(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) & (KIND | LISTENING) == LISTENING)
}

/// Every descriptor for which [`is_listening`] holds.
pub(crate) fn listening() -> impl Iterator<Item = c_int> {
    known_fds(0, u32::MAX).filter(|&fd| is_listening(fd))
}

/// Whether waiting for `fd` may take more than the kernel's `poll`.
#[inline]
pub(crate) fn needs_own_poll(fd: c_int) -> bool {
    is_stream(fd) || is_listening(fd) || datagrams::is_udp(fd)
}
