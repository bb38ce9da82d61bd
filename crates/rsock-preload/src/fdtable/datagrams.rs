//! UDP sockets in the table.
//!
//! One that `socket` made is a candidate, and nothing is allocated for it before it has been used for some
//! time: a program that asks a name server has closed it by then.

use super::{
    ADOPTING, CHUNKS, DATAGRAM_TWIN, DATAGRAMS, EMPTY, PER_CHUNK, Word, entry, entry_or_map, known,
    replace,
};
use crate::chunked::Chunked;
use crate::guard;
use crate::log;
use crate::slot::{self, Handle, Held, Side};
use libc::c_int;
use rsock_core::interrupt::Section;
use rsock_core::twin::PinReason;
use rsock_core::udp::{self, Udp};
use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Calls that send or receive before a socket is adopted, and between two attempts.
const FIRST_CALLS: u64 = 8;
const ONE_CALL: u64 = 1 << 32;

/// Threads that receive from a candidate in the kernel, by its number: it must not be adopted meanwhile,
/// because it may open then, and they would be deaf to its queue.
static DEAF_AT: Chunked<AtomicU32, PER_CHUNK, CHUNKS> = Chunked::new();
/// Threads that poll candidates, whichever.
static DEAF: AtomicU32 = AtomicU32::new(0);

