//! The descriptor table: what this library knows of each descriptor number of the process.
//!
//! A flat array of atomic words, one for each number; looking one up takes no lock and writes
//! nothing that another direction or descriptor reads. Every hook that makes or closes a
//! descriptor keeps it up to date. Numbers that are reused behind our back are noticed by the
//! socket's inode, which is compared where a call has unexpected luck or changes the entry.
//!
//! A connection starts as a *candidate*: nothing is allocated for it before its first data call.

mod claim;
pub(crate) mod datagrams;

use crate::chunked::Chunked;
use crate::doors;
use crate::guard;
use crate::log;
use crate::process;
use crate::slot::{self, Handle, Held, Key, Side};
use crate::tcp_only;
use libc::c_int;
use rsock_core::accelerate::{self, AcceleratedStream, FallbackReason};
use rsock_core::interrupt::{self, Section};
use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

const PER_CHUNK: usize = 512;
/// Together the kernel's default for the largest descriptor number. Higher ones stay on TCP.
const CHUNKS: usize = 2048;

/// As many descriptors as the table has room for.
pub(crate) const MOST: usize = PER_CHUNK * CHUNKS;

static TABLE: Chunked<AtomicU64, PER_CHUNK, CHUNKS> = Chunked::new();

/// A table word.
///
/// Bits 1:0 are the kind. A twin has its slot in bits 31:8 and the slot's generation above; all
/// others have flags in bits 3:2 and the reason to stay on TCP in bits 11:4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Word(u64);

const KIND: u64 = 3;
/// Nothing of ours, but perhaps a reason not to become so.
const EMPTY: u64 = 0;
/// A stream that has not carried data through us yet.
const CANDIDATE: u64 = 1;
/// A candidate that some thread is turning into a twin.
const ADOPTING: u64 = 2;
const TWIN: u64 = 3;
/// A candidate whose connection was still being made.
const CONNECTING: u64 = 1 << 2;
/// A candidate that came out of `accept`.
const ACCEPTED: u64 = 1 << 3;
/// Nothing of ours, but a listening socket that may have a door ([`crate::doors`]).
const LISTENING: u64 = 1 << 12;
/// Nothing of ours, but a UDP socket that may become so ([`datagrams`]). How often it was used is in the
/// upper half.
const DATAGRAMS: u64 = 1 << 13;
/// Beside [`DATAGRAMS`]: epoll sets may watch it.
const WATCHED: u64 = 1 << 14;
/// Beside [`TWIN`]: a UDP socket.
const DATAGRAM_TWIN: u64 = 1 << 2;

impl Word {
    const NOTHING: Self = Self(0);

    fn kind(self) -> u64 {
        self.0 & KIND
    }

    fn of_twin(key: Key) -> Self {
        Self(TWIN | u64::from(key.index) << 8 | u64::from(key.generation) << 32)
    }

    fn key(self) -> Option<Key> {
        #[expect(clippy::cast_possible_truncation, reason = "24 bits are meant")]
        let index = (self.0 >> 8) as u32 & 0xff_ffff;
        let generation = (self.0 >> 32) as u32;
        (self.kind() == TWIN).then_some(Key { index, generation })
    }

    /// Whether it is a UDP socket, in whatever state.
    fn is_datagram(self) -> bool {
        let twin = self.kind() == TWIN && self.0 & DATAGRAM_TWIN != 0;
        twin || self.kind() != TWIN && self.0 & DATAGRAMS != 0
    }

    fn with_kind(self, kind: u64) -> Self {
        Self(self.0 & !(KIND | CONNECTING) | kind)
    }

    fn with_reason(self, reason: FallbackReason) -> Self {
        Self(self.0 & !(0xff << 4) | u64::from(reason as u8) << 4)
    }

