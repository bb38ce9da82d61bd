//! System calls on epoll sets, without libc.

use libc::epoll_event;
use rsock_verbs::raw;
use rustix::fd::RawFd;
use std::io;

/// `EPOLL_CTL_ADD`.
///
/// # Errors
/// As `epoll_ctl(2)`.
pub(crate) fn add(set: RawFd, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: a live event; a call that the kernel refuses changes nothing.
    unsafe { raw::syscall!(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, fd, &raw mut event) }
        .map(drop)
}

/// `EPOLL_CTL_MOD`.
///
/// # Errors
/// As `epoll_ctl(2)`.
pub(crate) fn modify(set: RawFd, fd: RawFd, events: u32, data: u64) -> io::Result<()> {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: a live event; a call that the kernel refuses changes nothing.
    unsafe { raw::syscall!(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_MOD, fd, &raw mut event) }
        .map(drop)
}

/// `EPOLL_CTL_DEL`.
///
/// # Errors
/// As `epoll_ctl(2)`.
pub(crate) fn remove(set: RawFd, fd: RawFd) -> io::Result<()> {
    let none = std::ptr::null_mut::<epoll_event>();
    // SAFETY: the kernel does not read the event.
    unsafe { raw::syscall!(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_DEL, fd, none) }.map(drop)
}

/// The events that are there now, as many as `room` has place for.
///
/// # Errors
/// As `epoll_wait(2)`.
pub(crate) fn take(set: RawFd, room: &mut [epoll_event]) -> io::Result<usize> {
    let (at, n) = (room.as_mut_ptr(), room.len());
    let n = libc::c_int::try_from(n).unwrap_or(libc::c_int::MAX);
    let mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: `room` is writable for `n` events; no signal mask is given.
    unsafe { raw::syscall!(libc::SYS_epoll_pwait, set, at, n, 0, mask, 8usize) }
}

/// Whether `fd` has input now.
pub(crate) fn is_readable(fd: RawFd) -> bool {
    let mut fds = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mask = std::ptr::null::<libc::sigset_t>();
    // SAFETY: one live entry, a live time, and no signal mask.
    let n = unsafe {
        raw::syscall!(libc::SYS_ppoll, fds.as_mut_ptr(), 1usize, &raw const now, mask, 8usize)
    };
    n.is_ok_and(|n| n == 1) && fds[0].revents & libc::POLLIN != 0
}
