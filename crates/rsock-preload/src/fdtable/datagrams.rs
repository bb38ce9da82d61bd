//! UDP sockets in the descriptor table.
//!
//! A socket that `socket` made is a candidate. Nothing is allocated for it before it has been used
//! for some time: a program that asks a name server has closed its socket by then.

mod adopt;
mod kernel_waiters;
mod notes;
#[cfg(test)]
mod tests;

pub(crate) use super::find_udp as find;
pub(crate) use kernel_waiters::{begin_kernel_poll, end_kernel_poll, receive, while_changing_sets};
pub(super) use notes::note_end;
pub(crate) use notes::{
    before_epoll_wait, log_news, note_bound, note_connected, note_edges, note_flags, note_reuse,
    note_shutdown, pin_all,
};

use super::word::{ADOPTED, EMPTY, UDP, Word};
use super::{entry, entry_or_map};
use crate::slot::{self, Direction, Handle};
use crate::{guard, tcp_only};
use libc::c_int;
use rsock_core::datagram::kernel_udp::{self, AcceleratedUdp};
use rsock_core::interrupt::Section;
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering;

/// `socket` has just made `fd`, an internet datagram socket.
pub(crate) fn note_made(fd: c_int) {
    if kernel_udp::is_enabled()
        && !tcp_only::is_on()
        && let Some(entry) = entry_or_map(fd)
    {
        let _ = entry.compare_exchange(0, UDP, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// Whether `fd` is a UDP socket in the table.
#[inline]
pub(crate) fn is_udp(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| Word(entry.load(Ordering::Relaxed)).is_datagram())
}

/// Begins a data call on the socket of `fd` in the given direction; calls on a candidate are
/// counted. `None`: the call is the kernel's.
#[inline]
pub(crate) fn begin_call(fd: c_int, direction: Direction) -> Option<Handle> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    if !word.is_datagram() || guard::is_in_core() {
        return None;
    }
    if word.kind() == EMPTY {
        adopt::count_call(fd, word);
        return None;
    }
    let handle = begin_adopted(fd, direction)?;
    handle.udp().is_some_and(|udp| !udp.is_plain()).then_some(handle)
}

/// Begins a data call on the UDP socket of `fd` in the given direction, if it has been adopted. The
/// short way of most calls: of the others, [`begin_call`] knows more.
#[inline(always)]
pub(crate) fn begin_adopted(fd: c_int, direction: Direction) -> Option<Handle> {
    let entry = entry(fd)?;
    let word = Word(entry.load(Ordering::Acquire));
    let key = word.key().filter(|_| word.is_datagram() && !guard::is_in_core())?;
    let handle = slot::begin_call(key, direction, fd)?;
    if super::is_unchanged(entry, word) {
        return Some(handle);
    }
    super::end_call(handle);
    None
}

/// Whether `fd` is a UDP socket that has not been adopted.
#[inline]
fn is_candidate(fd: c_int) -> bool {
    entry(fd).is_some_and(|entry| {
        let word = Word(entry.load(Ordering::Acquire));
        word.is_datagram() && word.kind() != ADOPTED
    })
}

fn with(fd: c_int, f: impl FnOnce(&AcceleratedUdp, BorrowedFd<'_>)) {
    if let Some(handle) = find(fd, Direction::Send)
        && let Some(udp) = handle.udp()
    {
        let section = Section::enter();
        let _ = guard::call_core(|| {
            f(udp, handle.fd());
            Ok(())
        });
        drop(section);
    }
}
