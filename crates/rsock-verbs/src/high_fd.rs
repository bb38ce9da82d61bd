//! Descriptors that programs do not stumble over: high numbers, close-on-exec, closed by the raw
//! system call.

use crate::error::Error;
use crate::own_fd;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An owned descriptor near the top of the descriptor limit.
///
/// # Invariants
/// The descriptor is closed exactly once, in `drop`.
#[derive(Debug)]
pub struct HighFd(ManuallyDrop<OwnedFd>);

impl HighFd {
    /// Moves `fd` up. If there is no room above it stays where it is.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self(ManuallyDrop::new(own_fd::raise(fd)))
    }
}

impl AsFd for HighFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for HighFd {
    fn drop(&mut self) {
        // SAFETY: `self` is being dropped; the field is not used again.
        let fd = unsafe { ManuallyDrop::take(&mut self.0) };
        own_fd::close(fd);
    }
}

/// Names the call that failed.
pub(crate) fn verb(call: &'static str) -> impl FnOnce(rustix::io::Errno) -> Error {
    move |e| Error::Verb { call, source: e.into() }
}