/// `fd` has just been made, a datagram socket of the internet.
pub(crate) fn note_made(fd: c_int) {
    if udp::is_enabled()
        && let Some(entry) = entry_or_map(fd)
    {
        let _ = entry.compare_exchange(0, DATAGRAMS, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether `fd` is a UDP socket that we know of.
#[inline]
pub(crate) fn is_one(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| Word(entry.load(Ordering::Relaxed)).is_datagram())
}

/// The socket behind `fd` for a data call in the given direction, which is counted. `None`: the kernel's
/// business.
#[inline]
pub(crate) fn enter(fd: c_int, side: Side) -> Option<Handle> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    if !word.is_datagram() || guard::is_inside() {
        return None;
    }
    if word.kind() == EMPTY {
        count(fd, word);
        return None;
    }
    let handle = slot::enter(word.key()?, side, fd)?;
    handle.udp().is_some_and(|udp| !udp.is_plain()).then_some(handle)
}

/// The socket behind `fd`, plain or not, if it has been adopted.
pub(crate) fn find(fd: c_int, side: Side) -> Option<Handle> {
    let word = Word(entry(fd)?.load(Ordering::Acquire));
    if !word.is_datagram() || guard::is_inside() {
        return None;
    }
    slot::enter(word.key()?, side, fd)
}

/// Counts a call on a candidate, and adopts it when it is time: the next call finds it.
fn count(fd: c_int, word: Word) {
    let Some(entry) = entry(fd) else { return };
    if word.reason() != PinReason::None {
        return;
    }
    let more = Word(word.0.wrapping_add(ONE_CALL));
    let n = more.0 >> 32;
    // Fails where another thread counts: one of them is enough.
    if !replace(entry, word, more) || n == 0 || !n.is_multiple_of(FIRST_CALLS) {
        return;
    }
    let section = Section::enter();
    let claim = more.with_kind(ADOPTING);
    if replace(entry, more, claim) {
        std::sync::atomic::fence(Ordering::SeqCst);
        let key = if is_heard(fd) { adopt(fd) } else { None };
        match key {
            Some(key) => {
                let word = Word(Word::of_twin(key).0 | DATAGRAM_TWIN);
                if !replace(entry, claim, word) {
                    // The number was closed meanwhile.
                    slot::retire(key);
                }
            }
            None => _ = replace(entry, claim, more),
        }
    }
    drop(section);
}

fn adopt(fd: c_int) -> Option<slot::Key> {
    let key = guard::enter(|| {
        // SAFETY: not -1, since the table has it; the program's own, as in `Handle::fd`.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        Ok(Udp::adopt(socket).and_then(|udp| slot::insert(Held::Datagrams(udp))))
    });
    let key = key.ok().flatten()?;
    log::line(format_args!("fd {fd}: datagrams, adopted as {key:?}"));
    Some(key)
}

/// Runs `wait`, which may sleep in the kernel for some candidates if `is_meant`, while none is adopted.
#[inline]
pub(crate) fn while_deaf<R>(is_meant: bool, wait: impl FnOnce() -> R) -> R {
    let deaf = (is_meant && udp::is_enabled()).then_some(&DEAF);
    counted_in(deaf, wait)
}

/// Runs `receive`, which may sleep in the kernel for `fd`, while that is not adopted.
#[inline]
pub(crate) fn while_deaf_at<R>(fd: c_int, receive: impl FnOnce() -> R) -> R {
    let place = || DEAF_AT.get_or_map(usize::try_from(fd).ok()?);
    let deaf = if is_one(fd) { place() } else { None };
    counted_in(deaf, receive)
}

#[inline]
fn counted_in<R>(deaf: Option<&AtomicU32>, f: impl FnOnce() -> R) -> R {
    let Some(deaf) = deaf else { return f() };
    // No guard: a thread that is cancelled in there stays counted, and the socket with the kernel.
    deaf.fetch_add(1, Ordering::SeqCst);
    let result = f();
    deaf.fetch_sub(1, Ordering::SeqCst);
    result
}

fn is_heard(fd: c_int) -> bool {
    let at = usize::try_from(fd).ok().and_then(|fd| DEAF_AT.get(fd));
    at.is_none_or(|deaf| deaf.load(Ordering::SeqCst) == 0) && DEAF.load(Ordering::SeqCst) == 0
}

/// Keeps an adopted socket to the kernel.
pub(super) fn pin(fd: c_int, reason: PinReason) {
    if let Some(handle) = find(fd, Side::Send)
        && let Some(udp) = handle.udp()
        && udp.pin_reason() == PinReason::None
    {
        log::line(format_args!("fd {fd}: datagrams, pinned, {reason:?}"));
        let _ = guard::enter(|| {
            udp.pin(reason);
            Ok(())
        });
    }
}

/// Keeps every adopted socket to the kernel.
pub(crate) fn pin_all(reason: PinReason) {
    let section = Section::enter();
    for fd in known(0, u32::MAX) {
        pin(fd, reason);
    }
    drop(section);
}

/// The socket is about to end: what it has done goes to the log.
pub(super) fn note_end(handle: &Handle) {
    let Some(udp) = handle.udp() else { return };
    log::line(format_args!("datagrams, ending: {:?}", udp.counters()));
}

/// What has happened to the socket goes to the log.
#[inline]
pub(crate) fn tell_news(fd: c_int, udp: &Udp) {
    if let Some(news) = udp.news() {
        log::line(format_args!("fd {fd}: datagrams past the kernel, {news:?}"));
    }
}

/// The program has connected `fd`, or disconnected it.
pub(crate) fn note_connected(fd: c_int) {
    with(fd, |udp, fd| udp.note_connected(fd));
}

/// The program may have changed the flags of `fd`.
pub(crate) fn note_flags(fd: c_int) {
    with(fd, |udp, fd| udp.note_flags(fd));
}

/// The program has called `shutdown`.
pub(crate) fn note_shutdown(fd: c_int) {
    if is_one(fd) {
        super::pin(fd, PinReason::Option);
        with(fd, |udp, _| udp.note_shutdown());
    }
}

/// Other sockets may be bound to the same port from now on.
pub(crate) fn note_reuse(fd: c_int) {
    with(fd, |udp, _| udp.note_reuse());
}

/// A UDP socket of this process has been bound: perhaps to a port that another one has.
pub(crate) fn note_bound(fd: c_int) {
    if !is_one(fd) {
        return;
    }
    for other in known(0, u32::MAX).filter(|&other| other != fd) {
        with(other, |udp, other| udp.look_for_others(other));
    }
}

fn with(fd: c_int, f: impl FnOnce(&Udp, BorrowedFd<'_>)) {
    if let Some(handle) = find(fd, Side::Send)
        && let Some(udp) = handle.udp()
    {
        let section = Section::enter();
        let _ = guard::enter(|| {
            f(udp, handle.fd());
            Ok(())
        });
        drop(section);
    }
}
