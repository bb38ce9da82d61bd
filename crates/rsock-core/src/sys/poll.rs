//! `ppoll(2)`, and sleeps that a signal handler ends.

use crate::interrupt::{self, Watch};
use crate::sys::signals::{KERNEL_SIGSET, block_signals, restore_signals, widen};
use rsock_verbs::raw;
use rustix::event::PollFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// What a program asks for that waits for input, or for room.
pub(crate) const INPUT: PollFlags = PollFlags::IN.union(PollFlags::RDNORM);
pub(crate) const OUTPUT: PollFlags = PollFlags::OUT.union(PollFlags::WRNORM);

/// `ppoll(2)`: sleeps with `sigmask` in force. Without a timeout it waits without end.
///
/// # Errors
/// As `ppoll(2)`.
pub(crate) fn ppoll(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
) -> io::Result<usize> {
    let mut limit = timeout.map(|t| libc::timespec {
        tv_sec: t.as_secs().try_into().unwrap_or(libc::time_t::MAX),
        tv_nsec: t.subsec_nanos().into(),
    });
    let limit = limit.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    let mask = sigmask.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the array is valid for its length; `limit` and `mask` are null or point to live
    // values, and a libc signal set begins with the kernel's eight bytes.
    unsafe {
        raw::syscall!(libc::SYS_ppoll, fds.as_mut_ptr(), fds.len(), limit, mask, KERNEL_SIGSET)
    }
}

/// Which of `events` hold for `fd` now, with errors and hang-ups. 0 if the call fails.
pub(crate) fn poll_now(fd: BorrowedFd<'_>, events: i16) -> i16 {
    let mut fds = [libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 }];
    ppoll(&mut fds, Some(Duration::ZERO), None).map_or(0, |_| fds[0].revents)
}

/// As [`ppoll`], for a caller that must not miss a signal handler that runs just before it falls
/// asleep. With interposed signals, all signals are blocked, `watch` is checked, and the sleep
/// unblocks them.
///
/// # Errors
/// As `ppoll(2)`; `EINTR` if a handler has run since `watch` was taken.
pub(crate) fn sleep(
    fds: &mut [libc::pollfd],
    timeout: Option<Duration>,
    sigmask: Option<&libc::sigset_t>,
    watch: Watch,
) -> io::Result<usize> {
    if !interrupt::is_interposed() {
        return ppoll(fds, timeout, sigmask);
    }
    let old = block_signals()?;
    let result = if watch.has_fired() {
        Err(io::Error::from_raw_os_error(libc::EINTR))
    } else {
        match sigmask {
            Some(_) => ppoll(fds, timeout, sigmask),
            None => ppoll(fds, timeout, Some(&widen(old))),
        }
    };
    restore_signals(old);
    result
}

/// Adds `fd` to an epoll set, for input, level-triggered.
///
/// # Errors
/// As `epoll_ctl(2)`.
pub(crate) fn epoll_add(set: BorrowedFd<'_>, fd: RawFd) -> io::Result<()> {
    let mut event = libc::epoll_event { events: libc::EPOLLIN.cast_unsigned(), u64: 0 };
    let (set, event) = (set.as_raw_fd(), &raw mut event);
    // SAFETY: `event` is a live event, which the kernel reads; a number that is no open descriptor
    // gives an error.
    unsafe { raw::syscall!(libc::SYS_epoll_ctl, set, libc::EPOLL_CTL_ADD, fd, event) }.map(|_| ())
}

/// `events` as `poll(2)` takes them. rustix's type for the bits differs under Miri.
pub(crate) fn poll_bits(events: PollFlags) -> i16 {
    events.bits() as i16
}

/// The result bits of `poll(2)` as flags.
pub(crate) fn poll_flags(bits: i16) -> PollFlags {
    PollFlags::from_bits_retain(bits as _)
}
