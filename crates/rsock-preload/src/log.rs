//! `RSOCK_LOG=path`: what happens to each descriptor, a line at a time, for debugging.
//!
//! Off, it costs one load. On, each line is one `write` of a buffer on the stack, so it may be used
//! in signal handlers and keeps whole lines of several processes apart.

use libc::c_char;
use rsock_verbs::own_fd;
use rustix::fd::{BorrowedFd, IntoRawFd};
use rustix::fs::{Mode, OFlags};
use std::ffi::CStr;
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicI32, Ordering};

unsafe extern "C" {
    /// Null for programs that run with more rights than their caller.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

const OFF: i32 = -1;
static FD: AtomicI32 = AtomicI32::new(OFF);

/// Opens the log if the environment has a path for it.
#[unsafe(link_section = "rsock_hooks")]
pub(crate) fn open() {
    // SAFETY: the name is a C string; no code changes the environment while libraries are loaded.
    let path = unsafe { secure_getenv(c"RSOCK_LOG".as_ptr()) };
    if path.is_null() {
        return;
    }
    // SAFETY: a value of the environment is a C string, and stays for the length of `open`.
    let path = unsafe { CStr::from_ptr(path) };
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND | OFlags::CLOEXEC;
    let Ok(low) = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) else { return };
    FD.store(own_fd::raise(low).into_raw_fd(), Ordering::Release);
}

/// Ends the log.
pub(crate) fn end() {
    FD.store(OFF, Ordering::Relaxed);
}

/// Writes one line, if there is a log.
#[inline]
pub(crate) fn line(text: fmt::Arguments<'_>) {
    let fd = FD.load(Ordering::Relaxed);
    if fd != OFF {
        write_line(fd, text);
    }
}

#[cold]
fn write_line(fd: i32, text: fmt::Arguments<'_>) {
    let pid = rustix::process::getpid().as_raw_nonzero();
    let tid = rustix::thread::gettid().as_raw_nonzero();
    let mut line = Line { text: [0; 256], len: 0 };
    // A line that is too long is cut.
    let _ = write!(line, "rsock {pid}/{tid}: {text}");
    line.text[line.len] = b'\n';
    // SAFETY: not -1, and never closed by the process that opened it.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let _ = rustix::io::write(fd, &line.text[..=line.len]);
}

/// A line on the stack, with room for its end.
struct Line {
    text: [u8; 256],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let room = self.text.len() - 1 - self.len;
        let n = s.len().min(room);
        self.text[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        if n < s.len() { Err(fmt::Error) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_too_long_is_cut_and_keeps_room_for_its_end() {
        let mut line = Line { text: [0; 256], len: 0 };
        assert!(write!(line, "{}", "x".repeat(300)).is_err());
        assert_eq!(line.len, 255);
    }
}
