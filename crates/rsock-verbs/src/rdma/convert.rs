//! Converters for the error conventions of libibverbs. Nothing else reads `errno`.
#![forbid(unsafe_code)]

use crate::error::{Error, PostError};
use crate::types::Access;
use rsock_rdma_sys::verbs::ibv_access_flags;
use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;

/// Calls that return 0 or an errno; old ones return -1 and set it.
pub(super) fn zero(call: &'static str, rc: c_int) -> Result<(), Error> {
    match rc {
        0 => Ok(()),
        -1 => Err(Error::Verb { call, source: io::Error::last_os_error() }),
        rc => Err(Error::Verb { call, source: io::Error::from_raw_os_error(rc.abs()) }),
    }
}

/// Calls that return an object, or null and set errno.
pub(super) fn object<T>(call: &'static str, raw: *mut T) -> Result<NonNull<T>, Error> {
    NonNull::new(raw).ok_or_else(|| Error::Verb { call, source: io::Error::last_os_error() })
}

/// Posts: 0 or an errno, of either sign.
#[inline]
pub(super) fn posted(rc: c_int) -> Result<(), PostError> {
    match rc.abs() {
        0 => Ok(()),
        libc::ENOMEM | libc::EAGAIN => Err(PostError::QueueFull),
        _ => Err(PostError::Invalid),
    }
}

/// A number of C's that is never negative.
pub(super) fn count(n: c_int) -> u32 {
    u32::try_from(n).unwrap_or(0)
}

/// A number for C, clamped to the largest value of its type.
pub(super) fn int(n: u32) -> c_int {
    c_int::try_from(n).unwrap_or(c_int::MAX)
}

/// Access rights in C's bits.
pub(super) fn access(access: Access) -> ibv_access_flags {
    let mut bits = 0;
    for (ours, theirs) in [
        (Access::LOCAL_WRITE, ibv_access_flags::IBV_ACCESS_LOCAL_WRITE),
        (Access::REMOTE_WRITE, ibv_access_flags::IBV_ACCESS_REMOTE_WRITE),
    ] {
        if access.contains(ours) {
            bits |= theirs.0;
        }
    }
    ibv_access_flags(bits)
}
