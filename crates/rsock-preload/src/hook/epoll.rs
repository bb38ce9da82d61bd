//! epoll: in this step a stream that enters a set goes back to TCP, so that the set is the kernel's.
//! While bytes may still come on the ring, a doorbell stands in for it in the set.

use crate::slot::Side;
use crate::{errno, fdtable, guard, next};
use libc::{c_int, epoll_event};
use rsock_core::twin::PinReason;
use rustix::fd::RawFd;

/// What a stand-in shows of what was asked for: it is always writable, which says nothing.
const SHOWN: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLET | libc::EPOLLONESHOT).cast_unsigned();

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
    let result = unsafe { next::epoll_ctl(set, op, fd, event) };
    if result == 0
        && let Some(stand_in) = stand_in(fd)
    {
        let before = errno::read();
        // A deletion does not look at its event, which may be anything.
        let event = if op == libc::EPOLL_CTL_DEL { std::ptr::null() } else { event.cast_const() };
        // SAFETY: null, or read by the call before this one.
        let asked = unsafe { event.as_ref() };
        let mut event = asked.map(|e| epoll_event { events: e.events & SHOWN, u64: e.u64 });
        let event = event.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
        // The stand-in follows its stream. Where it is in the set already, or not yet, this fails
        // and nothing is lost.
        // SAFETY: `event` is null or points to a live value.
        unsafe { next::epoll_ctl(set, op, stand_in, event) };
        errno::set(before);
    }
    result
}

/// The descriptor that shows what the kernel's socket does not, if there is such a thing.
fn stand_in(fd: c_int) -> Option<RawFd> {
    let handle = fdtable::enter(fd, Side::Recv)?;
    guard::enter(|| Ok(handle.twin().stand_in(handle.fd()))).ok().flatten()
}
