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
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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

/// Declares hooks of functions that start a program beside this one. They return the error.
macro_rules! hooks {
    ($($name:ident ($started:ident: *mut $number:ty);)*) => {
        $(
            /// As the function of libc of that name.
            ///
            /// # Safety
            /// As the function of libc.
            #[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
            pub(crate) unsafe extern "C-unwind" fn $name(
                $started: *mut $number,
                program: *const c_char,
                actions: *const posix_spawn_file_actions_t,
                attributes: *const posix_spawnattr_t,
                argv: *const *mut c_char,
                envp: *const *mut c_char,
            ) -> c_int {
                if let Err(e) = handoff::before_spawn() {
                    return e;
                }
                // SAFETY: arguments passed on unchanged.
                unsafe { next::$name($started, program, actions, attributes, argv, envp) }
            }
        )*
    };
}

hooks! {
    posix_spawn(pid: *mut pid_t);
    posix_spawnp(pid: *mut pid_t);
    pidfd_spawn(pidfd: *mut c_int);
    pidfd_spawnp(pidfd: *mut c_int);
}

/// As `system(3)`.
///
/// # Safety
/// As `system(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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
