//! The hook of `prctl`: the process may restrict its own system calls.

use crate::{errno, next, process_handoff};
use libc::{c_int, c_ulong};

/// As `prctl(2)`. C passes the arguments after the first as words, however many there are.
///
/// # Safety
/// As `prctl(2)`. Arguments that the caller did not pass are arbitrary and not used: on x86-64 and
/// aarch64 all five lie in registers.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn prctl(
    option: c_int,
    a: c_ulong,
    b: c_ulong,
    c: c_ulong,
    d: c_ulong,
) -> c_int {
    if restricts_by_prctl(option, a, b)
        && let Err(e) = process_handoff::before_sandbox()
    {
        return errno::fail_int(e);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::prctl(option, a, b, c, d) }
}

/// Whether such a `prctl` restricts system calls. Without a filter it only asks for the mode.
pub(super) fn restricts_by_prctl(option: c_int, mode: c_ulong, filter: c_ulong) -> bool {
    option == libc::PR_SET_SECCOMP
        && (mode == c_ulong::from(libc::SECCOMP_MODE_STRICT)
            || mode == c_ulong::from(libc::SECCOMP_MODE_FILTER) && filter != 0)
}

/// Whether such a `seccomp(2)` restricts system calls.
pub(super) fn restricts_by_seccomp(operation: c_ulong, filter: c_ulong) -> bool {
    operation == c_ulong::from(libc::SECCOMP_SET_MODE_STRICT)
        || operation == c_ulong::from(libc::SECCOMP_SET_MODE_FILTER) && filter != 0
}
