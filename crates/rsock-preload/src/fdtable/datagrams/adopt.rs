//! Adopts a UDP socket once it has been used for some time.

use super::kernel_waiters;
use crate::fdtable::adopt::replace;
use crate::fdtable::word::{ADOPTED_UDP, ADOPTING, IN_EPOLL_SET, Word};
use crate::fdtable::{claim, entry};
use crate::slot::{self, Socket};
use crate::{guard, log, tcp_only};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use rsock_core::interrupt::{self, Section};
use rustix::fd::BorrowedFd;

/// The number of calls before a socket is adopted, and between two attempts.
pub(super) const FIRST_CALLS: u64 = 8;

const ONE_CALL: u64 = 1 << 32;

/// Counts a call on a candidate, and adopts it when it is due: the next call finds it adopted.
pub(super) fn count_call(fd: c_int, word: Word) {
    let Some(entry) = entry(fd) else { return };
    let more = Word(word.0.wrapping_add(ONE_CALL));
    let n = more.0 >> 32;
    // Fails where another thread counts: one of the two counts is enough.
    let is_wanted = !tcp_only::is_on() && !interrupt::is_in_handler();
    let is_due = n != 0 && n.is_multiple_of(FIRST_CALLS) && is_wanted;
    if !replace(entry, word, more) || !is_due {
        return;
    }
    let section = Section::enter();
    claim::convert(
        entry,
        more.0,
        more.with_kind(ADOPTING).0,
        || {
            let key = if kernel_waiters::has_none(fd) { adopt(fd, word) } else { None };
            key.map_or(Err(more.0), |key| Ok(Word::of_slot(key).0 | ADOPTED_UDP))
        },
        // The descriptor was closed meanwhile.
        |made| Word(made).key().into_iter().for_each(slot::retire),
    );
    drop(section);
}

/// Adopts the candidate. One that was pinned before shows its reason in `rsock stat`.
fn adopt(fd: c_int, word: Word) -> Option<slot::Key> {
    let reason = word.reason();
    let key = guard::call_core(|| {
        // SAFETY: not -1, since the table has it; the program's own, as in `Handle::fd`.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let udp = AcceleratedUdp::adopt(socket);
        if let Some(udp) = udp.as_ref().filter(|_| word.0 & IN_EPOLL_SET != 0) {
            udp.note_in_epoll_set();
        }
        if let Some(udp) = udp.as_ref().filter(|_| reason != FallbackReason::None) {
            udp.pin(reason);
        }
        Ok(udp.and_then(|udp| slot::insert(Socket::Udp(Box::new(udp)))))
    });
    let key = key.ok().flatten()?;
    log::line(format_args!("fd {fd}: datagrams, adopted as {key:?}, {reason:?}"));
    Some(key)
}
