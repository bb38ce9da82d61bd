//! `poll` and `ppoll` over accelerated streams and other descriptors alike.

mod many;

use super::alias;
use crate::event_set::{self, PolledEventSet};
use crate::fdtable::datagrams;
use crate::native_peer::listeners;
use crate::native_peer::shared_listener::SharedListener;
use crate::slot::{Direction, Handle};
use crate::{cancel, errno, fdtable, guard, next, rows};
use libc::{c_int, nfds_t, pollfd, sigset_t, size_t, timespec};
use rsock_core::accelerate::{self, PollDescriptor};
use rustix::event::PollFlags;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Calls with up to this many descriptors allocate nothing here.
const FEW: usize = 16;

/// As `poll(2)`.
///
/// # Safety
/// As `poll(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
    let limit = u64::try_from(timeout).ok().map(Duration::from_millis);
    // SAFETY: a caller of `poll` promises `n` entries.
    let concerns_hook = unsafe { has_sockets(fds, n) };
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
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    n: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: a caller of `ppoll` promises `n` entries.
    let concerns_hook = unsafe { has_sockets(fds, n) };
    // SAFETY: null or valid by the caller's promise.
    let limit = unsafe { duration(timeout) }.ok().filter(|_| concerns_hook);
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
#[cfg_attr(not(test), unsafe(no_mangle))]
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
#[cfg_attr(not(test), unsafe(no_mangle))]
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

/// A socket of this library that a descriptor refers to while it is waited for.
pub(super) enum Named {
    Stream(Handle),
    /// Beside a listening socket.
    NativeListener(Arc<SharedListener>),
    /// A UDP socket.
    Datagrams(Handle),
    /// An epoll set, which may watch streams on rings, or may begin to.
    EventSet(PolledEventSet),
}

impl Named {
    /// The socket of `fd`, if any. A stream's direction is the one that `events` ask for.
    pub(super) fn find(fd: c_int, events: PollFlags) -> Option<Self> {
        if fdtable::is_listening(fd) {
            return listeners::of(fd).map(Self::NativeListener);
        }
        if let Some(set) = event_set::find(fd) {
            return Some(Self::EventSet(PolledEventSet { set, fd }));
        }
        if datagrams::is_udp(fd) {
            let handle = datagrams::find(fd, Direction::Recv);
            return handle
                .filter(|h| h.udp().is_some_and(|udp| !udp.is_plain()))
                .map(Self::Datagrams);
        }
        let writes = events.intersects(PollFlags::OUT | PollFlags::WRNORM)
            && !events.intersects(PollFlags::IN | PollFlags::RDNORM);
        fdtable::begin_call(fd, if writes { Direction::Send } else { Direction::Recv })
            .map(Self::Stream)
    }

    /// Whether waiting takes more than the kernel's `poll`.
    pub(super) fn is_needed(&self) -> bool {
        match self {
            Self::Stream(handle) => !handle.stream().is_plain(),
            Self::EventSet(polled) => event_set::needs_library(polled.set),
            Self::NativeListener(_) | Self::Datagrams(_) => true,
        }
    }

    /// The entry to wait for.
    pub(super) fn entry(named: Option<&Self>, fd: c_int, events: PollFlags) -> PollDescriptor<'_> {
        let nothing = PollDescriptor {
            fd,
            stream: None,
            listener: None,
            udp: None,
            set: None,
            call: None,
            is_socket: fdtable::is_known(fd),
            events,
            revents: PollFlags::empty(),
        };
        match named {
            Some(Self::Stream(handle)) => PollDescriptor {
                stream: Some(handle.stream()),
                call: Some(handle.call()),
                ..nothing
            },
            Some(Self::NativeListener(listener)) => {
                PollDescriptor { listener: Some(listener.native()), ..nothing }
            }
            Some(Self::Datagrams(handle)) => {
                PollDescriptor { udp: handle.udp(), call: Some(handle.call()), ..nothing }
            }
            Some(Self::EventSet(set)) => PollDescriptor { set: Some(set), ..nothing },
            None => nothing,
        }
    }
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
pub(super) fn needs_own_poll(fd: c_int) -> bool {
    fdtable::needs_own_poll(fd) || watches_rings(fd)
}

/// Whether an entry refers to a socket of this library, so that the kernel's `poll` may not
/// suffice.
///
/// # Safety
/// `fds` has `n` entries.
unsafe fn has_sockets(fds: *const pollfd, n: nfds_t) -> bool {
    // SAFETY: the caller's promise.
    let fds = unsafe { entries(fds, n) };
    !guard::is_in_core() && fds.is_some_and(|fds| fds.iter().any(|p| needs_own_poll(p.fd)))
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

/// Waits for all entries, if they are many, of which most have nothing to report. `None`: all are to
/// be looked at.
///
/// # Safety
/// As [`poll_all`].
unsafe fn poll_many(
    fds: *mut pollfd,
    n: nfds_t,
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<c_int> {
    let n = usize::try_from(n).ok().filter(|&n| n >= many::MANY)?;
    cancel::without_cancel(|| {
        // SAFETY: as in `poll_all`.
        many::poll(unsafe { slice::from_raw_parts_mut(fds, n) }, limit, mask)
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
    if n <= FEW {
        let mut handles = [const { None }; FEW];
        wait(fds, &mut handles[..n], limit, mask)
    } else {
        let mut handles: Vec<Option<Named>> = Vec::new();
        handles.resize_with(n, || None);
        wait(fds, &mut handles, limit, mask)
    }
}

/// Waits for all entries. `None` if the kernel's `poll` suffices.
pub(super) fn wait(
    fds: &mut [pollfd],
    handles: &mut [Option<Named>],
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Option<c_int> {
    let mut moved = false;
    for (p, handle) in fds.iter().zip(handles.iter_mut()) {
        *handle = Named::find(p.fd, event_flags(p));
        moved |= handle.as_ref().is_some_and(Named::is_needed);
    }
    if !moved {
        return None;
    }
    let result = if fds.len() <= FEW {
        let mut entries: [PollDescriptor<'_>; FEW] = std::array::from_fn(|i| match fds.get(i) {
            Some(p) => entry(p, handles[i].as_ref()),
            None => Named::entry(None, -1, PollFlags::empty()),
        });
        call(fds, &mut entries[..fds.len()], limit, mask)
    } else {
        let mut entries: Vec<PollDescriptor<'_>> =
            fds.iter().zip(handles.iter()).map(|(p, h)| entry(p, h.as_ref())).collect();
        call(fds, &mut entries, limit, mask)
    };
    Some(errno::ret_int(result))
}

fn entry<'a>(p: &pollfd, named: Option<&'a Named>) -> PollDescriptor<'a> {
    Named::entry(named, p.fd, event_flags(p))
}

/// The events that are asked for.
pub(super) fn event_flags(p: &pollfd) -> PollFlags {
    PollFlags::from_bits_retain(p.events.cast_unsigned())
}

fn call(
    fds: &mut [pollfd],
    entries: &mut [PollDescriptor<'_>],
    limit: Option<Duration>,
    mask: Option<&sigset_t>,
) -> Result<usize, c_int> {
    let found = guard::call_core(|| accelerate::poll(entries, limit, mask));
    for (p, entry) in fds.iter_mut().zip(entries.iter()).filter(|_| found != Err(libc::EINVAL)) {
        // The kernel reports none of an interrupted call.
        p.revents = if found.is_ok() { entry.revents.bits().cast_signed() } else { 0 };
    }
    found
}

fn fits(n: nfds_t, room: size_t) -> bool {
    usize::try_from(n).is_ok_and(|n| n <= room / size_of::<pollfd>())
}
