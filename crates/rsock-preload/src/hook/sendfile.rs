//! `sendfile`: a stream off TCP takes a file's bytes through a buffer.

use super::file_buffer::{place_in_page, with_buffer};
use super::named_file::NamedFile;
use super::splice::splice_from_stream;
use crate::slot::{Direction, Handle};
use crate::{arg, cancel, errno, fdtable, guard, next, signal};
use libc::{c_int, off_t, size_t, ssize_t};
use rsock_core::accelerate::FallbackReason;
use rustix::fs::SeekFrom;
use rustix::net::SendFlags;
use std::io::{self, IoSlice};

/// As `sendfile(2)`.
///
/// # Safety
/// As `sendfile(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    // SAFETY: the caller's promise; the kernel reports an offset that is not there.
    if let Some(first) = unsafe { fdtable::sendfile_first(out, from, offset, len) } {
        return errno::ret_len(first);
    }
    if offset.is_null() && fdtable::is_known(from) && !fdtable::is_known(out) {
        fdtable::pin(from, FallbackReason::Option);
        let by_stream = || splice_from_stream(from, out, len, 0);
        if let Some(n) = cancel::without_cancel(by_stream) {
            return n;
        }
    }
    // SAFETY: the caller's promise.
    let sent = cancel::through_cancel(|| unsafe { sendfile_by_stream(out, from, offset, len) });
    // SAFETY: arguments passed on unchanged.
    sent.unwrap_or_else(|| unsafe { next::sendfile(out, from, offset, len) })
}

/// As `sendfile(2)`, under its other name.
///
/// # Safety
/// As `sendfile(2)`.
#[cfg_attr(not(test), unsafe(no_mangle), unsafe(link_section = "rsock_hooks"))]
pub(crate) unsafe extern "C-unwind" fn sendfile64(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    len: size_t,
) -> ssize_t {
    // SAFETY: arguments passed on unchanged.
    unsafe { sendfile(out, from, offset, len) }
}

/// Sends a file by the stream of `out`. `None` if the kernel has to, or if it refuses the call or
/// sends nothing.
///
/// # Safety
/// As `sendfile(2)`.
unsafe fn sendfile_by_stream(
    out: c_int,
    from: c_int,
    offset: *mut off_t,
    len: size_t,
) -> Option<ssize_t> {
    if from < 0 || len == 0 || isize::try_from(len).is_err() {
        return None;
    }
    let handle = fdtable::begin_call(out, Direction::Send)?;
    if handle.stream().is_plain() {
        return None;
    }
    let file = NamedFile::new(from).ok()?;
    if !file.kind().is_file() && !file.kind().is_block_device() {
        drop(handle);
        if fdtable::has_no_tcp(out) {
            // The kernel's answer for a descriptor that `sendfile` does not support.
            return Some(errno::fail(libc::EINVAL));
        }
        fdtable::pin(out, FallbackReason::Option);
        return None;
    }
    // SAFETY: the caller's promise.
    let start = match unsafe { start_of(&file, offset, len) } {
        Ok(start) => start?,
        Err(e) => return Some(errno::fail(e)),
    };
    let transfer = Transfer { handle: &handle, file, moves_file: offset.is_null() };
    let len = len.min(arg::MAX_LEN);
    let mut result = guard::call_core(|| with_buffer(|buffer| transfer.run(start, len, buffer)));
    drop(handle);
    if let Ok(n) = result
        && !offset.is_null()
    {
        let end = off_t::try_from(start + n as u64).unwrap_or(off_t::MAX);
        // SAFETY: the caller's promise.
        result = unsafe { arg::store(&end, offset) }.map(|()| n);
    }
    if result == Err(libc::EPIPE) {
        signal::raise_sigpipe();
    }
    Some(errno::ret_len(result))
}

/// Where in the file a call begins. `None` if the kernel refuses the call: the beginning or the end
/// is no offset.
///
/// # Errors
/// `EFAULT`.
///
/// # Safety
/// As `sendfile(2)`.
unsafe fn start_of(
    file: &NamedFile<'_>,
    offset: *const off_t,
    len: size_t,
) -> Result<Option<u64>, c_int> {
    let start = if offset.is_null() {
        rustix::fs::seek(file.fd(), SeekFrom::Current(0)).ok()
    } else {
        // SAFETY: the caller's promise.
        u64::try_from(unsafe { arg::load(offset) }?).ok()
    };
    let is_offset = |end| off_t::try_from(end).is_ok();
    Ok(start.filter(|start| start.checked_add(len as u64).is_some_and(is_offset)))
}

/// One call. Another thread may close the file's number while a send sleeps.
struct Transfer<'a> {
    handle: &'a Handle,
    file: NamedFile<'a>,
    /// Whether the file's own offset follows the bytes.
    moves_file: bool,
}

impl Transfer<'_> {
    /// Sends up to `len` bytes of the file from `start` on, through `buffer`. The next call reports
    /// an error that comes after the first byte.
    fn run(&self, start: u64, len: usize, buffer: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < len {
            let at = start + done as u64;
            let room = &mut buffer[place_in_page(at)..];
            let want = room.len().min(len - done);
            let sent = self.read(at, &mut room[..want], done == 0).and_then(|n| match n {
                0 => Ok((0, 0)),
                n => self.send(at, &room[..n]).map(|sent| (n, sent)),
            });
            match sent {
                Ok((n, sent)) => {
                    done += sent;
                    // A short read is the end of the file, also where the number names another one
                    // by now.
                    if sent < n || n < want {
                        break;
                    }
                }
                Err(e) if done == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Reads from the file at `at`. Nothing if the number names another file.
    fn read(&self, at: u64, to: &mut [u8], is_first: bool) -> io::Result<usize> {
        let n = rustix::io::pread(self.file.fd(), to, at)?;
        // Asked after the read: what it has brought is the file's if the number still names it.
        Ok(if is_first || self.file.is_there() { n } else { 0 })
    }

    /// Sends a piece of the file that begins at `at`.
    fn send(&self, at: u64, piece: &[u8]) -> io::Result<usize> {
        // Before the send: once that has slept, the number may be gone.
        self.move_file(at + piece.len() as u64);
        let bufs = &[IoSlice::new(piece)];
        let stream = self.handle.stream();
        let result = stream.send_by(self.handle.descriptor(), bufs, SendFlags::empty());
        let sent = *result.as_ref().unwrap_or(&0);
        if sent < piece.len() && self.moves_file && self.file.is_there() {
            self.move_file(at + sent as u64);
        }
        result
    }

    fn move_file(&self, to: u64) {
        if self.moves_file {
            let _ = rustix::fs::seek(self.file.fd(), SeekFrom::Start(to));
        }
    }
}
