//! Results of hooks as C sees them: the value, or -1 and `errno`.
//!
//! The only code of this library that writes `errno`. Guards the rule that a call which succeeds
//! leaves `errno` as it was, whatever system calls it has made.

use libc::{c_int, ssize_t};
use std::io;

/// Sets the calling thread's `errno`.
pub(crate) fn set(value: c_int) {
    // SAFETY: libc returns a valid pointer to the calling thread's `errno`.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: valid and only this thread's.
    unsafe { *at = value };
}

/// The calling thread's `errno`.
pub(crate) fn read() -> c_int {
    // SAFETY: libc returns a valid pointer to the calling thread's `errno`.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: valid and only this thread's.
    unsafe { *at }
}

/// Restores the calling thread's `errno` when it is dropped.
#[must_use]
pub(crate) struct Kept(c_int);

impl Kept {
    pub(crate) fn now() -> Self {
        Self(read())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        set(self.0);
    }
}

/// The errno for `error`.
///
/// Kernel TCP's numbers, not those of the `rsocket` C API: a broken path is a reset.
pub(crate) fn of(error: &io::Error) -> c_int {
    if let Some(errno) = error.raw_os_error() {
        return errno;
    }
    match error.kind() {
        io::ErrorKind::WouldBlock => libc::EAGAIN,
        io::ErrorKind::Interrupted => libc::EINTR,
        io::ErrorKind::BrokenPipe => libc::EPIPE,
        io::ErrorKind::NotConnected => libc::ENOTCONN,
        io::ErrorKind::TimedOut => libc::ETIMEDOUT,
        io::ErrorKind::OutOfMemory => libc::ENOMEM,
        io::ErrorKind::InvalidInput => libc::EINVAL,
        io::ErrorKind::Unsupported => libc::EOPNOTSUPP,
        _ => libc::ECONNRESET,
    }
}

/// Fails with `errno`.
pub(crate) fn fail(errno: c_int) -> ssize_t {
    set(errno);
    -1
}

/// Fails with `errno`, for functions that return an `int`.
pub(crate) fn fail_int(errno: c_int) -> c_int {
    set(errno);
    -1
}

/// A length as C expects it.
pub(crate) fn ret_len(result: Result<usize, c_int>) -> ssize_t {
    match result {
        Ok(n) => ssize_t::try_from(n).unwrap_or(ssize_t::MAX),
        Err(errno) => fail(errno),
    }
}

/// A small count as C expects it.
pub(crate) fn ret_int(result: Result<usize, c_int>) -> c_int {
    match result {
        Ok(n) => c_int::try_from(n).unwrap_or(c_int::MAX),
        Err(errno) => fail_int(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_kind_of_a_stream_has_the_kernels_number() {
        for errno in [libc::EAGAIN, libc::EPIPE, libc::EMSGSIZE, libc::EBADF] {
            assert_eq!(of(&io::Error::from_raw_os_error(errno)), errno);
        }
        let table = [
            (io::ErrorKind::WouldBlock, libc::EAGAIN),
            (io::ErrorKind::Interrupted, libc::EINTR),
            (io::ErrorKind::BrokenPipe, libc::EPIPE),
            (io::ErrorKind::NotConnected, libc::ENOTCONN),
            (io::ErrorKind::ConnectionReset, libc::ECONNRESET),
            (io::ErrorKind::TimedOut, libc::ETIMEDOUT),
            (io::ErrorKind::OutOfMemory, libc::ENOMEM),
            (io::ErrorKind::InvalidInput, libc::EINVAL),
            (io::ErrorKind::Other, libc::ECONNRESET),
        ];
        for (kind, errno) in table {
            assert_eq!(of(&io::Error::from(kind)), errno, "{kind:?}");
        }
    }

    #[test]
    fn failing_sets_errno_and_succeeding_does_not() {
        set(0);
        assert_eq!((ret_len(Err(libc::EPIPE)), read()), (-1, libc::EPIPE));
        assert_eq!((ret_len(Ok(7)), read()), (7, libc::EPIPE));
        assert_eq!((ret_int(Err(libc::EBADF)), read()), (-1, libc::EBADF));
        assert_eq!((ret_int(Ok(3)), read()), (3, libc::EBADF));
    }
}
