//! Waiting for epoll sets: the kernel does it, except for streams without TCP that are full.
//!
//! In a set such a stream is its placeholder, which then shows that there is no room
//! ([`NativeStream::shows_full`]). A thread that waits for a set meanwhile waits for room,
//! too, and then makes the placeholder writable; the kernel does the rest, by levels, edges or
//! shots as the set was asked.

use super::poll::duration;
use crate::fdtable::datagrams;
use crate::slot::{Direction, Handle};
use crate::{cancel, errno, fdtable, guard, next};
use libc::{c_int, epoll_event, sigset_t, timespec};
use rsock_core::accelerate::{self, NativeStream, PollDescriptor};
use rustix::event::PollFlags;
use std::time::{Duration, Instant};

/// As `epoll_wait(2)`.
///
/// # Safety
/// As `epoll_wait(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_wait(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
) -> c_int {
    datagrams::before_epoll_wait();
    if NativeStream::any_shows_full() {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        // SAFETY: arguments passed on unchanged.
        let now = || unsafe { next::epoll_wait(set, events, n, 0) };
        if let Some(n) = cancel::without_cancel(|| wait(set, limit, None, now)) {
            return n;
        }
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::epoll_wait(set, events, n, timeout) }
}

/// As `epoll_pwait(2)`.
///
/// # Safety
/// As `epoll_pwait(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    datagrams::before_epoll_wait();
    if NativeStream::any_shows_full() {
        let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
        // SAFETY: null or valid by the caller's promise.
        let given = unsafe { mask.as_ref() };
        // SAFETY: arguments passed on unchanged.
        let now = || unsafe { next::epoll_pwait(set, events, n, 0, mask) };
        if let Some(n) = cancel::without_cancel(|| wait(set, limit, given, now)) {
            return n;
        }
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::epoll_pwait(set, events, n, timeout, mask) }
}

/// As `epoll_pwait2(2)`.
///
/// # Safety
/// As `epoll_pwait2(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_pwait2(
    set: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    datagrams::before_epoll_wait();
    if NativeStream::any_shows_full()
        // SAFETY: null or valid by the caller's promise.
        && let Ok(limit) = unsafe { duration(timeout) }
    {
        // SAFETY: null or valid by the caller's promise.
        let given = unsafe { mask.as_ref() };
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: arguments passed on unchanged, except for a time that lives during the call.
        let now = || unsafe { next::epoll_pwait2(set, events, n, &raw const at_once, mask) };
        if let Some(n) = cancel::without_cancel(|| wait(set, limit, given, now)) {
            return n;
        }
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::epoll_pwait2(set, events, n, timeout, mask) }
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
        let entry = |fd, stream, events| {
            let revents = PollFlags::empty();
            PollDescriptor { fd, stream, listener: None, udp: None, call: None, events, revents }
        };
        let mut entries = vec![entry(set, None, PollFlags::IN)];
        for (fd, handle) in &full {
            entries.push(entry(*fd, Some(handle.stream()), PollFlags::OUT));
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
