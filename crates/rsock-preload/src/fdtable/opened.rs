//! New descriptors and connections: by `socket`, `connect`, `accept`, `listen` and `dup`.

use super::adopt::{adopt_or_find, replace};
use super::closed::{Ending, release_descriptor};
use super::word::{
    ACCEPTED, ADOPTED, CANDIDATE, CONNECTING, EMPTY, HAS_ACCEPTED, LISTENING, TCP, UDP, Word,
};
use super::{LAST_STANDARD, datagrams, entry, entry_or_map, find, note_made, note_meant, pin};
use crate::slot::{self, Direction, Socket};
use crate::{log, quiet_set, tcp_only, vfork};
use libc::c_int;
use rsock_core::accelerate::{self, FallbackReason, NativeStream};
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// A stream socket has connected.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn note_connected(fd: c_int) {
    note_candidate(fd, 0);
    note_connection(fd);
}

/// A stream socket has begun to connect.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn note_connecting(fd: c_int) {
    note_candidate(fd, CONNECTING);
    note_connection(fd);
}

/// Notes a connection for the waits of short ones, which ask the kernel before they sleep.
#[unsafe(link_section = "rsock_hooks")]
fn note_connection(fd: c_int) {
    if fd >= 0 && !tcp_only::is_on() {
        // SAFETY: not -1; only asked about.
        accelerate::note_connection(unsafe { BorrowedFd::borrow_raw(fd) });
    }
}

#[unsafe(link_section = "rsock_hooks")]
fn note_candidate(fd: c_int, begun: u64) {
    let Some(entry) = entry_or_map(fd) else { return };
    loop {
        let old = Word(entry.load(Ordering::Acquire));
        if old.is_datagram() {
            return;
        }
        let new = match old.kind() {
            EMPTY | CANDIDATE => Word(old.with_kind(CANDIDATE).0 | begun),
            // The note comes late: a connection may carry data before the program asks for its
            // outcome.
            ADOPTED
                if find(fd, Direction::Send).is_none_or(|h| h.is_same_socket() != Some(false)) =>
            {
                return;
            }
            ADOPTED => Word(CANDIDATE | begun),
            _ => return,
        };
        if replace(entry, old, new) {
            if let Some(key) = old.key() {
                release_descriptor(key, fd, Ending::Stale);
            }
            if fd <= LAST_STANDARD {
                // libc's own streams read the first of these numbers and write to the others.
                pin(fd, FallbackReason::StandardStream);
            }
            return;
        }
    }
}

/// `accept` on `listener` has returned `fd`: a candidate. An option that it inherits from its
/// listener may pin it.
pub(crate) fn note_accepted(listener: c_int, fd: c_int) {
    note_made(fd);
    note_candidate(fd, ACCEPTED | protocol_of_listener(listener));
    note_connection(fd);
    let inherited = entry(listener).map_or(FallbackReason::None, |e| {
        let word = Word(e.load(Ordering::Relaxed));
        if word.kind() == ADOPTED { FallbackReason::None } else { word.reason() }
    });
    if inherited == FallbackReason::Option {
        pin(fd, FallbackReason::Option);
    }
}

/// [`TCP`] if `listener` is a TCP socket, so that what it accepts is one; otherwise 0. The kernel
/// is asked once.
fn protocol_of_listener(listener: c_int) -> u64 {
    let Some(entry) = entry_or_map(listener) else { return 0 };
    let word = entry.load(Ordering::Relaxed);
    if Word(word).kind() != EMPTY || Word(word).is_datagram() {
        return 0;
    }
    if word & HAS_ACCEPTED != 0 {
        return word & TCP;
    }
    // SAFETY: not -1; the kernel has just accepted on it.
    let socket = unsafe { BorrowedFd::borrow_raw(listener) };
    let protocol = rustix::net::sockopt::socket_protocol(socket).ok().flatten();
    let tcp = if protocol == Some(rustix::net::ipproto::TCP) { TCP } else { 0 };
    let _ = entry.compare_exchange(
        word,
        word | HAS_ACCEPTED | tcp,
        Ordering::AcqRel,
        Ordering::Relaxed,
    );
    tcp
}

/// `fd` listens, and the configuration wants native listeners.
pub(crate) fn note_listening(fd: c_int) {
    if let Some(entry) = entry_or_map(fd) {
        let listens = |word| (Word(word).kind() == EMPTY).then_some(word | LISTENING);
        let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Relaxed, listens);
    }
}

/// `fd` is the placeholder of this stream.
///
/// # Errors
/// `EMFILE`: there are too many streams.
pub(crate) fn note_stream_made(fd: c_int, stream: NativeStream) -> Result<(), c_int> {
    note_made(fd);
    let entry = entry_or_map(fd).ok_or(libc::EMFILE)?;
    let key = slot::insert(Socket::Native(stream)).ok_or(libc::EMFILE)?;
    entry.store(Word::of_slot(key).0, Ordering::Release);
    Ok(())
}

/// `new` refers to the open file of `old`. To be called after the kernel's `dup`; the previous
/// entry of `new` has been removed by [`note_closing`](super::note_closing).
pub(crate) fn note_duplicate(old: c_int, new: c_int) {
    note_made(new);
    if vfork::is_child() {
        note_meant(old);
        // From now on the number is among those that are looked at.
        let _ = entry_or_map(new);
        return;
    }
    let Some(entry_old) = entry(old) else { return };
    let word = Word(entry_old.load(Ordering::Acquire));
    if word == Word::NOTHING || old == new {
        return;
    }
    // Two candidates of one socket would be adopted as two streams.
    let handle = match word.kind() {
        _ if word.is_datagram() => datagrams::find(old, Direction::Send),
        EMPTY => None,
        _ => adopt_or_find(old, entry_old, Direction::Send),
    };
    let Some(entry_new) = entry_or_map(new) else { return };
    match handle {
        Some(handle) if handle.add_descriptor() => {
            quiet_set::leave(&handle, old);
            // The key is that of `handle`, unless the program closes `old` at this moment.
            let word = Word(entry_old.load(Ordering::Acquire));
            if word.key().is_some() {
                log::line(format_args!("fd {new}: duplicate of {old}"));
                entry_new.store(word.0, Ordering::Release);
            }
        }
        _ => {
            // Not a stream, or one that is still connecting: it must not be adopted by either
            // number alone.
            let word = Word(entry_old.load(Ordering::Acquire));
            let kept = match word.kind() {
                EMPTY if word.is_datagram() => {
                    pin(old, FallbackReason::Option);
                    Word(UDP).with_reason(FallbackReason::Option)
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
