//! Waiting for epoll sets: the kernel does it, except for streams on a ring ([`event_set`]), and
//! for streams without TCP that are full.
//!
//! In a set a stream without TCP is its placeholder, which then shows that there is no room
//! ([`NativeStream::shows_full`]). A thread that waits for a set meanwhile waits for room,
//! too, and then makes the placeholder writable; the kernel does the rest, by levels, edges or
//! shots as the set was asked.

use super::poll::duration;
use crate::fdtable::datagrams;
use crate::slot::{Direction, Handle};
use crate::{cancel, errno, event_set, fdtable, guard, next, tcp_only};
use libc::{c_int, epoll_event, sigset_t, timespec};
use rsock_core::accelerate::{self, NativeStream, PollDescriptor, events_before_sleep};
use rustix::event::PollFlags;
use std::time::{Duration, Instant};

/// The most events that a call may ask for (`EP_MAX_EVENTS` in Linux, `fs/eventpoll.c`).
const MOST_EVENTS: usize = c_int::MAX as usize / size_of::<epoll_event>();

/// As `epoll_wait(2)`.
///
/// # Safety
/// As `epoll_wait(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let sleep = |room, n, limit| {
        // SAFETY: room of the caller's, or arguments passed on unchanged.
        unsafe { next::epoll_wait(set, room, int(n), millis(limit)) }
    };
    // SAFETY: arguments passed on unchanged.
    let by_kernel = || unsafe { next::epoll_wait(set, events, n, timeout) };
    // SAFETY: the caller's promise.
    unsafe { answer(set, events, n, limit, None, &sleep, by_kernel) }
}

/// As `epoll_pwait(2)`.
///
/// # Safety
/// As `epoll_pwait(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    let sleep = |room, n, limit| {
        // SAFETY: room of the caller's, or arguments passed on unchanged.
        unsafe { next::epoll_pwait(set, room, int(n), millis(limit), mask) }
    };
    // SAFETY: null or valid by the caller's promise.
    let given = unsafe { mask.as_ref() };
    // SAFETY: arguments passed on unchanged.
    let by_kernel = || unsafe { next::epoll_pwait(set, events, n, timeout, mask) };
    // SAFETY: the caller's promise.
    unsafe { answer(set, events, n, limit, given, &sleep, by_kernel) }
}

/// As `epoll_pwait2(2)`.
///
/// # Safety
/// As `epoll_pwait2(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let by_kernel = || unsafe { next::epoll_pwait2(set, events, n, timeout, mask) };
    // SAFETY: null or valid by the caller's promise.
    let Ok(limit) = (unsafe { duration(timeout) }) else { return by_kernel() };
    let sleep = |room, n, limit: Option<Duration>| {
        let limit = limit.map(timespec_of);
        let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: room of the caller's, or arguments passed on unchanged, and a time that lives
        // during the call.
        unsafe { next::epoll_pwait2(set, room, int(n), limit, mask) }
    };
    // SAFETY: null or valid by the caller's promise.
    let given = unsafe { mask.as_ref() };
    // SAFETY: the caller's promise.
    unsafe { answer(set, events, n, limit, given, &sleep, by_kernel) }
}

/// Waits for `set`. `sleep` calls the kernel with the room for events and the time that it is
/// given, `by_kernel` with all that the program has given.
///
/// # Safety
/// As `epoll_wait(2)`.
unsafe fn answer(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
    sleep: &event_set::Sleep<'_>,
    by_kernel: impl Fn() -> c_int,
) -> c_int {
    let is_known = event_set::find(set).is_some();
    let deadline = limit.filter(|_| is_known).and_then(|limit| Instant::now().checked_add(limit));
    let mut left = limit;
    loop {
        // SAFETY: the caller's promise.
        if let Some(n) = unsafe { wait_for(set, events, n, left, mask, sleep) } {
            return n;
        }
        let known = event_set::find(set).filter(|_| room_of(n).is_some() && !guard::is_in_core());
        let may_ask = mask.is_none() && !tcp_only::is_on();
        let soon = known.filter(|_| may_ask).and_then(|_| soon(events, n, left, sleep));
        let wait = || match room_of(n).filter(|_| left != limit) {
            // Only events of the library ended the wait before.
            Some(room) => sleep(events, room, left),
            None => by_kernel(),
        };
        let taken = match known {
            _ if soon.is_some() => soon,
            Some(known) => event_set::while_asleep(known, wait),
            None => Some(wait()),
        };
        // SAFETY: the kernel has written as many events.
        if let Some(n) = taken.and_then(|taken| unsafe { without_own(set, events, taken) }) {
            return n;
        }
        left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    }
}

