//! Descriptors that programs do not stumble over: high numbers, close-on-exec, closed by the raw
//! system call.

use crate::error::Error;
use rustix::process::{Resource, getrlimit};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

/// An owned descriptor near the top of the descriptor limit.
///
/// # Invariants
/// The descriptor is closed exactly once, in `drop`.
#[derive(Debug)]
pub(super) struct HighFd(ManuallyDrop<OwnedFd>);

/// Never above this, however large the limit is: the kernel's table grows with the number.
const HIGHEST: u64 = 8192;
const SPREAD: u64 = 256;

impl HighFd {
    /// Moves `fd` up. If there is no room above it stays where it is.
    pub(super) fn new(fd: OwnedFd) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(HIGHEST).min(HIGHEST);
        let min = i32::try_from(limit.saturating_sub(SPREAD)).unwrap_or(0);
        match rustix::io::fcntl_dupfd_cloexec(&fd, min) {
            Ok(high) => {
                close(fd);
                Self(ManuallyDrop::new(high))
            }
            Err(_) => Self(ManuallyDrop::new(fd)),
        }
    }
}

impl AsFd for HighFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for HighFd {
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped; nobody uses the field again.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        close(fd);
    }
}

/// Closes without a libc symbol that the preload library exports.
pub(super) fn close(fd: OwnedFd) {
    // SAFETY: the number comes from an owner that gave it up just here.
    unsafe { rustix::io::close(fd.into_raw_fd()) };
}

/// Names the call that failed.
pub(super) fn verb(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |e| Error::Verb { call, source: e.into() }
}
