//! `sendmmsg` and `recvmmsg`.

use super::datagram;
use super::message::{recv_next, recvmsg, sendmsg};
use super::passed_fds::before_passing;
use crate::fdtable::{self, datagrams};
use crate::slot::Direction;
use crate::{arg, cancel, errno, next};
use libc::{c_int, c_uint, mmsghdr, ssize_t, timespec};
use rsock_verbs::clock;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt;
use std::slice;

/// As `sendmmsg(2)`.
///
/// # Safety
/// As `sendmmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
) -> c_int {
    // SAFETY: a caller promises `n` valid messages.
    let all = unsafe { messages(msgs, n) };
    if all.is_empty() || !is_adopted(fd, Direction::Send) {
        for msg in all {
            // SAFETY: a valid message, by the same promise.
            if let Err(e) = unsafe { before_passing(&raw const msg.msg_hdr) } {
                return errno::fail_int(e);
            }
        }
        // SAFETY: arguments passed on unchanged.
        return unsafe { next::sendmmsg(fd, msgs, n, flags) };
    }
    // SAFETY: a valid message, by the same promise.
    let each = |msg: &mut mmsghdr| unsafe { sendmsg(fd, &raw const msg.msg_hdr, flags) };
    // Another thread may close the number after any message, and the kernel give it to another
    // file.
    let key = fdtable::key(fd);
    let is_same = || fdtable::key(fd) == key;
    if !datagrams::is_udp(fd) {
        // SAFETY: a valid message, by the same promise.
        return for_each(all, each, |msg| unsafe { is_whole(msg) } && is_same());
    }
    let (mut done, mut is_kernels) = (0, false);
    while done < all.len() {
        let rest = &mut all[done..];
        let first = cancel::without_cancel(|| {
            // SAFETY: valid messages, by the same promise.
            unsafe { datagram::send_first(fd, rest, flags, &mut is_kernels) }
        });
        done += first.and_then(|n| usize::try_from(n).ok()).unwrap_or(0);
        let Some(next) = all.get_mut(done..done + 1) else { break };
        let sent = if is_kernels {
            // SAFETY: a valid message, by the same promise.
            for_each(
                next,
                |msg| unsafe { next::sendmsg(fd, &raw const msg.msg_hdr, flags) },
                |_| true,
            )
        } else {
            for_each(next, each, |_| true)
        };
        if sent != 1 {
            break;
        }
        done += 1;
        if !is_same() {
            break;
        }
    }
    if done == 0 { -1 } else { c_int::try_from(done).unwrap_or(c_int::MAX) }
}

/// As `recvmmsg(2)`.
///
/// # Safety
/// As `recvmmsg(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn recvmmsg(
    fd: c_int,
    msgs: *mut mmsghdr,
    n: c_uint,
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    let by_hook = || {
        // SAFETY: a caller promises `n` valid messages.
        let all = unsafe { messages(msgs, n) };
        if all.is_empty() || !is_adopted(fd, Direction::Recv) {
            return None;
        }
        // SAFETY: valid messages, and null or a time of the program's, by the same promise.
        Some(unsafe { recv_within(fd, all, flags, timeout) })
    };
    // SAFETY: arguments passed on unchanged.
    let kernel = || unsafe { next::recvmmsg(fd, msgs, n, flags, timeout) };
    datagrams::receive(fd, by_hook, kernel)
}

/// Receives into one message after the other, until the time at `timeout` is over; stores what is
/// left of it there.
///
/// # Safety
/// `all` are valid messages, and `timeout` is null or an address that the program gives.
unsafe fn recv_within(
    fd: c_int,
    all: &mut [mmsghdr],
    flags: c_int,
    timeout: *mut timespec,
) -> c_int {
    if timeout.is_null() {
        // SAFETY: the caller's promise.
        return unsafe { recv_each(fd, all, flags, None) };
    }
    // SAFETY: the caller's promise; any bytes are a time.
    let mut limit = match unsafe { arg::load(timeout) }.and_then(TimeLeft::from_now) {
        Ok(limit) => limit,
        Err(e) => return errno::fail_int(e),
    };
    // SAFETY: the caller's promise.
    let n = unsafe { recv_each(fd, all, flags, Some(&mut limit)) };
    if n > 0
        // SAFETY: the caller's promise.
        && let Err(e) = unsafe { arg::store(&limit.left, timeout) }
    {
        return errno::fail_int(e);
    }
    n
}

/// The time limit of a call.
struct TimeLeft {
    /// In nanoseconds of the monotonic clock.
    end: i128,
    /// As of the last message.
    left: timespec,
}

const SECOND: i128 = 1_000_000_000;

