//! `splice`: the stream goes back to TCP, and the kernel transfers the bytes.
//!
//! Those that still lie on the ring come first, through a buffer.

use super::named_file::NamedFile;
use crate::slot::{Direction, Handle};
use crate::{cancel, errno, fdtable, guard, next, signal};
use libc::{c_int, c_uint, loff_t, size_t, ssize_t};
use rsock_core::accelerate::{FallbackReason, PollDescriptor, poll_since};
use rsock_core::interrupt::Watch;
use rsock_verbs::HighFd;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::RecvFlags;
use std::io::{self, IoSliceMut};

/// The flags of `splice` that the kernel knows.
const FLAGS: c_uint =
    libc::SPLICE_F_MOVE | libc::SPLICE_F_NONBLOCK | libc::SPLICE_F_MORE | libc::SPLICE_F_GIFT;

/// As `splice(2)`.
///
/// # Safety
/// As `splice(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
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
/// pipe `to`. `None` if the kernel has to make the call, or refuses it.
pub(super) fn splice_from_stream(
    from: c_int,
    to: c_int,
    len: size_t,
    flags: c_uint,
) -> Option<ssize_t> {
    if len == 0 || to < 0 || isize::try_from(len).is_err() {
        return None;
    }
    // Before an urgent byte, where splicing stops, the kernel's answer is right.
    let handle = fdtable::begin_call(from, Direction::Recv)
        .filter(|handle| !handle.stream().is_at_mark(handle.fd()))?;
    let named = NamedFile::new(to).ok().filter(is_writable_pipe)?;
    let is_blocking = fcntl_getfl(named.fd()).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK));
    // The flag is about the pipe alone.
    let waits = flags & libc::SPLICE_F_NONBLOCK == 0 && is_blocking;
    let result = guard::call_core(|| copy_to_pipe(&handle, &Pipe::new(named, waits), len));
    drop(handle);
    Some(match result {
        Ok(Copied::Bytes(n)) => errno::ret_len(Ok(n)),
        Ok(Copied::NoReader) => {
            // The handler may not return.
            signal::raise_sigpipe();
            errno::fail(libc::EPIPE)
        }
        Err(e) => errno::fail(e),
    })
}

/// Whether it is an end of a pipe that can be written to.
fn is_writable_pipe(file: &NamedFile<'_>) -> bool {
    let writes = |flags: OFlags| flags & OFlags::RWMODE != OFlags::RDONLY;
    file.kind().is_fifo() && fcntl_getfl(file.fd()).is_ok_and(writes)
}

/// What a call has done.
enum Copied {
    Bytes(usize),
    /// Nothing, as the pipe has no reader. The thread gets `SIGPIPE` for that, unless a write to
    /// the pipe has found it: that is an error, and the kernel has raised the signal.
    NoReader,
}

/// Moves up to `len` bytes of the stream into a pipe, taking from the stream only what the pipe
/// took: as many as the pipe has room for, once there is any.
fn copy_to_pipe(handle: &Handle, pipe: &Pipe<'_>, len: usize) -> io::Result<Copied> {
    // A pipe that has room takes so many bytes without waiting.
    let mut chunk = [0u8; libc::PIPE_BUF];
    let mut done = 0;
    while done < len {
        let want = chunk.len().min(len - done);
        let chunk = &mut chunk[..want];
        let copied = if done == 0 {
            copy_first(handle, pipe, chunk)
        } else {
            copy_next(handle, pipe, chunk)
        };
        match copied {
            Ok(Copied::Bytes(n)) if n != 0 => done += n,
            Ok(Copied::NoReader) if done == 0 => return Ok(Copied::NoReader),
            Err(e) if done == 0 => return Err(e),
            _ => break,
        }
    }
    Ok(Copied::Bytes(done))
}

/// Moves the first piece. As in the kernel, the call waits for room in the pipe, then for bytes.
fn copy_first(handle: &Handle, pipe: &Pipe<'_>, chunk: &mut [u8]) -> io::Result<Copied> {
    if pipe.await_room()? == Room::NoReader {
        return Ok(Copied::NoReader);
    }
    let seen = peek(handle, chunk, RecvFlags::empty())?;
    // That may have slept.
    if seen != 0 && pipe.await_room()? == Room::NoReader {
        return Ok(Copied::NoReader);
    }
    move_bytes(handle, pipe, &mut chunk[..seen])
}

