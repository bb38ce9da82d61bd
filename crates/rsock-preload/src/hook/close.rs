//! Hooks of `close`, `closefrom` and `close_range`.

use super::alias;
use crate::{errno, event_set, fdtable, guard, next};
use libc::{c_int, c_uint};
use rsock_verbs::own_fd;

/// As `close(2)`.
///
/// # Safety
/// As `close(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if guard::is_in_core() {
        // Dropping an `OwnedFd` calls this. libc's `close` would be a cancellation point.
        // SAFETY: as the caller of `close` promises.
        unsafe { rustix::io::close(fd) };
        return 0;
    }
    if own_fd::is_own(fd) {
        // A descriptor of this library: to the program it is not open.
        return errno::fail_int(libc::EBADF);
    }
    super::note_closing(fd);
    // SAFETY: arguments passed on unchanged.
    unsafe { next::close(fd) }
}

/// As `closefrom(3)`.
///
/// # Safety
/// As `closefrom(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let first = c_uint::try_from(first).unwrap_or(0);
    let rest = note_closing_range(first, c_uint::MAX, 0);
    let Ok(rest) = c_int::try_from(rest) else { return };
    // SAFETY: closes what the caller asked for, except for this library's own, which lie below.
    unsafe { next::closefrom(rest) };
}

/// As `close_range(2)`.
///
/// # Safety
/// As `close_range(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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
    // SAFETY: closes what the caller asked for, except for this library's own, which lie below.
    unsafe { next::close_range(first, last, flags) }
}

/// Removes the entry of every descriptor in the range, and closes those up to the last one of this
/// library's own. Returns where the rest begins, which is past `last` if nothing remains.
fn note_closing_range(first: c_uint, last: c_uint, flags: c_int) -> c_uint {
    for fd in fdtable::known_fds(first, last) {
        super::note_closing(fd);
    }
    event_set::note_closing_range(first, last);
    let mut rest = first;
    while let Some(own) = own_fd::first_in(rest, last) {
        let own = own.cast_unsigned();
        if rest < own {
            // SAFETY: closes what the caller asked for, short of this library's own.
            unsafe { next::close_range(rest, own - 1, flags) };
        }
        rest = own + 1;
    }
    rest
}

alias! {
    __close = close(fd: c_int) -> c_int;
}
