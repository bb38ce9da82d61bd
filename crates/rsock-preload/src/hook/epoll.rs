//! epoll: in this step a stream that enters a set stays on TCP, so that the set is the kernel's.

use crate::{fdtable, next};
use libc::{c_int, epoll_event};
use rsock_core::twin::PinReason;

/// As `epoll_ctl(2)`.
///
/// # Safety
/// As `epoll_ctl(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn epoll_ctl(
    set: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if op == libc::EPOLL_CTL_ADD {
        fdtable::pin(fd, PinReason::Epoll);
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::epoll_ctl(set, op, fd, event) }
}
