//! Registration of this crate's own descriptors with the runtime: the only unsafe code of the
//! crate.
//!
//! The runtime's registration keeps a raw number and trusts that it stays the same open descriptor.
//! Only types that own their descriptor and never change it may be registered; hence [`OwnsFd`] is
//! implemented here alone.

#![allow(unsafe_code, reason = "the registration trusts the type to keep its descriptor")]

use rsock_core::rsocket::WaitSet;
use rsock_core::{Doorbell, SoftReadySet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Types that own one descriptor from their creation to their drop, and always return that one.
pub(crate) trait OwnsFd: AsRawFd {}

impl OwnsFd for Doorbell {}
impl OwnsFd for SoftReadySet {}
impl OwnsFd for WaitSet {}
impl OwnsFd for OwnedFd {}

/// Registers `owner` with the current runtime, for input.
///
/// # Errors
/// As `epoll_ctl(2)`: `ENOMEM`, `ENOSPC`.
///
/// # Panics
/// Outside a runtime with I/O enabled.
pub(crate) fn register<T: OwnsFd>(owner: T) -> io::Result<AsyncFd<T>> {
    register_for(owner, Interest::READABLE)
}

/// As [`register`], for the events of `interest`.
///
/// # Errors
/// As [`register`].
///
/// # Panics
/// As [`register`].
pub(crate) fn register_for<T: OwnsFd>(owner: T, interest: Interest) -> io::Result<AsyncFd<T>> {
    // SAFETY: by `OwnsFd`, the number names the same open descriptor until the value is dropped,
    // and `AsyncFd` removes it from its set before it drops the value.
    let registered = unsafe { AsyncFd::register_with_interest(owner, interest) };
    Ok(registered?)
}