    fn reason(self) -> FallbackReason {
        // Only these are ever stored.
        [
            FallbackReason::Epoll,
            FallbackReason::Fork,
            FallbackReason::Stdio,
            FallbackReason::StandardStream,
            FallbackReason::Option,
            FallbackReason::Passed,
            FallbackReason::IoUring,
            FallbackReason::Sandbox,
            FallbackReason::Aio,
        ]
        .into_iter()
        .find(|&reason| reason as u64 == self.0 >> 4 & 0xff)
        .unwrap_or(FallbackReason::None)
    }
}

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
pub(crate) fn enter(fd: c_int, side: Side) -> Option<Handle> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    if word.kind() == EMPTY || word.is_datagram() {
        return None;
    }
    let handle = match word.key() {
        Some(key) => slot::enter(key, side, fd),
        None => None,
    };
    let handle = match handle {
        Some(handle) if is_unchanged(entry, word) => handle,
        _ => settle(fd, entry, side)?,
    };
    (!handle.is_plain_for_good() && !guard::is_inside()).then_some(handle)
}

/// Numbers from here on have never been looked after.
pub(crate) fn end() -> usize {
    TABLE.end()
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
        matches!(word.kind(), TWIN | ADOPTING) && !word.is_datagram()
    })
}

/// Whether `fd` is a stream, or may become one.
pub(crate) fn is_connection(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| {
        let word = Word(e.load(Ordering::Relaxed));
        word.kind() != EMPTY && !word.is_datagram()
    })
}

/// Whether `fd` is a listening socket that may have a door.
#[inline]
pub(crate) fn is_listening(fd: c_int) -> bool {
    entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) & (KIND | LISTENING) == LISTENING)
}

/// Whether waiting for `fd` may take more than the kernel.
#[inline]
pub(crate) fn is_watched(fd: c_int) -> bool {
    is_stream(fd) || is_listening(fd) || datagrams::is_one(fd)
}

/// `fd` listens, and the configuration wants doors.
pub(crate) fn note_listening(fd: c_int) {
    if let Some(entry) = entry_or_map(fd) {
        let listens = |word| (Word(word).kind() == EMPTY).then_some(word | LISTENING);
        let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, listens);
    }
}

/// Whether `fd` is a stream without TCP, which the kernel's socket would lose the bytes of.
pub(crate) fn is_sole(fd: c_int) -> bool {
    is_stream(fd) && find(fd, Side::Send).is_some_and(|handle| handle.twin().is_sole())
}

/// Every descriptor that [`is_listening`].
pub(crate) fn listening() -> impl Iterator<Item = c_int> {
    known(0, u32::MAX).filter(|&fd| is_listening(fd))
}

/// `fd` has just been made, and is this stream's.
///
/// # Errors
/// `EMFILE`: there are too many streams.
pub(crate) fn note_stream_made(fd: c_int, twin: AcceleratedStream) -> Result<(), c_int> {
    note_made(fd);
    let entry = entry_or_map(fd).ok_or(libc::EMFILE)?;
    let key = slot::insert(Held::Stream(twin)).ok_or(libc::EMFILE)?;
    entry.store(Word::of_twin(key).0, Ordering::Release);
    Ok(())
}

