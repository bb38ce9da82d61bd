//! Hooks of functions that start other programs, which inherit descriptors.

use super::alias;
use crate::slot::Direction;
use crate::{errno, event_set, fdtable, handoff, next};
use libc::{c_char, c_int, pid_t, posix_spawn_file_actions_t, posix_spawnattr_t};
use rsock_core::accelerate::FallbackReason;

/// As `posix_spawn_file_actions_adddup2(3)`. libc duplicates the descriptor later without calling
/// `dup2`.
///
/// # Safety
/// As `posix_spawn_file_actions_adddup2(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn posix_spawn_file_actions_adddup2(
    actions: *mut posix_spawn_file_actions_t,
    fd: c_int,
    new: c_int,
) -> c_int {
    if fdtable::is_known(fd) {
        fdtable::pin(fd, FallbackReason::Passed);
        if let Some(handle) = fdtable::find(fd, Direction::Send) {
            // When the program starts, `before_spawn` sees to the bytes on the ring.
            handle.mark_for_child();
        }
    }
    if let Some(set) = event_set::find(fd)
        && let Err(e) = handoff::before_unhooked_wait(set, FallbackReason::Passed)
    {
        return e;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::posix_spawn_file_actions_adddup2(actions, fd, new) }
}

/// As `posix_spawn(3)`.
///
/// # Safety
/// As `posix_spawn(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn posix_spawn(
    pid: *mut pid_t,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    if let Err(e) = handoff::before_spawn() {
        return e;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::posix_spawn(pid, path, actions, attributes, argv, envp) }
}

/// As `posix_spawnp(3)`.
///
/// # Safety
/// As `posix_spawnp(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn posix_spawnp(
    pid: *mut pid_t,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    if let Err(e) = handoff::before_spawn() {
        return e;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::posix_spawnp(pid, file, actions, attributes, argv, envp) }
}

/// As `pidfd_spawn(3)` of libc 2.39.
///
/// # Safety
/// As `pidfd_spawn(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pidfd_spawn(
    pidfd: *mut c_int,
    path: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    if let Err(e) = handoff::before_spawn() {
        return e;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::pidfd_spawn(pidfd, path, actions, attributes, argv, envp) }
}

/// As `pidfd_spawnp(3)` of libc 2.39.
///
/// # Safety
/// As `pidfd_spawnp(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn pidfd_spawnp(
    pidfd: *mut c_int,
    file: *const c_char,
    actions: *const posix_spawn_file_actions_t,
    attributes: *const posix_spawnattr_t,
    argv: *const *mut c_char,
    envp: *const *mut c_char,
) -> c_int {
    if let Err(e) = handoff::before_spawn() {
        return e;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::pidfd_spawnp(pidfd, file, actions, attributes, argv, envp) }
}

/// As `system(3)`.
///
/// # Safety
/// As `system(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    if !command.is_null()
        && let Err(e) = handoff::before_spawn()
    {
        return errno::fail_int(e);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::system(command) }
}

/// As `popen(3)`.
///
/// # Safety
/// As `popen(3)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn popen(
    command: *const c_char,
    mode: *const c_char,
) -> *mut libc::FILE {
    if let Err(e) = handoff::before_spawn() {
        errno::set(e);
        return std::ptr::null_mut();
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::popen(command, mode) }
}

alias! {
    _IO_popen = popen(command: *const c_char, mode: *const c_char) -> *mut libc::FILE;
}
