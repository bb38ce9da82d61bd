//! Options and flags.

use crate::errno::{error, ret_int, ret_unit};
use crate::{arg, table};
use libc::{c_int, c_long, c_void, socklen_t};
use std::sync::atomic::Ordering;

/// As `setsockopt(2)`; also takes the options of level `SOL_RDMA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    ret_unit(|| {
        let entry = table::get(fd)?;
        // SAFETY: the caller of `setsockopt(2)` promises `len` readable bytes.
        let value = unsafe { arg::bytes(value, len as usize) }?;
        entry.socket.set_option(level, name, value)
    })
}

/// As `getsockopt(2)`; also reads the options of level `SOL_RDMA`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rgetsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    ret_unit(|| {
        let entry = table::get(fd)?;
        if value.is_null() || len.is_null() {
            return error(libc::EFAULT);
        }
        // SAFETY: not null, and the caller of `getsockopt(2)` promises a readable length.
        let room = unsafe { len.read() } as usize;
        let found = entry.socket.option(level, name, room)?;
        // SAFETY: the caller of `getsockopt(2)` promises room for what `len` says.
        unsafe { arg::put_value(value, len, &found) }
    })
}

/// As `fcntl(2)` for `F_GETFL`, `F_SETFL` (only `O_NONBLOCK` has an effect), `F_GETFD` and
/// `F_SETFD`; other commands are `ENOTSUP`.
///
/// C declares this variadic. On Linux's architectures an integer argument is passed the same way in
/// both forms, and commands without one never read it.
#[unsafe(no_mangle)]
pub extern "C" fn rfcntl(fd: c_int, cmd: c_int, arg: c_long) -> c_int {
    ret_int(|| {
        let entry = table::get(fd)?;
        let has = |flag: c_int| arg & c_long::from(flag) != 0;
        match cmd {
            libc::F_GETFL if entry.socket.is_nonblocking() => Ok(libc::O_RDWR | libc::O_NONBLOCK),
            libc::F_GETFL => Ok(libc::O_RDWR),
            libc::F_SETFL => {
                entry.socket.set_nonblocking(has(libc::O_NONBLOCK));
                Ok(0)
            }
            libc::F_GETFD if entry.close_on_exec.load(Ordering::Relaxed) => Ok(libc::FD_CLOEXEC),
            libc::F_GETFD => Ok(0),
            libc::F_SETFD => {
                entry.close_on_exec.store(has(libc::FD_CLOEXEC), Ordering::Relaxed);
                Ok(0)
            }
            _ => error(libc::ENOTSUP),
        }
    })
}