/// The stream behind `fd`, plain or not, if it is one already.
pub(crate) fn find(fd: c_int, side: Side) -> Option<Handle> {
    let entry = entry(fd)?;
    loop {
        let word = Word(entry.load(Ordering::Acquire));
        if word.is_datagram() {
            return None;
        }
        let handle = slot::enter(word.key()?, side, fd);
        if is_unchanged(entry, word) {
            return handle.filter(|_| !guard::is_inside());
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

/// Turns a candidate into a twin, or finds that it cannot be one.
#[cold]
fn settle(fd: c_int, entry: &AtomicU64, side: Side) -> Option<Handle> {
    if guard::is_inside() {
        return None;
    }
    loop {
        let word = Word(entry.load(Ordering::Acquire));
        match word.kind() {
            _ if word.is_datagram() => return None,
            EMPTY => return None,
            TWIN => {
                let handle = slot::enter(word.key()?, side, fd);
                if is_unchanged(entry, word) {
                    // Without one, its last name is being closed.
                    return handle;
                }
            }
            // Another thread is at it. It cannot be this one, below a signal handler: those are
            // kept out of sections.
            ADOPTING => rustix::thread::sched_yield(),
            // Adopting allocates. What the handler moves goes by TCP, as it would before.
            _ if interrupt::is_in_handler() => return None,
            _ if tcp_only::is_on() => {
                replace(entry, word, word.with_kind(EMPTY));
            }
            _ => {
                // SAFETY: not -1; the program's own, as in `Handle::fd`.
                let socket = unsafe { BorrowedFd::borrow_raw(fd) };
                if word.0 & CONNECTING != 0 && rustix::net::getpeername(socket).is_err() {
                    return None;
                }
                let section = Section::enter();
                let claim = word.with_kind(ADOPTING);
                claim::make(
                    entry,
                    word.0,
                    claim.0,
                    || adopt(fd, socket, claim).ok_or(claim.with_kind(EMPTY).0),
                    // The number was closed meanwhile.
                    |made| Word(made).key().into_iter().for_each(slot::retire),
                );
                drop(section);
            }
        }
    }
}

/// Whether `entry` was `old` and is now `new`.
fn replace(entry: &AtomicU64, old: Word, new: Word) -> bool {
    claim::replace(entry, old.0, new.0)
}

/// Makes a twin of the candidate; the word that names it.
fn adopt(fd: c_int, socket: BorrowedFd<'_>, claim: Word) -> Option<u64> {
    let adopted = guard::enter(|| {
        // The family of an accepted socket is not known before this, nor the kind of any.
        if rustix::net::sockopt::socket_protocol(socket)? != Some(rustix::net::ipproto::TCP) {
            return Ok(None);
        }
        let side = if claim.0 & ACCEPTED != 0 {
            accelerate::Side::Accepted
        } else {
            accelerate::Side::Connected
        };
        let Some(twin) = AcceleratedStream::adopt(socket, Some(side)) else { return Ok(None) };
        Ok(slot::insert(Held::Stream(twin)))
    });
    let Ok(Some(key)) = adopted else {
        log::line(format_args!("fd {fd}: not adopted"));
        return None;
    };
    let reason = claim.reason();
    log::line(format_args!("fd {fd}: adopted as {key:?}, {reason:?}"));
    if reason != FallbackReason::None
        && let Some(handle) = slot::enter(key, Side::Send, fd)
    {
        let _ = guard::enter(|| {
            handle.pin(reason);
            Ok(())
        });
    }
    Some(Word::of_twin(key).0)
}

/// A stream socket has connected, or (`connecting`) has begun to.
pub(crate) fn note_stream(fd: c_int, connecting: bool) {
    note_candidate(fd, if connecting { CONNECTING } else { 0 });
}

fn note_candidate(fd: c_int, begun: u64) {
    let Some(entry) = entry_or_map(fd) else { return };
    loop {
        let old = Word(entry.load(Ordering::Acquire));
        if old.is_datagram() {
            return;
        }
        let new = match old.kind() {
            EMPTY | CANDIDATE => Word(old.with_kind(CANDIDATE).0 | begun),
            // Told late: a connection may carry data before the program asks how it went.
            TWIN if find(fd, Side::Send).is_none_or(|h| h.is_same_socket() != Some(false)) => {
                return;
            }
            TWIN => Word(CANDIDATE | begun),
            _ => return,
        };
        if replace(entry, old, new) {
            if let Some(key) = old.key() {
                give_up_name(key, fd, Ending::Stale);
            }
            return;
        }
    }
}

/// The socket was disconnected (`connect` to `AF_UNSPEC`).
pub(crate) fn note_disconnected(fd: c_int) {
    if let Some(entry) = entry(fd)
        && !datagrams::is_one(fd)
        && let Some(key) = Word(claim::take(entry)).key()
    {
        give_up_name(key, fd, Ending::Stale);
    }
}

/// `fd` has come out of `accept` on `listener`: a stream, unless an option that it inherits from
/// its listener forbids.
pub(crate) fn note_accepted(listener: c_int, fd: c_int) {
    note_made(fd);
    note_candidate(fd, ACCEPTED);
    let inherited = entry(listener).map_or(FallbackReason::None, |e| {
        let word = Word(e.load(Ordering::Relaxed));
        if word.kind() == TWIN { FallbackReason::None } else { word.reason() }
    });
    if inherited == FallbackReason::Option {
        pin(fd, FallbackReason::Option);
    }
}

/// The kernel has just given out `fd`: what the table says of the number is about another.
pub(crate) fn note_made(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.load(Ordering::Relaxed) != 0
        && !process::is_borrowed()
    {
        let old = Word(claim::take(entry));
        if let Some(key) = old.key() {
            log::line(format_args!("fd {fd}: reused behind our back"));
            give_up_name(key, fd, Ending::Stale);
        }
    }
}

/// The program has set an option of `fd` that says when a quiet peer is asked whether it lives.
pub(crate) fn follow_keepalive(fd: c_int) {
    if let Some(handle) = find(fd, Side::Send).filter(|handle| handle.twin().is_sole()) {
        let _ = guard::enter(|| {
            handle.twin().follow_keepalive(handle.fd());
            Ok(())
        });
    }
}

/// Keeps the stream behind `fd`, or one that it becomes, on TCP.
pub(crate) fn pin(fd: c_int, reason: FallbackReason) {
    let Some(entry) = entry_or_map(fd) else { return };
    let section = Section::enter();
    loop {
        let word = Word(entry.load(Ordering::Acquire));
        match word.kind() {
            TWIN if word.is_datagram() => {
                datagrams::pin(fd, reason);
                break;
            }
            TWIN => {
                if let Some(handle) = find(fd, Side::Send) {
                    log::line(format_args!("fd {fd}: pinned, {reason:?}"));
                    let _ = guard::enter(|| {
                        handle.pin(reason);
                        Ok(())
                    });
                }
                break;
            }
            ADOPTING => rustix::thread::sched_yield(),
            _ => {
                if word.reason() != FallbackReason::None
                    || replace(entry, word, word.with_reason(reason))
                {
                    break;
                }
            }
        }
    }
    drop(section);
}

/// How a name of a twin ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// The program closes the descriptor, now.
    Close,
    /// The descriptor was something else already.
    Stale,
}

fn give_up_name(key: Key, fd: c_int, ending: Ending) {
    let section = Section::enter();
    let handle = slot::enter(key, Side::Send, fd);
    if let Some(handle) = &handle {
        let _ = guard::enter(|| {
            handle.keep_for_calls();
            Ok(())
        });
    }
    let last = match handle {
        Some(handle) if handle.udp().is_some() => {
            let is_last = handle.remove_name();
            if is_last {
                datagrams::note_end(&handle);
                // Not left to the last user: one that a longjmp took out of its call never ends.
                if let Some(udp) = handle.udp() {
                    let _ = guard::enter(|| {
                        udp.pin(FallbackReason::Passed);
                        Ok(())
                    });
                }
            }
            is_last
        }
        Some(handle) if handle.remove_name() => {
            handle.twin().note_released();
            if ending == Ending::Close && handle.is_same_socket() == Some(true) {
                let _ = guard::enter(|| {
                    handle.twin().close(handle.fd());
                    Ok(())
                });
            }
            true
        }
        _ => false,
    };
    if last {
        // Drops the twin, here or in the last call that is still inside.
        let _ = guard::enter(|| {
            slot::retire(key);
            Ok(())
        });
    }
    drop(section);
}

/// To be called before the kernel closes `fd`, because another thread may be given the number at
/// once.
pub(crate) fn note_closing(fd: c_int) {
    let Some(entry) = entry(fd) else { return };
    let word = Word(entry.load(Ordering::Relaxed));
    if word == Word::NOTHING || guard::is_inside() || process::is_borrowed() {
        return;
    }
    if is_listening(fd) {
        doors::note_closing(fd);
    }
    let old = Word(claim::take(entry));
    if let Some(key) = old.key() {
        log::line(format_args!("fd {fd}: closing"));
        give_up_name(key, fd, Ending::Close);
    }
}

/// Numbers in `first..=last` that the table knows something of, for a call that closes a range.
pub(crate) fn known(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = u32::try_from(TABLE.end()).unwrap_or(u32::MAX);
    (first..=last.min(end.saturating_sub(1)))
        .take_while(move |_| end != 0)
        .filter_map(|n| c_int::try_from(n).ok())
        .filter(|&fd| entry(fd).is_some_and(|e| e.load(Ordering::Relaxed) != 0))
}

/// `new` now names the open file of `old`. To be called after the kernel's `dup`; what `new` was
/// before has been closed with [`note_closing`].
pub(crate) fn note_duplicate(old: c_int, new: c_int) {
    note_made(new);
    let Some(entry_old) = entry(old) else { return };
    let word = Word(entry_old.load(Ordering::Acquire));
    if word == Word::NOTHING || old == new || process::is_borrowed() {
        return;
    }
    // Two candidates for one socket would become two twins.
    let handle = match word.kind() {
        _ if word.is_datagram() => datagrams::find(old, Side::Send),
        EMPTY => None,
        _ => settle(old, entry_old, Side::Send),
    };
    let Some(entry_new) = entry_or_map(new) else { return };
    match handle {
        Some(handle) if handle.add_name() => {
            // Of the same key as `handle`, unless the program closes `old` at this moment.
            let word = Word(entry_old.load(Ordering::Acquire));
            if word.key().is_some() {
                log::line(format_args!("fd {new}: duplicate of {old}"));
                entry_new.store(word.0, Ordering::Release);
            }
        }
        _ => {
            // Not a stream, or one still connecting: neither name may adopt it alone.
            let word = Word(entry_old.load(Ordering::Acquire));
            let kept = match word.kind() {
                EMPTY if word.is_datagram() => {
                    pin(old, FallbackReason::Option);
                    Word(DATAGRAMS).with_reason(FallbackReason::Option)
                }
                CANDIDATE => word.with_kind(EMPTY).with_reason(FallbackReason::Option),
                EMPTY => word,
                _ => Word::NOTHING,
            };
            if word.kind() == CANDIDATE {
                replace(entry_old, word, kept);
            }
            entry_new.store(kept.0, Ordering::Release);
        }
    }
}

/// Calls that met an error which the stream that was adopted cannot have: whether the number now
/// may name something else, in which case it is forgotten.
#[cold]
pub(crate) fn was_reused(handle: &Handle, fd: c_int) -> bool {
    if handle.is_same_socket() == Some(true) {
        return false;
    }
    // Unless the table knows already that the number has a successor.
    if key(fd) == Some(handle.key()) {
        note_made(fd);
    }
    true
}

/// The process is about to fork: every stream is on TCP while two processes hold it.
pub(crate) fn prepare_fork() {
    for fd in known(0, u32::MAX) {
        let Some(entry) = entry(fd) else { continue };
        let word = Word(entry.load(Ordering::Relaxed));
        if word.is_datagram() {
            // What waits in its queue either process can take.
            pin(fd, FallbackReason::Fork);
            continue;
        }
        // Sockets that are not connected may well be used by one side alone.
        if word.kind() == EMPTY {
            continue;
        }
        if word.kind() == CANDIDATE && word.0 & CONNECTING == 0 {
            // One twin, which both processes know: two would not know of each other's bytes.
            drop(settle(fd, entry, Side::Send));
        }
        let Some(handle) = find(fd, Side::Send) else {
            pin(fd, FallbackReason::Fork);
            continue;
        };
        let section = Section::enter();
        log::line(format_args!("fd {fd}: about to be inherited"));
        let _ = guard::enter(|| {
            handle.twin().before_fork(handle.fd());
            Ok(())
        });
        drop(section);
    }
}

/// The process is about to end.
pub(crate) fn finish() {
    if process::is_borrowed() {
        return;
    }
    for fd in known(0, u32::MAX) {
        if is_stream(fd)
            && let Some(handle) = find(fd, Side::Send)
        {
            let _ = guard::enter(|| {
                handle.twin().finish();
                Ok(())
            });
        }
        if let Some(handle) = datagrams::find(fd, Side::Send) {
            datagrams::note_end(&handle);
        }
    }
}

/// Leaves every descriptor to the kernel, but for streams that still have bytes elsewhere. Their slots stay in use:
/// what they hold is of no use any more, and giving it up would take system calls.
pub(crate) fn forget() {
    for fd in known(0, u32::MAX) {
        let is_needed = find(fd, Side::Recv).is_some_and(|handle| !handle.twin().is_plain());
        if let Some(entry) = entry(fd).filter(|_| !is_needed) {
            entry.store(0, Ordering::Release);
        }
    }
}

/// In a forked child: what other threads of the parent were doing will never be finished here.
pub(crate) fn after_fork_in_child() {
    // A handler may have interrupted a call of this very thread.
    if !interrupt::is_in_handler() {
        slot::forget_calls();
    }
    for fd in known(0, u32::MAX) {
        let Some(entry) = entry(fd) else { continue };
        let word = Word(entry.load(Ordering::Relaxed));
        if word.kind() == ADOPTING {
            entry.store(0, Ordering::Relaxed);
        }
        if let Some(handle) = find(fd, Side::Send) {
            handle.twin().note_inherited();
        }
    }
}

/// Every stream that the kernel alone cannot go on with, once, by the lowest number the table has.
pub(crate) fn unsettled() -> Vec<Handle> {
    let mut found: Vec<Handle> = Vec::new();
    for fd in known(0, u32::MAX) {
        if is_stream(fd)
            && let Some(handle) = find(fd, Side::Recv)
            && !handle.twin().is_plain()
            && !found.iter().any(|known| known.is_same_stream(&handle))
        {
            found.push(handle);
        }
    }
    found
}

/// The entries of a stream while its descriptors are being replaced: calls on them wait until this is
/// dropped. Only inside a [`Section`], or a signal handler would wait for what it interrupts.
#[must_use]
pub(crate) struct Claimed {
    key: Key,
    entries: Vec<c_int>,
}

/// Claims the entries of the stream.
pub(crate) fn claim(stream: &Handle) -> Claimed {
    let key = stream.key();
    let word = Word::of_twin(key);
    let take =
        |&fd: &c_int| entry(fd).is_some_and(|entry| replace(entry, word, word.with_kind(ADOPTING)));
    Claimed { key, entries: known(0, u32::MAX).filter(take).collect() }
}

impl Claimed {
    /// Whether another thread has claimed them all.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The stream's descriptors have been replaced by a socket that passes for it and that the kernel
    /// alone serves.
    pub(crate) fn substituted(mut self) {
        for fd in std::mem::take(&mut self.entries) {
            let Some(entry) = entry(fd) else { continue };
            log::line(format_args!("fd {fd}: substituted"));
            let claimed = Word::of_twin(self.key).with_kind(ADOPTING);
            replace(entry, claimed, Word::NOTHING.with_reason(FallbackReason::Passed));
        }
    }
}

impl Drop for Claimed {
    fn drop(&mut self) {
        let word = Word::of_twin(self.key);
        for &fd in &self.entries {
            // Otherwise the program has closed it meanwhile.
            if entry(fd).is_some_and(|entry| !replace(entry, word.with_kind(ADOPTING), word)) {
                give_up_name(self.key, fd, Ending::Stale);
            }
        }
    }
}
