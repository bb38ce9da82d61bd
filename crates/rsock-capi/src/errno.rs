//! Maps results to C: -1 and `errno`.

use libc::{c_int, ssize_t};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error with this errno.
pub(crate) fn error<T>(errno: c_int) -> io::Result<T> {
    Err(io::Error::from_raw_os_error(errno))
}

/// The errno of an error. Errors of the system carry theirs; each kind that rsock's own layers make
/// without one has one here.
pub(crate) fn errno_of(e: &io::Error) -> c_int {
    use io::ErrorKind::{
        ConnectionRefused, ConnectionReset, Interrupted, InvalidData, InvalidInput, NotConnected,
        OutOfMemory, TimedOut, Unsupported, WouldBlock,
    };
    e.raw_os_error().unwrap_or_else(|| match e.kind() {
        WouldBlock => libc::EAGAIN,
        Interrupted => libc::EINTR,
        InvalidInput => libc::EINVAL,
        InvalidData => libc::EPROTO,
        NotConnected => libc::ENOTCONN,
        ConnectionRefused => libc::ECONNREFUSED,
        ConnectionReset => libc::ECONNRESET,
        TimedOut => libc::ETIMEDOUT,
        OutOfMemory => libc::ENOMEM,
        Unsupported => libc::ENOTSUP,
        _ => libc::EIO,
    })
}

fn current() -> c_int {
    // SAFETY: the address of the calling thread's `errno` is always valid.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above; nothing else of this thread runs.
    unsafe { at.read() }
}

fn set(errno: c_int) {
    // SAFETY: the address of the calling thread's `errno` is always valid.
    let at = unsafe { libc::__errno_location() };
    // SAFETY: as above; nothing else of this thread runs.
    unsafe { at.write(errno) };
}

/// Runs `f`. On success `errno` keeps its value; on failure it is the error's, and the result is
/// `None`.
pub(crate) fn call_rust<T>(f: impl FnOnce() -> io::Result<T>) -> Option<T> {
    let before = current();
    // A panic is a bug; the program gets an error rather than an abort.
    let result = catch_unwind(AssertUnwindSafe(f)).unwrap_or_else(|_| error(libc::EIO));
    match result {
        Ok(value) => {
            set(before);
            Some(value)
        }
        Err(e) => {
            set(errno_of(&e));
            None
        }
    }
}

/// 0, or -1.
pub(crate) fn ret_unit(f: impl FnOnce() -> io::Result<()>) -> c_int {
    call_rust(f).map_or(-1, |()| 0)
}

/// A number, or -1.
pub(crate) fn ret_int(f: impl FnOnce() -> io::Result<c_int>) -> c_int {
    call_rust(f).unwrap_or(-1)
}

/// A length, or -1.
pub(crate) fn ret_len(f: impl FnOnce() -> io::Result<usize>) -> ssize_t {
    call_rust(f).map_or(-1, |n| ssize_t::try_from(n).unwrap_or(ssize_t::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_is_untouched_on_success_and_set_on_failure() {
        set(77);
        let ok = ret_int(|| {
            set(5);
            Ok(3)
        });
        assert_eq!((ok, current()), (3, 77));
        assert_eq!((ret_unit(|| error(libc::EDOM)), current()), (-1, libc::EDOM));
        assert_eq!((ret_len(|| Ok(9)), current()), (9, libc::EDOM));
    }

    #[test]
    fn a_panic_does_not_reach_c() {
        assert_eq!((ret_unit(|| panic!("on purpose")), current()), (-1, libc::EIO));
    }

    #[test]
    fn every_kind_that_rsock_makes_has_an_errno() {
        let table = [
            (io::ErrorKind::WouldBlock, libc::EAGAIN),
            (io::ErrorKind::Interrupted, libc::EINTR),
            (io::ErrorKind::InvalidInput, libc::EINVAL),
            (io::ErrorKind::InvalidData, libc::EPROTO),
            (io::ErrorKind::NotConnected, libc::ENOTCONN),
            (io::ErrorKind::ConnectionRefused, libc::ECONNREFUSED),
            (io::ErrorKind::ConnectionReset, libc::ECONNRESET),
            (io::ErrorKind::TimedOut, libc::ETIMEDOUT),
            (io::ErrorKind::OutOfMemory, libc::ENOMEM),
            (io::ErrorKind::Unsupported, libc::ENOTSUP),
            (io::ErrorKind::Other, libc::EIO),
        ];
        for (kind, errno) in table {
            assert_eq!(errno_of(&kind.into()), errno, "{kind}");
        }
        assert_eq!(errno_of(&io::Error::from_raw_os_error(libc::EXDEV)), libc::EXDEV);
    }
}