/// Moves another piece, if the call can go on without waiting.
fn copy_next(handle: &Handle, pipe: &Pipe<'_>, chunk: &mut [u8]) -> io::Result<Copied> {
    let stream = handle.stream();
    // Asked first: the socket reports an error once, and the next call is to report it.
    let has_bytes = || stream.bytes_readable(handle.fd()).is_ok_and(|n| n != 0);
    if pipe.room()? != Room::Some || stream.is_at_mark(handle.fd()) || !has_bytes() {
        return Ok(Copied::Bytes(0));
    }
    let seen = peek(handle, chunk, RecvFlags::DONTWAIT)?;
    move_bytes(handle, pipe, &mut chunk[..seen])
}

/// Copies to `chunk` what the stream has next, and leaves it there.
fn peek(handle: &Handle, chunk: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    let bufs = &mut [IoSliceMut::new(chunk)];
    handle.stream().recv_by(handle.descriptor(), bufs, flags | RecvFlags::PEEK)
}

/// Writes the `seen` bytes, which the stream has next, to the pipe, and takes from the stream those
/// that were written.
fn move_bytes(handle: &Handle, pipe: &Pipe<'_>, seen: &mut [u8]) -> io::Result<Copied> {
    if seen.is_empty() {
        return Ok(Copied::Bytes(0));
    }
    let written = rustix::io::write(pipe.fd(), seen)?;
    let taken = &mut [IoSliceMut::new(&mut seen[..written])];
    let taken = handle.stream().recv_by(handle.descriptor(), taken, RecvFlags::DONTWAIT)?;
    Ok(Copied::Bytes(taken))
}

/// What a pipe takes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    Some,
    None,
    NoReader,
}

/// The end of a pipe that a call writes to.
struct Pipe<'a> {
    named: NamedFile<'a>,
    /// Another number for it, since other threads may close the program's while the call sleeps. If
    /// no number is free, the call uses the program's, and ends when that is gone.
    kept: Option<HighFd>,
    /// Whether the call waits for room.
    waits: bool,
}

impl<'a> Pipe<'a> {
    fn new(named: NamedFile<'a>, waits: bool) -> Self {
        let kept = rustix::io::fcntl_dupfd_cloexec(named.fd(), 0).ok().map(HighFd::new);
        Self { named, kept, waits }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.kept.as_ref().map_or(self.named.fd(), HighFd::as_fd)
    }

    /// Waits for room, or for the last reader to go, if the call waits.
    ///
    /// # Errors
    /// `EAGAIN` if it does not wait, `EINTR`, and `EBADF` if another thread has closed the pipe.
    fn await_room(&self) -> io::Result<Room> {
        let mut watch = Watch::begin();
        loop {
            match self.room()? {
                Room::None if self.waits => self.sleep(&mut watch)?,
                Room::None => return Err(Errno::AGAIN.into()),
                room => return Ok(room),
            }
        }
    }

    /// # Errors
    /// `EBADF` if another thread has closed the pipe.
    fn room(&self) -> io::Result<Room> {
        if self.kept.is_none() && !self.named.is_there() {
            return Err(Errno::BADF.into());
        }
        let mut entry = [PollFd::from_borrowed_fd(self.fd(), PollFlags::OUT)];
        retry_on_intr(|| poll(&mut entry, Some(&Timespec::default())))?;
        let found = entry[0].revents();
        Ok(if found.contains(PollFlags::ERR) {
            Room::NoReader
        } else if found.contains(PollFlags::OUT) {
            Room::Some
        } else {
            Room::None
        })
    }

    /// Sleeps until there may be room. Goes on after handlers that asked for `SA_RESTART`.
    fn sleep(&self, watch: &mut Watch) -> io::Result<()> {
        let mut entry = [PollDescriptor::new(self.fd().as_raw_fd(), PollFlags::OUT)];
        match poll_since(*watch, &mut entry, None, None) {
            Err(e) if errno::of(&e) == libc::EINTR && !watch.must_end() => watch.restart(),
            slept => drop(slept?),
        }
        Ok(())
    }
}
