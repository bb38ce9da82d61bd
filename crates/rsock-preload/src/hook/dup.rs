//! Hooks of `dup`, `dup2`, `dup3` and `pidfd_getfd`.

use super::alias;
use crate::fdtable::LAST_STANDARD;
use crate::room::with_room;
use crate::{errno, event_set, fdtable, guard, handoff, next};
use libc::{c_int, c_uint};
use rsock_core::accelerate::{FallbackReason, Need, socket_inode};
use rsock_verbs::own_fd;
use rustix::fd::BorrowedFd;

/// As `dup(2)`.
///
/// # Safety
/// As `dup(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let new = with_room(|| unsafe { next::dup(fd) });
    note_duplicate(fd, new);
    new
}

/// As `dup2(2)`.
///
/// # Safety
/// As `dup2(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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

/// Whether both numbers name the same stream or epoll set, so that a copy changes nothing.
fn names_same(old: c_int, new: c_int) -> bool {
    let is_same_stream = fdtable::key(old).is_some_and(|key| fdtable::key(new) == Some(key));
    let set = || event_set::find(old).zip(event_set::find(new));
    is_same_stream || set().is_some_and(|(old, new)| std::ptr::eq(old, new))
}

/// To be called before `new` is replaced by a copy of `old`; does nothing if the kernel would
/// refuse.
fn note_replacing(old: c_int, new: c_int) {
    if old == new || old < 0 || guard::is_in_core() || names_same(old, new) {
        return;
    }
    // SAFETY: not -1; only asked whether it is open.
    let source = unsafe { BorrowedFd::borrow_raw(old) };
    if rustix::io::fcntl_getfd(source).is_err() {
        return;
    }
    super::note_closing(new);
    if new <= LAST_STANDARD {
        // Usually an exec follows. Done before the kernel's `dup2`, because other threads may use
        // the copy at once after it.
        fdtable::pin(old, FallbackReason::StandardStream);
    }
}

/// To be called after `old` was copied to `new`; does nothing if that failed.
pub(super) fn note_duplicate(old: c_int, new: c_int) {
    if new < 0 || new == old || guard::is_in_core() || names_same(old, new) {
        return;
    }
    fdtable::note_duplicate(old, new);
    event_set::note_duplicate(old, new);
    if new <= LAST_STANDARD {
        // libc's own streams read the first and write to the others.
        let need = if new == 0 { Need::Both } else { Need::Write };
        // Too late to fail the call. A later exec reports the error.
        let _ = handoff::before_unhooked_use(new, need, FallbackReason::StandardStream);
    }
}

/// As `pidfd_getfd(2)`.
///
/// # Safety
/// As `pidfd_getfd(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn pidfd_getfd(
    pidfd: c_int,
    fd: c_int,
    flags: c_uint,
) -> c_int {
    // SAFETY: arguments passed on unchanged.
    let new = unsafe { next::pidfd_getfd(pidfd, fd, flags) };
    note_fetched(new);
    new
}

/// `new` was taken from another process, or from this one: then it may refer to a socket of the
/// table.
pub(super) fn note_fetched(new: c_int) {
    if new < 0 {
        return;
    }
    // SAFETY: not negative, and the program's own.
    let inode = |fd| socket_inode(unsafe { BorrowedFd::borrow_raw(fd) });
    let Some(wanted) = inode(new) else { return };
    let is_same = |&fd: &c_int| fd != new && inode(fd) == Some(wanted);
    match fdtable::known_fds(0, u32::MAX).find(is_same) {
        Some(old) => fdtable::note_duplicate(old, new),
        None => fdtable::note_made(new),
    }
}

alias! {
    __dup2 = dup2(old: c_int, new: c_int) -> c_int;
}
