//! Hooks of `accept` and `accept4`, for connections of the kernel and of peers without TCP.

use crate::native_peer::accept::{self as native, Accepted};
use crate::room::with_room;
use crate::{arg, cancel, fdtable, guard, log, next};
use libc::{c_int, sockaddr, socklen_t};

/// As `accept(2)`.
///
/// # Safety
/// As `accept(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn accept(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
) -> c_int {
    if fdtable::is_listening(fd)
        && let Some(new) = cancel::without_cancel(|| {
            // SAFETY: arguments passed on, with another descriptor of the same socket.
            let kernel = |fd| with_room(|| unsafe { next::accept(fd, addr, len) });
            // SAFETY: the promise of a caller of `accept`.
            unsafe { accept_any(fd, addr, len, 0, kernel) }
        })
    {
        return new;
    }
    // SAFETY: arguments passed on unchanged.
    let new = with_room(|| unsafe { next::accept(fd, addr, len) });
    note_accepted(fd, new);
    new
}

/// As `accept4(2)`.
///
/// # Safety
/// As `accept4(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    if fdtable::is_listening(fd)
        && flags & !(libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC) == 0
        && let Some(new) = cancel::without_cancel(|| {
            // SAFETY: arguments passed on, with another descriptor of the same socket.
            let kernel = |fd| with_room(|| unsafe { next::accept4(fd, addr, len, flags) });
            // SAFETY: the promise of a caller of `accept4`.
            unsafe { accept_any(fd, addr, len, flags, kernel) }
        })
    {
        return new;
    }
    // SAFETY: arguments passed on unchanged.
    let new = with_room(|| unsafe { next::accept4(fd, addr, len, flags) });
    note_accepted(fd, new);
    new
}

/// As `accept` on a listening socket that may have a native listener, where `kernel` accepts from
/// the kernel's queue. `None` if there is no native listener.
///
/// # Safety
/// As `accept(2)`.
unsafe fn accept_any(
    fd: c_int,
    addr: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
    kernel: impl Fn(c_int) -> c_int,
) -> Option<c_int> {
    let accepted = native::accept(fd, flags, kernel)?;
    match accepted {
        Accepted::Kernel(new) => note_accepted(fd, new),
        Accepted::Native(new, peer) => {
            log::line(format_args!("fd {new}: accepted on {fd}, from {peer} without TCP"));
            if !addr.is_null() && !len.is_null() {
                // SAFETY: not null, so valid by the caller's promise.
                unsafe { arg::put_address(peer, addr, len) };
            }
        }
        Accepted::Failed(_) => {}
    }
    Some(accepted.answer())
}

fn note_accepted(listener: c_int, new: c_int) {
    if new >= 0 && !guard::is_in_core() {
        fdtable::note_accepted(listener, new);
        log::line(format_args!("fd {new}: accepted on {listener}"));
    }
}