impl TimeLeft {
    /// # Errors
    /// `EINVAL` for what is not a time.
    fn from_now(left: timespec) -> Result<Self, c_int> {
        if left.tv_sec < 0 || !(0..SECOND).contains(&i128::from(left.tv_nsec)) {
            return Err(libc::EINVAL);
        }
        let limit = i128::from(left.tv_sec) * SECOND + i128::from(left.tv_nsec);
        Ok(Self { end: Self::now() + limit, left })
    }

    fn now() -> i128 {
        i128::try_from(clock::monotonic().as_nanos()).unwrap_or(i128::MAX)
    }

    /// Whether the limit is over. Notes how much of it is left.
    fn is_over(&mut self) -> bool {
        let left = (self.end - Self::now()).max(0);
        // INVARIANT: no more than the program gave.
        self.left.tv_sec = (left / SECOND).try_into().unwrap_or(i64::MAX);
        self.left.tv_nsec = (left % SECOND).try_into().unwrap_or(0);
        left == 0
    }
}

/// Receives into one message after the other. The time limit is checked after each message only, as
/// the kernel does.
///
/// # Safety
/// `all` are valid messages.
unsafe fn recv_each(
    fd: c_int,
    all: &mut [mmsghdr],
    flags: c_int,
    mut limit: Option<&mut TimeLeft>,
) -> c_int {
    if flags & libc::MSG_ERRQUEUE == 0
        && !datagrams::is_udp(fd)
        && let Some(e) = take_error(fd)
    {
        return errno::fail_int(e);
    }
    let wait_for_one = flags & libc::MSG_WAITFORONE != 0;
    let mut flags = flags & !libc::MSG_WAITFORONE;
    let mut is_first = true;
    let each = |msg: &mut mmsghdr| {
        let header = &raw mut msg.msg_hdr;
        let n = match std::mem::take(&mut is_first) {
            // SAFETY: a valid message, by the caller's promise.
            true => unsafe { recvmsg(fd, header, flags) },
            // SAFETY: as above.
            false => unsafe { recv_next(fd, header, flags) },
        };
        if wait_for_one {
            flags |= libc::MSG_DONTWAIT;
        }
        n
    };
    // Another thread may close the number after any message, and the kernel give it to another
    // file.
    let key = fdtable::key(fd);
    let goes_on = |msg: &mmsghdr| {
        let is_over = limit.as_mut().is_some_and(|limit| limit.is_over());
        !is_over && msg.msg_hdr.msg_flags & libc::MSG_OOB == 0 && fdtable::key(fd) == key
    };
    for_each(all, each, goes_on)
}

/// The error that the kernel's socket is to report next. `recvmmsg` asks for it before it looks for
/// bytes, unlike `recvmsg`.
fn take_error(fd: c_int) -> Option<c_int> {
    // SAFETY: not -1, since the table knows it; the program's own, which it does not close during
    // its call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    sockopt::socket_error(socket).ok()?.err().map(Errno::raw_os_error)
}

/// Whether `fd` is an adopted socket in the given direction; on a UDP socket this counts as a call.
fn is_adopted(fd: c_int, direction: Direction) -> bool {
    fdtable::begin_call(fd, direction).is_some() || datagrams::begin_call(fd, direction).is_some()
}

/// The messages of a call. The kernel takes 1024 at most.
///
/// # Safety
/// `msgs` is null or has `n` valid messages during `'a`.
unsafe fn messages<'a>(msgs: *mut mmsghdr, n: c_uint) -> &'a mut [mmsghdr] {
    if msgs.is_null() {
        return &mut [];
    }
    // SAFETY: not null, so valid by the caller's promise.
    unsafe { slice::from_raw_parts_mut(msgs, n.min(1024) as usize) }
}

/// Whether all bytes of a message were sent: the kernel sends none after one that was sent in part.
///
/// # Safety
/// A valid message.
unsafe fn is_whole(msg: &mmsghdr) -> bool {
    let mmsghdr { msg_hdr: header, msg_len } = msg;
    // SAFETY: the vector of a valid message.
    let len = unsafe { arg::len_of_slices(header.msg_iov, header.msg_iovlen, libc::EMSGSIZE) };
    len == Ok(*msg_len as usize)
}

/// Runs `each` on the messages while it succeeds and `goes_on` holds; returns the number of
/// messages.
fn for_each(
    msgs: &mut [mmsghdr],
    mut each: impl FnMut(&mut mmsghdr) -> ssize_t,
    mut goes_on: impl FnMut(&mmsghdr) -> bool,
) -> c_int {
    let mut done = 0;
    let errno = errno::read();
    for msg in msgs {
        let Ok(len) = c_uint::try_from(each(msg)) else {
            if done == 0 {
                return -1;
            }
            // A call that has sent or received something succeeds.
            errno::set(errno);
            break;
        };
        msg.msg_len = len;
        done += 1;
        if !goes_on(msg) {
            break;
        }
    }
    done
}
