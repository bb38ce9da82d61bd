//! Hooks of `getsockopt` and `setsockopt`.

use crate::fdtable::datagrams;
use crate::{errno, fdtable, handoff, next, options};
use libc::{c_int, c_void, socklen_t};
use rsock_core::accelerate::{FallbackReason, change_wait_settings};

/// As `getsockopt(2)`, by the kernel. Hands the stream off before an option that receives bytes.
///
/// # Safety
/// As `getsockopt(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    if options::receives_when_asked(level, name) && !hand_off(fd) {
        return -1;
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::getsockopt(fd, level, name, value, len) }
}

/// As `setsockopt(2)`, by the kernel. May pin the stream, and hands it off before an option that
/// concerns its bytes.
///
/// # Safety
/// As `setsockopt(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn setsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: socklen_t,
) -> c_int {
    let number = (!value.is_null() && len as usize >= size_of::<c_int>())
        // SAFETY: long enough for an int, and readable by the caller's promise.
        .then(|| unsafe { value.cast::<c_int>().read_unaligned() });
    let is_datagram = datagrams::is_udp(fd);
    let pins = match is_datagram {
        true => options::pins_datagrams_when_set(level, name, number),
        false => options::pins_when_set(level, name, number),
    };
    if !is_datagram && options::concerns_bytes(level, name, number) {
        if !hand_off(fd) {
            return -1;
        }
    } else if pins {
        fdtable::pin(fd, FallbackReason::Option);
    }
    if is_datagram && (level, name) == (libc::SOL_SOCKET, libc::SO_REUSEADDR) {
        datagrams::note_reuse(fd);
    }
    // SAFETY: arguments passed on unchanged.
    let call = || unsafe { next::setsockopt(fd, level, name, value, len) };
    let is_change = options::is_time_limit(level, name);
    let done = if is_change { change_wait_settings(call) } else { call() };
    if done == 0 && options::is_of_keepalive(level, name) {
        fdtable::follow_keepalive(fd);
    }
    done
}

/// Hands the stream off, so that all its bytes go by the kernel's socket from now on. Sets `errno`
/// where that fails.
fn hand_off(fd: c_int) -> bool {
    match handoff::before_kernel_feature(fd, FallbackReason::Option) {
        Ok(()) => true,
        Err(e) => {
            errno::set(e);
            false
        }
    }
}
