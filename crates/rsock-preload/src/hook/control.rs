//! `fcntl`, `ioctl` and `sockatmark`.

use super::alias;
use super::dup::note_duplicate;
use crate::fdtable::datagrams;
use crate::options::{self, Ioctl};
use crate::slot::Direction;
use crate::{errno, fdtable, guard, handoff, next};
use libc::{c_int, c_ulong, c_void};
use rsock_core::accelerate::{FallbackReason, Need, change_wait_settings};
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use rsock_verbs::raw::SIOCATMARK;

/// As `fcntl(2)`. C passes its third argument, if any, as it would pass a pointer.
///
/// # Safety
/// As `fcntl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: arguments passed on unchanged.
    fcntl_by(fd, command, arg, || unsafe { next::fcntl(fd, command, arg) })
}

/// As `fcntl(2)`.
///
/// # Safety
/// As `fcntl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn fcntl64(
    fd: c_int,
    command: c_int,
    arg: *mut c_void,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    fcntl_by(fd, command, arg, || unsafe { next::fcntl64(fd, command, arg) })
}

/// As `fcntl`, which `call` makes.
pub(super) fn fcntl_by(
    fd: c_int,
    command: c_int,
    arg: *mut c_void,
    call: impl FnOnce() -> c_int,
) -> c_int {
    #[expect(clippy::cast_possible_truncation, reason = "C passed an int in a wider register")]
    let number = arg.addr() as c_int;
    if options::pins_by_fcntl(command, number) {
        fdtable::pin(fd, FallbackReason::Option);
    }
    let is_change = command == libc::F_SETFL;
    let result = if is_change { change_wait_settings(call) } else { call() };
    if is_change && datagrams::is_udp(fd) {
        datagrams::note_flags(fd);
    }
    if command == libc::F_SETFD && result == 0 && number & libc::FD_CLOEXEC == 0 {
        fdtable::note_meant(fd);
    }
    if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) {
        note_duplicate(fd, result);
    }
    result
}

/// As `ioctl(2)`.
///
/// # Safety
/// As `ioctl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: c_ulong,
    arg: *mut c_void,
) -> c_int {
    if let Some(socket) = options::socket_given_by_ioctl(request, arg.addr())
        && let Err(e) = handoff::before_unhooked_use(socket, Need::Both, FallbackReason::Passed)
    {
        return errno::fail_int(e);
    }
    if let Some(handle) = fdtable::begin_call(fd, Direction::Recv) {
        let answer = match options::ioctl(request) {
            Ioctl::Readable => {
                Some(guard::call_core(|| handle.stream().bytes_readable(handle.fd())))
            }
            Ioctl::Unsent if !handle.stream().is_plain() => {
                Some(guard::call_core(|| handle.stream().bytes_unsent(handle.fd())))
            }
            // The mark lies behind the bytes on the ring.
            Ioctl::AtMark if !handle.stream().is_plain() => {
                let is_at_mark = guard::call_core(|| Ok(handle.stream().is_at_mark(handle.fd())));
                Some(is_at_mark.map(usize::from))
            }
            Ioctl::Unsent | Ioctl::AtMark | Ioctl::Harmless => None,
            Ioctl::Pins => {
                drop(handle);
                fdtable::pin(fd, FallbackReason::Option);
                None
            }
        };
        match answer {
            Some(Ok(_)) if arg.is_null() => return errno::fail_int(libc::EFAULT),
            Some(Ok(n)) => {
                let n = c_int::try_from(n).unwrap_or(c_int::MAX);
                // SAFETY: not null, and room for an int by the promise of a caller of this request.
                unsafe { arg.cast::<c_int>().write_unaligned(n) };
                return 0;
            }
            // The number was reused without a hook, or the kernel reports the same error.
            Some(Err(_)) | None => {}
        }
    }
    let is_datagram = datagrams::is_udp(fd);
    if is_datagram && let Some(result) = before_datagram_ioctl(fd, request, arg) {
        return result;
    }
    // SAFETY: arguments passed on unchanged.
    let call = || unsafe { next::ioctl(fd, request, arg) };
    let is_change = request == libc::FIONBIO;
    let result = if is_change { change_wait_settings(call) } else { call() };
    if is_change && is_datagram {
        datagrams::note_flags(fd);
    }
    if request == libc::FIONCLEX && result == 0 {
        fdtable::note_meant(fd);
    }
    if request == libc::FIOASYNC && result == 0 {
        // SAFETY: the kernel has read an int there.
        let is_on = unsafe { arg.cast::<c_int>().read_unaligned() } != 0;
        if is_on {
            // Also a socket that is not connected yet, of which there is no handle above.
            fdtable::pin(fd, FallbackReason::Option);
        }
    }
    result
}

/// Answers for the datagrams in the queue of a UDP socket.
fn before_datagram_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> Option<c_int> {
    match options::ioctl(request) {
        Ioctl::Readable => {
            let handle = datagrams::begin_call(fd, Direction::Recv)?;
            let readable = |udp: &AcceleratedUdp| udp.bytes_readable(handle.fd());
            let n = guard::call_core(|| Ok(handle.udp().and_then(readable))).ok()??;
            if arg.is_null() {
                return Some(errno::fail_int(libc::EFAULT));
            }
            let n = c_int::try_from(n).unwrap_or(c_int::MAX);
            // SAFETY: not null, and room for an int by the promise of a caller of this request.
            unsafe { arg.cast::<c_int>().write_unaligned(n) };
            return Some(0);
        }
        Ioctl::Unsent | Ioctl::AtMark | Ioctl::Harmless => {}
        Ioctl::Pins => fdtable::pin(fd, FallbackReason::Option),
    }
    None
}

/// As `sockatmark(3)`: libc's own function makes its `ioctl` without calling the hook.
///
/// # Safety
/// As `sockatmark(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut is_at_mark: c_int = 0;
    // SAFETY: the request writes one int, to a live one.
    match unsafe { ioctl(fd, SIOCATMARK, (&raw mut is_at_mark).cast()) } {
        0 => is_at_mark,
        error => error,
    }
}

alias! {
    __fcntl = fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int;
}
