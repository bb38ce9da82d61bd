//! Descriptors are duplicated, changed and closed.

use super::alias;
use crate::fdtable::datagrams;
use crate::options::{self, Ioctl};
use crate::slot::Side;
use crate::{errno, fdtable, guard, handover, next};
use libc::{c_char, c_int, c_uint, c_ulong, c_void};
use rsock_core::accelerate::{FallbackReason, Need};
use rsock_core::datagram::kernel_udp::AcceleratedUdp;
use rsock_verbs::own_fd;
use rustix::fd::BorrowedFd;
use std::ffi::CStr;

/// The last of standard input, output and error.
const LAST_STANDARD: c_int = 2;

/// As `close(2)`.
///
/// # Safety
/// As `close(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if guard::is_inside() {
        // Dropping an `OwnedFd` comes here. libc's `close` would be a cancellation point.
        // SAFETY: as the caller of `close` promises.
        unsafe { rustix::io::close(fd) };
        return 0;
    }
    if own_fd::is_own(fd) {
        // For all that the program knows, it is not open.
        return errno::fail_int(libc::EBADF);
    }
    fdtable::note_closing(fd);
    // SAFETY: arguments passed on unchanged.
    unsafe { next::close(fd) }
}

/// As `closefrom(3)`.
///
/// # Safety
/// As `closefrom(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    let rest = note_closing_range(first, c_uint::MAX, 0);
    let Ok(rest) = c_int::try_from(rest) else { return };
    // SAFETY: closes what the caller asked for, but for our own, which lie below.
    unsafe { next::closefrom(rest) };
}

/// As `close_range(2)`.
///
/// # Safety
/// As `close_range(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn close_range(
    first: c_uint,
    last: c_uint,
    flags: c_int,
) -> c_int {
    /// The only flag with which the call still closes.
    const CLOSE_RANGE_UNSHARE: c_uint = 2;
    let mut first = first;
    let bits = flags.cast_unsigned();
    if first <= last && bits & !CLOSE_RANGE_UNSHARE == 0 {
        first = note_closing_range(first, last, flags);
        if first > last {
            return 0;
        }
    }
    // SAFETY: closes what the caller asked for, but for our own, which lie below.
    unsafe { next::close_range(first, last, flags) }
}

/// Notes the end of every descriptor in the range, and closes those up to the last of our own.
/// Returns where the rest begins, which is past `last` if nothing remains.
fn note_closing_range(first: c_uint, last: c_uint, flags: c_int) -> c_uint {
    for fd in fdtable::known(first, last) {
        fdtable::note_closing(fd);
    }
    let mut rest = first;
    while let Some(own) = own_fd::first_in(rest, last) {
        let own = own.cast_unsigned();
        if rest < own {
            // SAFETY: closes what the caller asked for, short of our own.
            unsafe { next::close_range(rest, own - 1, flags) };
        }
        rest = own + 1;
    }
    rest
}

/// As `dup(2)`.
///
/// # Safety
/// As `dup(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let new = unsafe { next::dup(fd) };
    note_duplicate(fd, new);
    new
}

/// As `dup2(2)`.
///
/// # Safety
/// As `dup2(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup2(old: c_int, new: c_int) -> c_int {
    if own_fd::is_own(new) {
        return errno::fail_int(libc::EBUSY);
    }
    note_replacing(old, new);
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::dup2(old, new) };
    note_duplicate(old, result);
    result
}

/// As `dup3(2)`.
///
/// # Safety
/// As `dup3(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn dup3(old: c_int, new: c_int, flags: c_int) -> c_int {
    if own_fd::is_own(new) {
        return errno::fail_int(libc::EBUSY);
    }
    if flags & !libc::O_CLOEXEC == 0 {
        note_replacing(old, new);
    }
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::dup3(old, new, flags) };
    note_duplicate(old, result);
    result
}

/// Before `new` is closed by becoming a copy of `old`, if it will.
fn note_replacing(old: c_int, new: c_int) {
    if old == new || old < 0 || guard::is_inside() {
        return;
    }
    // SAFETY: not -1; only asked whether it is open.
    let source = unsafe { BorrowedFd::borrow_raw(old) };
    if rustix::io::fcntl_getfd(source).is_err() {
        return;
    }
    fdtable::note_closing(new);
    if new <= LAST_STANDARD {
        // Usually an exec follows. Before the kernel acts, because after it, the copy could
        // already be used by others.
        fdtable::pin(old, FallbackReason::StandardStream);
    }
}

/// After `old` was copied to `new`, if it was.
fn note_duplicate(old: c_int, new: c_int) {
    if new < 0 || new == old || guard::is_inside() {
        return;
    }
    fdtable::note_duplicate(old, new);
    if new <= LAST_STANDARD {
        // libc's own streams read the first and write to the others.
        let need = if new == 0 { Need::Both } else { Need::Write };
        // Too late to fail. Who execs next will be told.
        let _ = handover::before_use(new, need, FallbackReason::StandardStream);
    }
}

