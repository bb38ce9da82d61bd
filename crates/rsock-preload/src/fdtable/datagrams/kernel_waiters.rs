//! Threads that wait for UDP candidates in the kernel alone, and so would miss datagrams in a
//! queue: a candidate is not adopted while threads receive from it in the kernel, because its queue
//! may open then, and these threads would miss its datagrams.

use super::{find, is_candidate};
use crate::epoll_interest;
use crate::fdtable::word::{ADOPTING, EMPTY, IN_EPOLL_SET, Word};
use crate::fdtable::{claim, entry, pin};
use crate::rows;
use crate::slot::{Direction, Handle};
use libc::c_int;
use rsock_core::accelerate::FallbackReason;
use rsock_core::datagram::kernel_udp;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Threads that poll candidates of any number.
pub(super) static POLLERS: AtomicU32 = AtomicU32::new(0);

/// Counts this thread among those that poll candidates, if one of `fds` is a candidate. If so,
/// returns true, and [`end_kernel_poll`] must follow. Until then no socket is adopted: the table's
/// entries of `fds` stay as they are.
#[inline]
pub(crate) fn begin_kernel_poll(fds: impl Iterator<Item = c_int> + Clone) -> bool {
    let is_needed = kernel_udp::is_enabled() && fds.clone().any(is_candidate);
    if is_needed {
        begin_wait(&POLLERS, fds);
    }
    is_needed
}

/// Ends what [`begin_kernel_poll`] began. Skipped where the thread is cancelled or leaves by
/// longjmp: candidates stay with the kernel then.
#[inline]
pub(crate) fn end_kernel_poll(was_counted: bool) {
    if was_counted {
        claim::end_wait(&POLLERS);
    }
}

/// Receives from `fd`: by `by_hook`, or where that returns `None` by `kernel`, which may sleep. The
/// socket is not adopted while `kernel` runs, and `kernel` does not run if the socket was adopted
/// meanwhile. A frame of this function has nothing to drop.
#[inline(always)]
pub(crate) fn receive<R>(
    fd: c_int,
    mut by_hook: impl FnMut() -> Option<R>,
    kernel: impl FnOnce() -> R,
) -> R {
    let was_candidate = is_candidate(fd);
    if let Some(result) = by_hook() {
        return result;
    }
    let row = if was_candidate { rows::row_or_map(fd) } else { None };
    let Some(receivers) = row.map(|row| &row.kernel_receivers) else {
        return kernel();
    };
    begin_wait(receivers, std::iter::once(fd));
    if is_candidate(fd) {
        let result = kernel();
        claim::end_wait(receivers);
        return result;
    }
    claim::end_wait(receivers);
    by_hook().unwrap_or_else(kernel)
}

/// Runs `change`, which changes how an epoll set watches `fd`. Meanwhile no queue of `fd` opens
/// unknown to the sets: `change` adds the proxy of a queue that is open by then, and a queue that
/// opens later adds its proxy to all sets.
pub(crate) fn while_changing_sets<R>(fd: c_int, change: impl FnOnce() -> R) -> R {
    kernel_udp::register_epoll_sets(epoll_interest::set_epoll_proxy);
    let Some(row) = rows::row_or_map(fd) else {
        pin(fd, FallbackReason::Epoll);
        return change();
    };
    let (receivers, entry) = (&row.kernel_receivers, &row.socket);
    begin_wait(receivers, std::iter::once(fd));
    if is_candidate(fd) {
        let watch = |word| {
            Some(word | IN_EPOLL_SET)
                .filter(|_| Word(word).is_datagram() && Word(word).kind() == EMPTY)
        };
        let _ = entry.fetch_update(Ordering::AcqRel, Ordering::Acquire, watch);
        let result = change();
        claim::end_wait(receivers);
        return result;
    }
    claim::end_wait(receivers);
    let handle = find(fd, Direction::Send);
    let Some(udp) = handle.as_ref().and_then(Handle::udp) else { return change() };
    udp.while_epoll_sets_change(change)
}

/// Counts this thread in `waiters`, and waits for adoptions of `fds` that may not have seen the
/// count.
fn begin_wait(waiters: &AtomicU32, fds: impl Iterator<Item = c_int> + Clone) {
    let is_being_adopted = |entry: &AtomicU64| {
        let word = Word(entry.load(Ordering::Acquire));
        word.is_datagram() && word.kind() == ADOPTING
    };
    // Another thread adopts: it is inside a section, which no handler interrupts.
    let any = || fds.clone().filter_map(entry).any(is_being_adopted);
    claim::begin_wait(waiters, any, rustix::thread::sched_yield);
}

pub(super) fn has_none(fd: c_int) -> bool {
    let receivers = rows::row(fd).map(|row| &row.kernel_receivers);
    claim::no_waiters(receivers.into_iter().chain([&POLLERS]))
}
