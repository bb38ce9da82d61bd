//! Descriptors that a message passes to another process.

use crate::{event_set, handoff};
use libc::{c_int, msghdr};
use rsock_core::accelerate::{FallbackReason, Need};
use std::ptr;

/// Hands off the streams whose descriptors the message passes to another process, also in epoll
/// sets.
///
/// # Errors
/// Of [`handoff::before_unhooked_use`].
///
/// # Safety
/// `msg` is null or a valid message to send.
pub(super) unsafe fn before_passing(msg: *const msghdr) -> Result<(), c_int> {
    // SAFETY: null or valid by the caller's promise.
    let Some(given) = (unsafe { msg.as_ref() }) else { return Ok(()) };
    let (control, len) = (given.msg_control, given.msg_controllen);
    if control.is_null() || len < size_of::<libc::cmsghdr>() {
        return Ok(());
    }
    // SAFETY: a valid message with control data.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(msg) };
    while !at.is_null() {
        // SAFETY: inside the control data; copied, because it need not be aligned.
        let header = unsafe { ptr::read_unaligned(at) };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            let header_len = size_of::<libc::cmsghdr>();
            let n = header.cmsg_len.min(len).saturating_sub(header_len) / size_of::<c_int>();
            // SAFETY: the data of a header inside the control data.
            let data = unsafe { libc::CMSG_DATA(at) };
            for i in 0..n {
                // SAFETY: `n` is what the length of the data says.
                let fd = unsafe { data.add(i * size_of::<c_int>()) };
                // SAFETY: as above; unaligned reads are what this call is for.
                let fd = unsafe { fd.cast::<c_int>().read_unaligned() };
                match event_set::find(fd) {
                    Some(set) => handoff::before_unhooked_wait(set, FallbackReason::Passed)?,
                    None => {
                        handoff::before_unhooked_use(fd, Need::Both, FallbackReason::Passed)?;
                    }
                }
            }
        }
        // SAFETY: a header of this message.
        at = unsafe { libc::CMSG_NXTHDR(msg, at) };
    }
    Ok(())
}