/// What the kernel has for a set within a moment, where it pays off to ask for that; `None` if
/// there is nothing, and the call has to wait, for `left` if that is some. `sleep` calls the
/// kernel.
fn soon(
    events: *mut epoll_event,
    n: c_int,
    left: Option<Duration>,
    sleep: &event_set::Sleep<'_>,
) -> Option<c_int> {
    let room = room_of(n)?;
    let now = || Some(sleep(events, room, Some(Duration::ZERO))).filter(|n| *n != 0);
    let soon = events_before_sleep(left, now)?;
    Some(soon.unwrap_or_else(|e| errno::fail_int(e.raw_os_error())))
}

/// The number of events that a call has room for; `None` for a number that the kernel refuses.
fn room_of(n: c_int) -> Option<usize> {
    usize::try_from(n).ok().filter(|room| (1..=MOST_EVENTS).contains(room))
}

/// Waits for `set` as far as that takes more than the kernel; `None` if it does not. `sleep` calls
/// the kernel with the program's arguments, and the time that it is given.
///
/// # Safety
/// As `epoll_wait(2)`.
unsafe fn wait_for(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
    sleep: &event_set::Sleep<'_>,
) -> Option<c_int> {
    datagrams::before_epoll_wait();
    let known = event_set::find(set).filter(|_| !guard::is_in_core());
    let needs_library = known.is_some_and(event_set::needs_library);
    if !needs_library && !NativeStream::any_shows_full() {
        return None;
    }
    let room = room_of(n)?;
    let call =
        |limit| event_set::Wait { set, events, room, limit, is_masked: mask.is_some(), sleep };
    if NativeStream::any_shows_full() {
        // SAFETY: the caller's promise.
        let now = || unsafe { event_set::wait_by_kernel_or(known, &call(Some(Duration::ZERO))) };
        if let Some(n) = cancel::without_cancel(|| wait(set, limit, mask, now)) {
            return Some(n);
        }
    }
    let known = known.filter(|_| needs_library)?;
    // SAFETY: the caller's promise.
    cancel::without_cancel(|| Some(unsafe { event_set::wait(known, &call(limit)) }))
}

/// What the kernel has returned, without events of this library's own. `None` if nothing is left: a
/// set has them since the library has begun to watch a member while the thread slept.
///
/// # Safety
/// `events` has the number of events that `n` says, if that is not negative.
unsafe fn without_own(set: c_int, events: *mut epoll_event, n: c_int) -> Option<c_int> {
    // Also for a set of which the library watches nothing by now.
    let known = event_set::find(set).filter(|_| n > 0);
    let (Some(known), Ok(taken)) = (known, usize::try_from(n)) else { return Some(n) };
    // SAFETY: the caller's promise.
    let taken = unsafe { std::slice::from_raw_parts_mut(events, taken) };
    let n = event_set::without_own(known, taken);
    (n != 0).then_some(n)
}

fn int(n: usize) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

/// The time as `epoll_wait` takes it, rounded up.
fn millis(limit: Option<Duration>) -> c_int {
    let Some(limit) = limit else { return -1 };
    c_int::try_from(limit.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
}

pub(super) fn timespec_of(limit: Duration) -> timespec {
    let tv_sec = libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX);
    timespec { tv_sec, tv_nsec: limit.subsec_nanos().into() }
}

/// Waits for the set, by calling `now`, and for room in streams. `None` if no stream is full.
fn wait(
    set: c_int,
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
    now: impl Fn() -> c_int,
) -> Option<c_int> {
    let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
    let mut full = full();
    if full.is_empty() {
        return None;
    }
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let mut entries = vec![PollDescriptor::new(set, PollFlags::IN)];
        for (fd, handle) in &full {
            let stream = Some(handle.stream());
            entries.push(PollDescriptor { stream, ..PollDescriptor::new(*fd, PollFlags::OUT) });
        }
        if let Err(e) = guard::call_core(|| accelerate::poll(&mut entries, left, mask)) {
            return Some(errno::fail_int(e));
        }
        for ((_, handle), entry) in full.iter().zip(&entries[1..]) {
            if let Some(stream) = handle.stream().native().filter(|_| !entry.revents.is_empty()) {
                let _ = guard::call_core(|| {
                    stream.show_room(handle.fd());
                    Ok(())
                });
            }
        }
        let n = now();
        if n != 0 || left.is_some_and(|left| left.is_zero()) {
            return Some(n);
        }
        drop(entries);
        full = self::full();
    }
}

/// The streams whose placeholders show that there is no room.
fn full() -> Vec<(c_int, Handle)> {
    let look = |fd| {
        let handle = fdtable::find(fd, Direction::Send).filter(|_| fdtable::is_stream(fd))?;
        handle.stream().native()?.shows_full().then_some((fd, handle))
    };
    fdtable::known_fds(0, u32::MAX).filter_map(look).collect()
}
