//! `poll` and `ppoll` over accelerated streams and other descriptors alike.

pub(super) mod many;
pub(super) mod named;
pub(super) mod wait;

use super::alias;
use crate::fdtable::datagrams;
use crate::{cancel, errno, event_set, fdtable, guard, next, rows, threads};
use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};
use named::event_flags;
use rustix::event::PollFlags;
use std::slice;
use std::time::{Duration, Instant};
use wait::OffTcp;

/// As `poll(2)`.
///
/// # Safety
/// As `poll(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    // SAFETY: a caller of `poll` promises `n` entries.
    let concerns_hook = unsafe { has_sockets(fds, n, timeout != 0) };
    if concerns_hook
        // SAFETY: as above.
        && let Some(found) = unsafe { poll_many(fds, n, limit, None) }
    {
        return found;
    }
    // SAFETY: as above.
    let is_counted = concerns_hook && datagrams::begin_kernel_poll(unsafe { numbers(fds, n) });
    if concerns_hook
        // SAFETY: as above.
        && let Some(n) = cancel::without_cancel(|| unsafe { poll_all(fds, n, limit, None) })
    {
        datagrams::end_kernel_poll(is_counted);
        return n;
    }
    // SAFETY: as above.
    let sets = unsafe { PolledSets::among(fds, n) };
    // SAFETY: arguments passed on unchanged.
    let found = unsafe { next::poll(fds, n, timeout) };
    // SAFETY: as above.
    let found = unsafe { sets.map_or(found, |sets| sets.after_kernel(found, fds, n, limit, None)) };
    datagrams::end_kernel_poll(is_counted);
    found
}

/// As `ppoll(2)`.
///
/// # Safety
/// As `ppoll(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null or valid by the caller's promise.
    let limit = unsafe { duration(timeout) }.ok();
    // SAFETY: a caller of `ppoll` promises `n` entries.
    let concerns_hook = unsafe { has_sockets(fds, n, limit != Some(Some(Duration::ZERO))) };
    let limit = limit.filter(|_| concerns_hook);
    // SAFETY: as above.
    let asked_mask = unsafe { mask.as_ref() };
    if let Some(limit) = limit
        // SAFETY: a caller of `ppoll` promises `n` entries.
        && let Some(found) = unsafe { poll_many(fds, n, limit, asked_mask) }
    {
        return found;
    }
    // SAFETY: as above.
    let is_counted = concerns_hook && datagrams::begin_kernel_poll(unsafe { numbers(fds, n) });
    if let Some(limit) = limit
        // SAFETY: as above.
        && let Some(n) = cancel::without_cancel(|| unsafe { poll_all(fds, n, limit, asked_mask) })
    {
        datagrams::end_kernel_poll(is_counted);
        return n;
    }
    // SAFETY: as above.
    let sets = unsafe { PolledSets::among(fds, n) };
    // SAFETY: arguments passed on unchanged.
    let found = unsafe { next::ppoll(fds, n, timeout, mask) };
    let found = sets.map_or(found, |sets| {
        // SAFETY: null or valid by the caller's promise.
        let limit = unsafe { duration(timeout) };
        // SAFETY: as above.
        let mask = unsafe { mask.as_ref() };
        // SAFETY: a caller of `ppoll` promises `n` entries.
        unsafe { sets.after_kernel(found, fds, n, limit.unwrap_or_default(), mask) }
    });
    datagrams::end_kernel_poll(is_counted);
    found
}

