//! Socket options and socket state that rustix does not cover.

use rsock_verbs::raw;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `setsockopt(2)`, of any option.
///
/// # Errors
/// As `setsockopt(2)`.
pub(crate) fn set_option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the value is readable for its length during the call.
    unsafe {
        raw::syscall!(
            libc::SYS_setsockopt,
            fd.as_raw_fd(),
            level,
            name,
            value.as_ptr(),
            libc::socklen_t::try_from(value.len()).unwrap_or(libc::socklen_t::MAX),
        )
    }
    .map(|_| ())
}

/// Bytes that must be there before a socket counts as readable (`SO_RCVLOWAT`). Allocates nothing.
#[must_use]
pub(crate) fn low_water(fd: BorrowedFd<'_>) -> Option<usize> {
    let mut value: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).ok()?;
    // SAFETY: the request writes at most `len` bytes to an int, and both outlive the call.
    let asked = unsafe {
        raw::syscall!(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVLOWAT,
            &raw mut value,
            &raw mut len,
        )
    };
    asked.ok().map(|_| usize::try_from(value).unwrap_or(1))
}

/// Packets that a UDP socket has dropped for lack of room; 0 where the kernel does not report it
/// (before Linux 4.12).
#[must_use]
pub fn n_dropped(fd: BorrowedFd<'_>) -> u64 {
    const AT: usize = libc::SK_MEMINFO_DROPS as usize * 4;
    let info = option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, MAX_OPTION).unwrap_or_default();
    let word = info.get(AT..AT + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_ne_bytes).into()
}

/// Size of a socket's receive buffer as the kernel counts it, twice the size that was set; 0 if the
/// kernel does not report it.
pub(crate) fn receive_buffer(fd: BorrowedFd<'_>) -> usize {
    rustix::net::sockopt::socket_recv_buffer_size(fd).unwrap_or(0)
}

/// `getsockopt(2)`, of any option: at most `room` bytes.
///
/// # Errors
/// As `getsockopt(2)`.
pub(crate) fn option(
    fd: BorrowedFd<'_>,
    level: i32,
    name: i32,
    room: usize,
) -> io::Result<Vec<u8>> {
    let mut value = vec![0u8; room.min(MAX_OPTION)];
    let mut len = libc::socklen_t::try_from(value.len()).unwrap_or(0);
    // SAFETY: the value has room for `len` bytes, and both outlive the call.
    unsafe {
        raw::syscall!(
            libc::SYS_getsockopt,
            fd.as_raw_fd(),
            level,
            name,
            value.as_mut_ptr(),
            &raw mut len,
        )
    }?;
    value.truncate(usize::try_from(len).unwrap_or(0));
    Ok(value)
}

/// Longest value of an option, in bytes.
const MAX_OPTION: usize = 4096;

/// Whether the next byte in the kernel's receive queue is urgent (`SIOCATMARK`).
pub(crate) fn is_at_mark(fd: BorrowedFd<'_>) -> bool {
    let mut is_at_mark: libc::c_int = 0;
    // SAFETY: the request writes one int, to a live variable.
    let asked = unsafe {
        raw::syscall!(libc::SYS_ioctl, fd.as_raw_fd(), raw::SIOCATMARK, &raw mut is_at_mark)
    };
    asked.is_ok() && is_at_mark != 0
}

/// Resets a TCP connection at once; the descriptor stays open.
pub(crate) fn disconnect(fd: BorrowedFd<'_>) {
    // `AF_UNSPEC` is 0, and the rest of the address is zero as well.
    let nowhere = [0u16; 8];
    let len = size_of_val(&nowhere);
    // SAFETY: a live address of that length. The call fails where there is no connection to reset.
    let _ = unsafe { raw::syscall!(libc::SYS_connect, fd.as_raw_fd(), nowhere.as_ptr(), len) };
}
