//! The descriptor table: what this library knows of each descriptor number of the process.
//!
//! A flat array of atomic words, one for each number; looking one up takes no lock and writes
//! nothing that another direction or descriptor reads. Every hook that makes or closes a
//! descriptor keeps it up to date. Numbers that are reused behind our back are noticed by the
//! socket's inode, which is compared where a call has unexpected luck or changes the entry.
//!
//! A connection starts as a *candidate*: nothing is allocated for it before its first data call.

mod adopt;
mod claim;
mod closed;
pub(crate) mod datagrams;
mod opened;
mod pin;
mod process_events;
mod replacement;
mod word;

pub(crate) use closed::{note_closing, note_disconnected, was_reused};
pub(crate) use opened::{
    note_accepted, note_duplicate, note_listening, note_made, note_stream, note_stream_made,
};
pub(crate) use pin::{follow_keepalive, pin};
pub(crate) use process_events::{after_fork_in_child, finish, forget, prepare_fork};
pub(crate) use replacement::claim as claim_entries;

use crate::chunked::Chunked;
use crate::slot::{self, Direction, Handle, Key};
use crate::{guard, tcp_only};
use adopt::adopt_or_find;
use libc::c_int;
use std::sync::atomic::{AtomicU64, Ordering};
use word::{ADOPTED, ADOPTING, EMPTY, KIND, LISTENING, Word};

const PER_CHUNK: usize = 512;

/// Together the kernel's default for the largest descriptor number. Higher ones stay on TCP.
const CHUNKS: usize = 2048;

/// As many descriptors as the table has room for.
pub(crate) const MOST: usize = PER_CHUNK * CHUNKS;

static TABLE: Chunked<AtomicU64, PER_CHUNK, CHUNKS> = Chunked::new();

fn entry(fd: c_int) -> Option<&'static AtomicU64> {
    TABLE.get(usize::try_from(fd).ok()?)
}

fn entry_or_map(fd: c_int) -> Option<&'static AtomicU64> {
    if tcp_only::is_sandboxed() {
        // Nothing new is noted, and mapping memory may not be allowed.
        return None;
    }
    TABLE.get_or_map(usize::try_from(fd).ok()?)
}

/// The stream behind `fd` for a data call in the given direction. `None`: the kernel's business.
#[inline]
pub(crate) fn begin_call(fd: c_int, direction: Direction) -> Option<Handle> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    if word.kind() == EMPTY || word.is_datagram() {
        return None;
    }
    let handle = match word.key() {
        Some(key) => slot::begin_call(key, direction, fd),
        None => None,
    };
    let handle = match handle {
        Some(handle) if is_unchanged(entry, word) => handle,
        _ => adopt_or_find(fd, entry, direction)?,
    };
    (!handle.stays_on_tcp() && !guard::is_in_core()).then_some(handle)
}

/// The stream behind `fd`, plain or not, if it is one already.
pub(crate) fn find(fd: c_int, direction: Direction) -> Option<Handle> {
    let entry = entry(fd)?;
    loop {
        let word = Word(entry.load(Ordering::Acquire));
        if word.is_datagram() {
            return None;
        }
        let handle = slot::begin_call(word.key()?, direction, fd);
        if is_unchanged(entry, word) {
            return handle.filter(|_| !guard::is_in_core());
        }
    }
}

/// Whether the number still means what `word` said before the caller went into the slot. If so, a thread that
/// closes the number from now on finds the caller inside, and lets it keep the socket.
#[inline]
fn is_unchanged(entry: &AtomicU64, word: Word) -> bool {
    // SYNC(gate): see `slot::Gate::enter`.
    Word(entry.load(Ordering::SeqCst)) == word
}

/// Which stream or UDP socket `fd` names now, if any. For calls of several steps.
pub(crate) fn key(fd: c_int) -> Option<Key> {
    Word(entry(fd)?.load(Ordering::Acquire)).key()
}

/// Numbers from here on have never been looked after.
pub(crate) fn end() -> usize {
    TABLE.end()
}

/// Numbers in `first..=last` that the table knows something of, for a call that closes a range.
pub(crate) fn known_fds(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = u32::try_from(TABLE.end()).unwrap_or(u32::MAX);
    (first..=last.min(end.saturating_sub(1)))
        .take_while(move |_| end != 0)
        .filter_map(|n| c_int::try_from(n).ok())
        .filter(|&fd| entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) != 0))
}

/// Every stream that the kernel alone cannot go on with, once, by the lowest number the table has.
pub(crate) fn accelerated_streams() -> Vec<Handle> {
    let mut found: Vec<Handle> = Vec::new();
    for fd in known_fds(0, u32::MAX) {
        if is_stream(fd)
            && let Some(handle) = find(fd, Direction::Recv)
            && !handle.stream().is_plain()
            && !found.iter().any(|known| known.is_same_stream(&handle))
        {
            found.push(handle);
        }
    }
    found
}

/// Whether `fd` is a stream, or has reasons not to become one.
pub(crate) fn is_known(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) != 0)
}

/// Whether `fd` has become a twin, or will have in a moment.
#[inline]
pub(crate) fn is_stream(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| {
        let word = Word(e.load(Ordering::Relaxed));
        matches!(word.kind(), ADOPTED | ADOPTING) && !word.is_datagram()
    })
}

/// Whether `fd` is a stream, or may become one.
pub(crate) fn is_connection(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| {
        let word = Word(e.load(Ordering::Relaxed));
        word.kind() != EMPTY && !word.is_datagram()
    })
}

/// Whether `fd` is a stream without TCP, which the kernel's socket would lose the bytes of.
pub(crate) fn has_no_tcp(fd: c_int) -> bool {
    is_stream(fd) && find(fd, Direction::Send).is_some_and(|handle| handle.stream().is_sole())
}

/// Whether `fd` is a listening socket that may have a door.
#[inline]
pub(crate) fn is_listening(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) & (KIND | LISTENING) == LISTENING)
}

/// Every descriptor that [`is_listening`].
pub(crate) fn listening() -> impl Iterator<Item = c_int> {
    known_fds(0, u32::MAX).filter(|&fd| is_listening(fd))
}

/// Whether waiting for `fd` may take more than the kernel.
#[inline]
pub(crate) fn needs_own_poll(fd: c_int) -> bool {
    is_stream(fd) || is_listening(fd) || datagrams::is_udp(fd)
}
