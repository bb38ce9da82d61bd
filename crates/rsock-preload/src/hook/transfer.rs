//! The one way by which bytes go from hooks to an accelerated stream and back.
//!
//! Adds to the core what belongs to the process: SIGPIPE, flags that only the kernel honours, and
//! descriptors that were closed and reused without a hook. `None` always means that the kernel is
//! to make the call.

use crate::slot::{Direction, Handle};
use crate::{arg, errno, fdtable, guard, options, signal};
use libc::{c_int, c_void, ssize_t};
use rsock_core::accelerate::FallbackReason;
use rustix::fd::BorrowedFd;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, sendmsg};
use std::io::{self, IoSlice, IoSliceMut};
use std::slice;

/// Sends `bufs` on the stream `handle` of descriptor `fd`.
pub(super) fn send(
    handle: Handle,
    fd: c_int,
    bufs: &[IoSlice<'_>],
    flags: c_int,
    stage: Stage,
) -> Option<ssize_t> {
    if flags & !options::SEND_FLAGS != 0 && !handle.stream().is_native() {
        drop(handle);
        // Bytes that the stream has written come before those that the kernel now takes.
        fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    let (stream, descriptor) = (handle.stream(), handle.descriptor());
    let known = SendFlags::from_bits_retain(flags.cast_unsigned());
    let result = guard::call_core(|| match stage {
        Stage::Beginning => stream.send_by(descriptor, bufs, known),
        Stage::Continued => stream.send_on(descriptor, bufs, known),
    });
    match result {
        Err(e) if is_suspect(e) && fdtable::was_reused(&handle, fd) => None,
        Err(libc::EPIPE) => {
            // The handler of SIGPIPE may not return.
            drop(handle);
            if flags & libc::MSG_NOSIGNAL == 0 {
                signal::raise_sigpipe();
            }
            Some(errno::fail(libc::EPIPE))
        }
        result => {
            drop(handle);
            Some(errno::ret_len(result))
        }
    }
}

/// Whether a send or a receive is the beginning of the program's call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Beginning,
    /// The call has sent or received something: an error is left for the next one.
    Continued,
}

/// Receives into `bufs` from the stream `handle` of descriptor `fd`.
pub(super) fn recv(
    handle: Handle,
    fd: c_int,
    bufs: &mut [IoSliceMut<'_>],
    flags: c_int,
    stage: Stage,
) -> Option<ssize_t> {
    if flags & FOR_KERNEL != 0 {
        drop(handle);
        fdtable::pin(fd, FallbackReason::Option);
        return None;
    }
    let result = receive(&handle, fd, bufs, flags, stage)?;
    drop(handle);
    Some(errno::ret_len(result))
}

/// Urgent data and the error queue are the kernel's, wherever the stream is.
const FOR_KERNEL: c_int = libc::MSG_OOB | libc::MSG_ERRQUEUE;

/// As [`recv`], with flags that a stream may honour.
fn receive(
    handle: &Handle,
    fd: c_int,
    bufs: &mut [IoSliceMut<'_>],
    flags: c_int,
    stage: Stage,
) -> Option<Result<usize, c_int>> {
    let (stream, descriptor) = (handle.stream(), handle.descriptor());
    call_stream(handle, fd, flags, |flags| match stage {
        Stage::Beginning => stream.recv_by(descriptor, bufs, flags),
        Stage::Continued => stream.recv_on(descriptor, bufs, flags),
    })
}

/// Makes a receiving call with flags that a stream may honour.
fn call_stream(
    handle: &Handle,
    fd: c_int,
    flags: c_int,
    call: impl FnOnce(RecvFlags) -> io::Result<usize>,
) -> Option<Result<usize, c_int>> {
    if flags & !options::RECV_FLAGS != 0 {
        // Bytes that lie on the ring already are still received from there.
        fdtable::pin(fd, FallbackReason::Option);
    }
    match guard::call_core(|| call(RecvFlags::from_bits_retain(flags.cast_unsigned()))) {
        Err(e) if is_suspect(e) && fdtable::was_reused(handle, fd) => None,
        result => Some(result),
    }
}

/// Sends `bufs` on descriptor `fd`, by its stream or, of a connection's first calls, by the kernel.
pub(super) fn send_any(fd: c_int, bufs: &[IoSlice<'_>], flags: c_int) -> Option<ssize_t> {
    match fdtable::send_first(fd, bufs, flags) {
        Some(first) => after_first(fd, first, bufs, flags),
        None => send(fdtable::begin_call(fd, Direction::Send)?, fd, bufs, flags, Stage::Beginning),
    }
}

/// What a send of `len` bytes at `buf` returns, of which the kernel has sent the `first`.
///
/// # Safety
/// The bytes are readable if the kernel has sent any.
#[inline]
pub(super) unsafe fn after_first_bytes(
    fd: c_int,
    first: Result<usize, c_int>,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> Option<ssize_t> {
    if first == Ok(len) {
        return Some(errno::ret_len(first));
    }
    let bytes = match first {
        // SAFETY: the caller's promise: some were sent, so all are readable.
        Ok(_) => unsafe { slice::from_raw_parts(buf.cast(), len) },
        Err(_) => &[],
    };
    after_first(fd, first, &[IoSlice::new(bytes)], flags)
}

/// What a send of `bufs` returns, of which the kernel has sent the `first` bytes: sends the rest.
fn after_first(
    fd: c_int,
    first: Result<usize, c_int>,
    bufs: &[IoSlice<'_>],
    flags: c_int,
) -> Option<ssize_t> {
    match first {
        Err(libc::EPIPE) if flags & libc::MSG_NOSIGNAL == 0 => {
            signal::raise_sigpipe();
            Some(errno::fail(libc::EPIPE))
        }
        Ok(n) if n < bufs.iter().map(|buf| buf.len()).sum() => {
            // A call that has sent something neither fails nor raises a signal.
            let _errno = errno::Kept::now();
            let (rest, flags) = (rest_of(bufs, n), flags | libc::MSG_NOSIGNAL);
            let more = fdtable::begin_call(fd, Direction::Send)
                .and_then(|handle| send(handle, fd, &rest, flags, Stage::Continued))
                .map(|more| usize::try_from(more).unwrap_or(0))
                // A number that is not known any more was closed by another thread.
                .or_else(|| fdtable::is_known(fd).then(|| send_by_kernel(fd, &rest, flags)));
            Some((n + more.unwrap_or(0)).cast_signed())
        }
        result => Some(errno::ret_len(result)),
    }
}

/// Sends `bufs` by the kernel, of a connection that is not to be adopted. Returns how many bytes.
fn send_by_kernel(fd: c_int, bufs: &[IoSlice<'_>], flags: c_int) -> usize {
    // SAFETY: not -1, since the table knows it; the program's own, which it does not close during
    // its call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = SendFlags::from_bits_retain(flags.cast_unsigned());
    sendmsg(socket, bufs, &mut SendAncillaryBuffer::default(), flags).unwrap_or(0)
}

/// `bufs` without their first `n` bytes.
fn rest_of<'a>(bufs: &'a [IoSlice<'_>], mut n: usize) -> Vec<IoSlice<'a>> {
    let after = |buf: &'a IoSlice<'_>| {
        let skipped = n.min(buf.len());
        n -= skipped;
        IoSlice::new(&buf[skipped..])
    };
    bufs.iter().map(after).filter(|buf| !buf.is_empty()).collect()
}

/// Receives into `bufs` from descriptor `fd`, by its stream or, of a connection's first calls, by
/// the kernel.
pub(super) fn recv_any(fd: c_int, bufs: &mut [IoSliceMut<'_>], flags: c_int) -> Option<ssize_t> {
    match fdtable::recv_first(fd, bufs, flags) {
        Some(first) => Some(errno::ret_len(first)),
        None => {
            let handle = fdtable::begin_call(fd, Direction::Recv)?;
            recv(handle, fd, bufs, flags, Stage::Beginning)
        }
    }
}

/// Receives up to `len` bytes and discards them (`MSG_TRUNC`): as with the kernel, the program's
/// buffer is neither written nor looked at.
///
/// PERF: never part of its caller, where its buffer would have every `recv` touch two pages more of
/// the stack: two of the page faults of a program that starts.
#[cold]
#[inline(never)]
pub(super) fn discard(
    handle: Handle,
    fd: c_int,
    len: usize,
    flags: c_int,
    stage: Stage,
) -> Option<ssize_t> {
    if flags & FOR_KERNEL != 0 {
        return recv(handle, fd, &mut [], flags, stage);
    }
    let (len, flags) = (len.min(arg::MAX_LEN), flags & !libc::MSG_TRUNC);
    let result = if flags & libc::MSG_PEEK != 0 && len != 0 {
        let descriptor = handle.descriptor();
        call_stream(&handle, fd, flags, |flags| handle.stream().peek_len(descriptor, len, flags))
    } else {
        discard_pieces(&handle, fd, len, flags, stage)
    }?;
    drop(handle);
    Some(errno::ret_len(result))
}

/// Receives up to `len` bytes, piece by piece.
fn discard_pieces(
    handle: &Handle,
    fd: c_int,
    len: usize,
    flags: c_int,
    stage: Stage,
) -> Option<Result<usize, c_int>> {
    let mut scratch = [0u8; 4096];
    let want = scratch.len().min(len);
    let room = &mut [IoSliceMut::new(&mut scratch[..want])];
    let mut done = match receive(handle, fd, room, flags, stage)? {
        Ok(n) if n == want => n,
        result => return Some(result),
    };
    while done < len {
        let want = scratch.len().min(len - done);
        let room = &mut [IoSliceMut::new(&mut scratch[..want])];
        let more = if flags & libc::MSG_WAITALL != 0 {
            receive(handle, fd, room, flags, Stage::Continued).and_then(Result::ok)
        } else {
            // Like one call on TCP: as much as is there. The next call reports an error.
            guard::call_core(|| Ok(handle.stream().recv_more(handle.descriptor(), room))).ok()
        };
        done += more.unwrap_or(0);
        // Where the core has ended the call, it is over.
        if more != Some(want) {
            break;
        }
    }
    Some(Ok(done))
}

/// Receives to a null pointer: that is noticed only once there is something to receive.
#[cold]
pub(super) fn recv_nowhere(handle: Handle, fd: c_int, flags: c_int) -> Option<ssize_t> {
    if flags & FOR_KERNEL != 0 {
        return recv(handle, fd, &mut [], flags, Stage::Beginning);
    }
    let (stream, descriptor) = (handle.stream(), handle.descriptor());
    let flags = flags & !libc::MSG_WAITALL;
    let found = call_stream(&handle, fd, flags, |flags| stream.peek_len(descriptor, 1, flags))?;
    drop(handle);
    Some(match found {
        Ok(1) => errno::fail(libc::EFAULT),
        result => errno::ret_len(result),
    })
}

/// Errors that the adopted socket itself cannot have.
fn is_suspect(error: c_int) -> bool {
    matches!(error, libc::ENOTSOCK | libc::EBADF | libc::ENOTCONN | libc::EOPNOTSUPP)
}
