//! Hooks of `execve` and its variants: the process becomes another program.
//!
//! libc's variants do not call each other by name, so each is hooked. A call that cannot succeed,
//! because there is no such program, goes straight to libc: shells try one directory after the
//! other.

use super::detour::detour;
use crate::handoff::Ready;
use crate::{errno, handoff, next, tcp_only};
use libc::{c_char, c_int, c_void};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::ffi::CStr;

/// As `execve(2)`.
///
/// # Safety
/// As `execve(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn execve(
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: a C string by the caller's promise.
    let _ready = match unsafe { before(path) } {
        Ok(ready) => ready,
        Err(e) => return errno::fail_int(e),
    };
    // SAFETY: arguments passed on unchanged.
    unsafe { next::execve(path, argv, envp) }
}

/// As `execv(3)`.
///
/// # Safety
/// As `execv(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn execv(
    path: *const c_char,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: a C string by the caller's promise.
    let _ready = match unsafe { before(path) } {
        Ok(ready) => ready,
        Err(e) => return errno::fail_int(e),
    };
    // SAFETY: arguments passed on unchanged.
    unsafe { next::execv(path, argv) }
}

/// As `execvp(3)`.
///
/// # Safety
/// As `execvp(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn execvp(
    file: *const c_char,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: a C string by the caller's promise.
    let _ready = match unsafe { before_search(file) } {
        Ok(ready) => ready,
        Err(e) => return errno::fail_int(e),
    };
    // SAFETY: arguments passed on unchanged.
    unsafe { next::execvp(file, argv) }
}

/// As `execvpe(3)`.
///
/// # Safety
/// As `execvpe(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn execvpe(
    file: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    // SAFETY: a C string by the caller's promise.
    let _ready = match unsafe { before_search(file) } {
        Ok(ready) => ready,
        Err(e) => return errno::fail_int(e),
    };
    // SAFETY: arguments passed on unchanged.
    unsafe { next::execvpe(file, argv, envp) }
}

/// As `fexecve(3)`.
///
/// # Safety
/// As `fexecve(3)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn fexecve(
    fd: c_int,
    argv: *const *const c_char,
    envp: *const *const c_char,
) -> c_int {
    let _ready = match handoff::before_exec() {
        Ok(ready) => ready,
        Err(e) => return errno::fail_int(e),
    };
    // SAFETY: arguments passed on unchanged.
    unsafe { next::fexecve(fd, argv, envp) }
}

/// As `execveat(2)`.
///
/// # Safety
/// As `execveat(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn execveat(
    dir: c_int,
    path: *const c_char,
    argv: *const *const c_char,
    envp: *const *const c_char,
    flags: c_int,
) -> c_int {
    let _ready = match handoff::before_exec() {
        Ok(ready) => ready,
        Err(e) => return errno::fail_int(e),
    };
    // SAFETY: arguments passed on unchanged.
    unsafe { next::execveat(dir, path, argv, envp, flags) }
}

/// As `execl(3)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn execl() {
    detour!(before_execl)
}

/// As `execle(3)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn execle() {
    detour!(before_execle)
}

/// As `execlp(3)`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
#[unsafe(naked)]
pub(crate) extern "C" fn execlp() {
    detour!(before_execlp)
}

/// Hands off streams before an `execl`; returns the address to continue at.
extern "C" fn before_execl(path: *const c_char) -> *mut c_void {
    // SAFETY: a caller of `execl` promises a C string.
    go_on(unsafe { before(path) }, next::address::execl)
}

/// As [`before_execl`], for `execle`.
extern "C" fn before_execle(path: *const c_char) -> *mut c_void {
    // SAFETY: a caller of `execle` promises a C string.
    go_on(unsafe { before(path) }, next::address::execle)
}

/// As [`before_execl`], for `execlp`.
extern "C" fn before_execlp(file: *const c_char) -> *mut c_void {
    // SAFETY: a caller of `execlp` promises a C string.
    go_on(unsafe { before_search(file) }, next::address::execlp)
}

fn go_on(ready: Result<Ready, c_int>, next: fn() -> *mut c_void) -> *mut c_void {
    match ready {
        Ok(ready) => {
            // No code of this library runs after libc's function. If that fails, streams stay on
            // TCP.
            std::mem::forget(ready);
            next()
        }
        Err(e) => {
            errno::set(e);
            refuse as *mut c_void
        }
    }
}

/// Runs in place of libc's function where bytes would be lost.
extern "C" fn refuse() -> c_int {
    -1
}

/// Hands off streams before the program at `path` replaces this one, if there is such a program.
///
/// # Safety
/// Null or a C string.
unsafe fn before(path: *const c_char) -> Result<Ready, c_int> {
    if path.is_null() || tcp_only::is_sandboxed() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    if is_program(path) { handoff::before_exec() } else { Ok(None) }
}

/// As [`before`], for a program that is searched for in `PATH`.
///
/// # Safety
/// As [`before`].
unsafe fn before_search(file: *const c_char) -> Result<Ready, c_int> {
    if file.is_null() || tcp_only::is_sandboxed() {
        return Ok(None);
    }
    // SAFETY: the caller's promise.
    let file = unsafe { CStr::from_ptr(file) };
    if is_found(file) { handoff::before_exec() } else { Ok(None) }
}

/// Whether there is such a program; true where that cannot be determined.
fn is_program(path: &CStr) -> bool {
    let access = accessat(CWD, path, Access::EXEC_OK, AtFlags::EACCESS);
    !matches!(
        access,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS | Errno::LOOP | Errno::NAMETOOLONG)
    )
}

/// Whether a directory of `PATH` has such a program; true where that cannot be determined.
fn is_found(file: &CStr) -> bool {
    let name = file.to_bytes();
    if name.contains(&b'/') {
        return is_program(file);
    }
    // SAFETY: the name is a C string; a program does not change its environment while it execs.
    let dirs = unsafe { libc::getenv(c"PATH".as_ptr()) };
    if dirs.is_null() {
        return true;
    }
    // SAFETY: a value of the environment is a C string.
    let dirs = unsafe { CStr::from_ptr(dirs) };
    dirs.to_bytes().split(|&b| b == b':').any(|dir| {
        let mut path = [0u8; libc::PATH_MAX as usize];
        let len = dir.len() + 1 + name.len();
        if len >= path.len() {
            return true;
        }
        path[..dir.len()].copy_from_slice(dir);
        // An empty entry is the current directory.
        path[dir.len()] = b'/';
        path[dir.len() + 1..len].copy_from_slice(name);
        let start = usize::from(dir.is_empty());
        CStr::from_bytes_until_nul(&path[start..]).is_ok_and(is_program)
    })
}
