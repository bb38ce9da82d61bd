//! Descriptors of ours that the runtime watches: the one place with unsafe code in this crate.
//!
//! The runtime's registration takes a raw number and trusts that it stays the same open descriptor.
//! Only types that own their descriptor and never change it may come here; hence [`Owner`] is
//! closed.

#![allow(unsafe_code, reason = "the registration trusts the type to keep its descriptor")]

use rsock_core::Doorbell;
use rsock_core::rsocket::WaitSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Types that own one descriptor from their making to their drop, and always name it.
pub(crate) trait Owner: AsRawFd {}

impl Owner for Doorbell {}
impl Owner for WaitSet {}
impl Owner for OwnedFd {}

/// Has the current runtime watch `owner` for input.
///
/// # Errors
/// When the runtime's set takes no more.
///
/// # Panics
/// Outside a runtime with I/O enabled.
pub(crate) fn watch<T: Owner>(owner: T) -> io::Result<AsyncFd<T>> {
    watch_for(owner, Interest::READABLE)
}

/// As [`watch`], for other events, too.
///
/// # Errors
/// As [`watch`].
///
/// # Panics
/// As [`watch`].
pub(crate) fn watch_for<T: Owner>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: by `Owner`, the number names the same open descriptor until the value is dropped, and
    // `AsyncFd` takes it out of its set before it drops the value.
    let watched = unsafe { AsyncFd::register_with_interest(owner, interest) };
    Ok(watched?)
}