/// As `fcntl(2)`. C passes its third argument, if any, as it would pass a pointer.
///
/// # Safety
/// As `fcntl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: arguments passed on unchanged.
    fcntl_by(fd, command, arg, || unsafe { next::fcntl(fd, command, arg) })
}

/// As `fcntl(2)`.
///
/// # Safety
/// As `fcntl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
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
    let result = call();
    if command == libc::F_SETFL && datagrams::is_one(fd) {
        datagrams::note_flags(fd);
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
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn ioctl(
    fd: c_int,
    request: c_ulong,
    arg: *mut c_void,
) -> c_int {
    if let Some(handle) = fdtable::enter(fd, Side::Recv) {
        let answer = match options::ioctl(request) {
            Ioctl::Readable => Some(guard::enter(|| handle.twin().bytes_readable(handle.fd()))),
            Ioctl::Unsent if !handle.twin().is_plain() => {
                Some(guard::enter(|| handle.twin().bytes_unsent(handle.fd())))
            }
            // Not before what the ring has.
            Ioctl::AtMark if !handle.twin().is_plain() => {
                let is_at_mark = guard::enter(|| Ok(handle.twin().is_at_mark(handle.fd())));
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
                // SAFETY: not null, and room for an int by the promise of who asks this.
                unsafe { arg.cast::<c_int>().write_unaligned(n) };
                return 0;
            }
            // A number reused behind our back, or an error that the kernel has too.
            Some(Err(_)) | None => {}
        }
    }
    let is_datagram = datagrams::is_one(fd);
    if is_datagram && let Some(result) = before_datagram_ioctl(fd, request, arg) {
        return result;
    }
    // SAFETY: arguments passed on unchanged.
    let result = unsafe { next::ioctl(fd, request, arg) };
    if is_datagram && request == libc::FIONBIO {
        datagrams::note_flags(fd);
    }
    result
}

/// What a UDP socket answers for what is in its queue.
fn before_datagram_ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> Option<c_int> {
    match options::ioctl(request) {
        Ioctl::Readable => {
            let handle = datagrams::enter(fd, Side::Recv)?;
            let n = guard::enter(|| Ok(handle.udp().and_then(AcceleratedUdp::bytes_readable)))
                .ok()??;
            if arg.is_null() {
                return Some(errno::fail_int(libc::EFAULT));
            }
            let n = c_int::try_from(n).unwrap_or(c_int::MAX);
            // SAFETY: not null, and room for an int by the promise of who asks this.
            unsafe { arg.cast::<c_int>().write_unaligned(n) };
            return Some(0);
        }
        Ioctl::Unsent | Ioctl::AtMark | Ioctl::Harmless => {}
        Ioctl::Pins => fdtable::pin(fd, FallbackReason::Option),
    }
    None
}

/// As `sockatmark(3)`: libc's own makes its `ioctl` past the hook.
///
/// # Safety
/// As `sockatmark(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn sockatmark(fd: c_int) -> c_int {
    let mut is_at_mark: c_int = 0;
    // SAFETY: the request writes one int, to a live one.
    match unsafe { ioctl(fd, options::SIOCATMARK, (&raw mut is_at_mark).cast()) } {
        0 => is_at_mark,
        error => error,
    }
}

/// As `fdopen(3)`. What libc does inside a stdio stream does not come by us, so whatever lies in the
/// ring, or is still going to, must come out of a socket.
///
/// # Safety
/// As `fdopen(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE {
    // SAFETY: null or a C string by the caller's promise.
    let only_writes = !mode.is_null() && only_writes(unsafe { CStr::from_ptr(mode) });
    let need = if only_writes { Need::Write } else { Need::Both };
    if let Err(e) = handover::before_use(fd, need, FallbackReason::Stdio) {
        errno::set(e);
        return std::ptr::null_mut();
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::fdopen(fd, mode) }
}

/// Whether a stdio stream of this mode never reads.
fn only_writes(mode: &CStr) -> bool {
    matches!(mode.to_bytes(), [b'w' | b'a', rest @ ..] if !rest.contains(&b'+'))
}

/// As `fclose(3)`, which closes its descriptor without calling `close`.
///
/// # Safety
/// As `fclose(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn fclose(file: *mut libc::FILE) -> c_int {
    if !file.is_null() && !guard::is_inside() {
        let saved = errno::read();
        // SAFETY: an open stream by the caller's promise.
        let fd = unsafe { libc::fileno(file) };
        errno::set(saved);
        fdtable::note_closing(fd);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::fclose(file) }
}

alias! {
    __close = close(fd: c_int) -> c_int;
    __dup2 = dup2(old: c_int, new: c_int) -> c_int;
    __fcntl = fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int;
    _IO_fdopen = fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    _IO_fclose = fclose(file: *mut libc::FILE) -> c_int;
}