/// As `poll(2)`, of at most `room` bytes of entries.
///
/// # Safety
/// As `poll(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: c_int,
    room: size_t,
) -> c_int {
    if !fits(n, room) {
        // SAFETY: arguments passed on unchanged; the next definition ends the program.
        return unsafe { next::__poll_chk(fds, n, timeout, room) };
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { poll(fds, n, timeout) }
}

/// As `ppoll(2)`, of at most `room` bytes of entries.
///
/// # Safety
/// As `ppoll(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    room: size_t,
) -> c_int {
    if !fits(n, room) {
        // SAFETY: arguments passed on unchanged; the next definition ends the program.
        return unsafe { next::__ppoll_chk(fds, n, timeout, mask, room) };
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { ppoll(fds, n, timeout, mask) }
}

alias! {
    __poll = poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int;
}

/// The duration at `at`, none for null.
///
/// # Errors
/// The time is invalid: the kernel reports the error.
///
/// # Safety
/// `at` is null or valid.
pub(super) unsafe fn duration(at: *const timespec) -> Result<Option<Duration>, ()> {
    // SAFETY: null or valid by the caller's promise.
    let Some(given) = (unsafe { at.as_ref() }) else { return Ok(None) };
    let secs = u64::try_from(given.tv_sec).map_err(|_| ())?;
    let nanos = u32::try_from(given.tv_nsec).map_err(|_| ())?;
    if nanos >= 1_000_000_000 {
        return Err(());
    }
    Ok(Some(Duration::new(secs, nanos)))
}

/// Epoll sets among the descriptors of a call that the kernel serves, since none of them watches a
/// stream on a ring yet. When one begins to, its doorbell ends the call, although there may be
/// nothing to report.
struct PolledSets {
    began: Instant,
}

impl PolledSets {
    /// `None` if no entry names a set that this process has made.
    ///
    /// # Safety
    /// As `poll(2)`.
    unsafe fn among(fds: *const pollfd, n: nfds_t) -> Option<Self> {
        // SAFETY: the caller's promise.
        let fds = unsafe { entries(fds, n) }?;
        let has_any = !guard::is_in_core() && fds.iter().any(|p| event_set::find(p.fd).is_some());
        has_any.then(|| Self { began: Instant::now() })
    }

    /// What the call returns of which the kernel has returned `found`. It goes on if there is only
    /// a set to which streams on rings have come since.
    ///
    /// # Safety
    /// `fds` has `n` entries.
    unsafe fn after_kernel(
        self,
        found: c_int,
        fds: *mut pollfd,
        n: nfds_t,
        limit: Option<Duration>,
        mask: Option<&sigset_t>,
    ) -> c_int {
        // SAFETY: the caller's promise.
        let Some(seen) = (unsafe { entries(fds, n) }) else { return found };
        if found <= 0 || !seen.iter().any(|p| p.revents != 0 && watches_rings(p.fd)) {
            return found;
        }
        let left = limit.map(|limit| limit.saturating_sub(self.began.elapsed()));
        // SAFETY: the caller's promise.
        let again = cancel::without_cancel(|| unsafe { poll_all(fds, n, left, mask) });
        again.unwrap_or(found)
    }
}

/// Whether `fd` names a set that watches streams on rings.
pub(super) fn watches_rings(fd: c_int) -> bool {
    event_set::find(fd).is_some_and(event_set::needs_library)
}

/// Whether waiting for `fd` may take more than the kernel's `poll`.
#[unsafe(link_section = "rsock_hooks")]
pub(super) fn needs_own_poll(fd: c_int) -> bool {
    fdtable::needs_own_poll(fd) || watches_rings(fd)
}

/// Whether input of `fd`, for which the call `asks`, may come by a ring before the kernel has any:
/// another thread may adopt the connection while this one sleeps.
pub(super) fn may_leave_kernel(fd: c_int, asks: PollFlags) -> bool {
    asks.intersects(PollFlags::IN | PollFlags::RDNORM)
        && fdtable::is_connection(fd)
        && !threads::is_alone()
}

/// Whether an entry refers to a socket of this library, so that the kernel's `poll` may not
/// suffice; of a call that `may_sleep`, also one that may come to do so.
///
/// # Safety
/// `fds` has `n` entries.
#[unsafe(link_section = "rsock_hooks")]
unsafe fn has_sockets(fds: *const pollfd, n: nfds_t, may_sleep: bool) -> bool {
    // SAFETY: the caller's promise.
    let fds = unsafe { entries(fds, n) };
    let is_one =
        |p: &pollfd| needs_own_poll(p.fd) || may_sleep && may_leave_kernel(p.fd, event_flags(p));
    !guard::is_in_core() && fds.is_some_and(|fds| fds.iter().any(is_one))
}

/// The entries, unless there are none or more than a process may have descriptors.
///
/// # Safety
/// `fds` is null or has `n` entries, as long as the slice is used.
unsafe fn entries<'a>(fds: *const pollfd, n: nfds_t) -> Option<&'a [pollfd]> {
    let n = usize::try_from(n).ok().filter(|&n| n <= rows::MOST && !fds.is_null())?;
    // SAFETY: not null, so `n` entries by the caller's promise.
    Some(unsafe { slice::from_raw_parts(fds, n) })
}

/// The descriptors of the entries.
///
/// # Safety
/// As [`poll_all`], for as long as the iterator is used.
unsafe fn numbers<'a>(fds: *const pollfd, n: nfds_t) -> impl Iterator<Item = c_int> + Clone + 'a {
    let n = usize::try_from(n).unwrap_or(0);
    // SAFETY: not null, since some entries concern this library, so `n` entries by the caller's
    // promise.
    unsafe { slice::from_raw_parts(fds, n) }.iter().map(|p| p.fd)
}

/// Waits for all entries, if they are many, of which most have nothing to report. `None`: all are
/// to be looked at.
///
/// # Safety
/// As [`poll_all`].
unsafe fn poll_many(
    fds: *mut pollfd,
    n: nfds_t,
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<c_int> {
    let n = usize::try_from(n).ok().filter(|&n| many::is_due(n))?;
    cancel::without_cancel(|| {
        // SAFETY: as in `poll_all`.
        many::poll(unsafe { slice::from_raw_parts_mut(fds, n) }, limit, mask).map(errno::ret_int)
    })
}

/// Waits for all entries if one of them is off TCP. `None`: the kernel's `poll` suffices.
///
/// # Safety
/// `fds` has `n` entries, for which [`has_sockets`] holds.
unsafe fn poll_all(
    fds: *mut pollfd,
    n: nfds_t,
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<c_int> {
    let n = usize::try_from(n).ok()?;
    // SAFETY: not null, since some entries concern this library, so `n` entries by the caller's
    // promise.
    let fds = unsafe { slice::from_raw_parts_mut(fds, n) };
    wait::wait(fds, limit, mask, OffTcp::One).map(errno::ret_int)
}

fn fits(n: nfds_t, room: size_t) -> bool {
    usize::try_from(n).is_ok_and(|n| n <= room / size_of::<pollfd>())
}
