//! Descriptors that a message passes to another process.

use crate::{arg, handoff};
use libc::{c_int, c_void, cmsghdr, msghdr};
use rsock_core::accelerate::FallbackReason;

/// Headers begin at multiples of this, and so do their data.
const ALIGN: usize = size_of::<usize>();
const HEADER_LEN: usize = size_of::<cmsghdr>().next_multiple_of(ALIGN);

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
    let mut rest = Control { at: given.msg_control, len: given.msg_controllen };
    if rest.at.is_null() {
        return Ok(());
    }
    // SAFETY: control data that the program has the kernel read.
    while let Some((header, data)) = unsafe { rest.next() } {
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: part of the control data.
            unsafe { hand_off_all(&data) }?;
        }
    }
    Ok(())
}

/// Control data of a program, which may have unmapped it.
struct Control {
    at: *const c_void,
    len: usize,
}

impl Control {
    /// Removes the first header, and returns it with its data. `None` at the end, and where the
    /// kernel refuses the message.
    ///
    /// # Safety
    /// Memory that the program has the kernel read.
    unsafe fn next(&mut self) -> Option<(cmsghdr, Self)> {
        if self.len < size_of::<cmsghdr>() {
            return None;
        }
        // SAFETY: the caller's promise; integers.
        let header = unsafe { arg::load(self.at.cast::<cmsghdr>()) }.ok()?;
        if !(size_of::<cmsghdr>()..=self.len).contains(&header.cmsg_len) {
            return None;
        }
        let at = self.at.wrapping_byte_add(HEADER_LEN);
        let data = Self { at, len: header.cmsg_len.saturating_sub(HEADER_LEN) };
        // INVARIANT: no longer than the control data, so the sum is that of a program's memory.
        let whole = header.cmsg_len.next_multiple_of(ALIGN);
        self.at = self.at.wrapping_byte_add(whole);
        self.len = self.len.saturating_sub(whole);
        Some((header, data))
    }
}

/// Hands off the streams of the descriptors in `data`.
///
/// # Safety
/// Memory that the program has the kernel read.
unsafe fn hand_off_all(data: &Control) -> Result<(), c_int> {
    for i in 0..data.len / size_of::<c_int>() {
        let at = data.at.cast::<c_int>().wrapping_add(i);
        // SAFETY: the caller's promise; an integer. The kernel's call fails where there is none.
        let Ok(fd) = (unsafe { arg::load(at) }) else { return Ok(()) };
        handoff::before_unhooked_use_of_any(fd, FallbackReason::Passed)?;
    }
    Ok(())
}
