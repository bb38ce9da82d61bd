//! System calls that neither the standard library nor rustix wraps as we need them. Raw, so that
//! nothing here enters a libc symbol that the preload library exports.

use std::io;
use std::time::Duration;

/// `ppoll(2)`: sleeps with `sigmask` in force, `None` as the timeout waits without end.
///
/// # Errors
/// As `ppoll(2)`.
pub(crate) fn ppoll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    /// Size of the kernel's signal set, not libc's.
    const KERNEL_SIGSET: usize = 8;
    let mut limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let limit = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let mask = sigmask.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array is valid for its length; `limit` and `mask` are null or point to live
    // values, and a libc signal set begins with the kernel's eight bytes.
    let n = unsafe {
        libc::syscall(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, mask, KERNEL_SIGSET)
    };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}
