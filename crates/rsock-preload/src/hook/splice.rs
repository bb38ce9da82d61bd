//! `splice`: the stream goes back to TCP, and the kernel transfers the bytes.
//!
//! Those that still lie on the ring come first, through a buffer.

use crate::slot::{Direction, Handle};
use crate::{cancel, errno, fdtable, guard, next, signal};
use libc::{c_int, c_uint, loff_t, size_t, ssize_t};
use rsock_core::accelerate::FallbackReason;
use rsock_verbs::HighFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fstat};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::io::{self, IoSliceMut};

/// The flags of `splice` that the kernel knows.
const FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// As `splice(2)`.
///
/// # Safety
/// As `splice(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C-unwind" fn splice(
    from: c_int,
    from_at: *mut loff_t,
    to: c_int,
    to_at: *mut loff_t,
    len: size_t,
    flags: c_uint,
) -> ssize_t {
    if fdtable::is_known(to) {
        if fdtable::has_no_tcp(to) {
            // The kernel's answer for a descriptor that `splice` does not support.
            return errno::fail(libc::EINVAL);
        }
        fdtable::pin(to, FallbackReason::Option);
    }
    if fdtable::is_known(from) {
        fdtable::pin(from, FallbackReason::Option);
        // The kernel refuses offsets of sockets and pipes, and flags that it does not know.
        let is_valid = from_at.is_null() && to_at.is_null() && flags & !FLAGS == 0;
        let by_stream = || splice_from_stream(from, to, len, flags);
        if is_valid && let Some(n) = cancel::without_cancel(by_stream) {
            return n;
        }
    }
    // SAFETY: arguments passed on unchanged.
    unsafe { next::splice(from, from_at, to, to_at, len, flags) }
}

/// Moves bytes that the ring of `from` still has, which come before those of the kernel, to the
/// pipe `to`. `None` if the kernel has to make the call.
pub(super) fn splice_from_stream(
    from: c_int,
    to: c_int,
    len: size_t,
    flags: c_uint,
) -> Option<ssize_t> {
    if len == 0 || to < 0 {
        return None;
    }
    // Before an urgent byte, where splicing stops, the kernel's answer is right.
    let handle = fdtable::begin_call(from, Direction::Recv)
        .filter(|handle| !handle.stream().is_at_mark(handle.fd()))?;
    // SAFETY: not -1; if it is not open, asking says so.
    let pipe = unsafe { BorrowedFd::borrow_raw(to) };
    if !is_pipe(pipe) {
        return None;
    }
    // The flag is about the pipe alone.
    let is_blocking = |pipe| fcntl_getfl(pipe).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
    let waits_for_room = flags & libc::SPLICE_F_NONBLOCK == 0 && is_blocking(pipe);
    let result = guard::call_core(|| copy_to_pipe(&handle, pipe, len, waits_for_room));
    drop(handle);
    if result == Err(libc::EPIPE) {
        signal::raise_sigpipe();
    }
    Some(errno::ret_len(result))
}

/// Whether `fd` is an end of a pipe that can be written to.
fn is_pipe(fd: BorrowedFd<'_>) -> bool {
    let writes = |flags: OFlags| flags & OFlags::RWMODE != OFlags::RDONLY;
    type_of(fd).is_some_and(|kind| kind.is_fifo()) && fcntl_getfl(fd).is_ok_and(writes)
}

fn type_of(fd: BorrowedFd<'_>) -> Option<FileType> {
    Some(FileType::from_raw_mode(fstat(fd).ok()?.st_mode))
}

/// Moves up to `len` bytes of the stream into a pipe, taking from the stream only what the pipe
/// took: as many as it has room for, once there is any. `waits_for_room`: for that, too.
fn copy_to_pipe(
    handle: &Handle,
    to: BorrowedFd<'_>,
    len: usize,
    waits_for_room: bool,
) -> io::Result<usize> {
    // A pipe that has room takes so many bytes without waiting.
    let mut chunk = [0u8; libc::PIPE_BUF];
    let pipe = Kept::new(to)?;
    let mut done = 0;
    while done < len {
        let (is_first, mut flags) = (done == 0, RecvFlags::PEEK);
        let may_wait = is_first && waits_for_room;
        if !may_wait && !has_room(pipe.fd()) {
            if is_first {
                return Err(Errno::AGAIN.into());
            }
            break;
        }
        if !is_first {
            flags |= RecvFlags::DONTWAIT;
            if handle.stream().is_at_mark(handle.fd()) {
                break;
            }
        }
        let want = chunk.len().min(len - done);
        match copy_piece(handle, pipe.fd(), &mut chunk[..want], flags) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if is_first => return Err(e),
            Err(_) => break,
        }
    }
    Ok(done)
}

/// Moves one piece, which the stream shows by `flags`.
fn copy_piece(
    handle: &Handle,
    pipe: BorrowedFd<'_>,
    chunk: &mut [u8],
    flags: RecvFlags,
) -> io::Result<usize> {
    let peek = &mut [IoSliceMut::new(chunk)];
    let seen = handle.stream().recv_by(handle.descriptor(), peek, flags)?;
    if seen == 0 {
        return Ok(0);
    }
    let written = rustix::io::write(pipe, &chunk[..seen])?;
    let taken = &mut [IoSliceMut::new(&mut chunk[..written])];
    handle.stream().recv_by(handle.descriptor(), taken, RecvFlags::DONTWAIT)
}

/// Whether a write to the pipe does not wait: there is room, or no reader.
fn has_room(pipe: BorrowedFd<'_>) -> bool {
    let mut entry = [PollFd::from_borrowed_fd(pipe, PollFlags::OUT)];
    poll(&mut entry, Some(&Timespec::default())).is_ok_and(|n| n != 0)
}

/// Another number for an open file, for a call that sleeps between its uses of it, while other
/// threads may close the program's number.
struct Kept(HighFd);

impl Kept {
    fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(HighFd::new(rustix::io::fcntl_dupfd_cloexec(fd, 0)?)))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
