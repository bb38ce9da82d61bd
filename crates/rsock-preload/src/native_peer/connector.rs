//! Connects to peers that speak rsockets alone, after TCP was refused and where the configuration
//! allows it. To the program it is one `connect`.

use crate::{fdtable, guard, log};
use libc::c_int;
use rsock_core::accelerate::NativeStream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a connect waits for the second answer. A host with a device answers at once; a lost
/// request is repeated after seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a non-blocking connect waits for TCP's answer, which decides whether there is a second
/// attempt.
const ANSWER: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// Continues a `connect` of `fd` to `remote` that has failed with `error`. `again` repeats the
/// system call, which returns the outcome of the first attempt.
///
/// # Errors
/// The errno for the program. `EINPROGRESS` may mean that the connection has been made meanwhile.
pub(crate) fn after_refusal(
    fd: c_int,
    remote: SocketAddr,
    error: c_int,
    again: impl FnOnce() -> c_int,
) -> Result<(), c_int> {
    if !matches!(error, libc::ECONNREFUSED | libc::EINPROGRESS) {
        return Err(error);
    }
    if guard::call_core(|| Ok(NativeStream::may_connect(remote))) != Ok(true) {
        return Err(error);
    }
    // SAFETY: not -1, since it took an address; the program does not close it during its call.
    let socket = unsafe { BorrowedFd::borrow_raw(fd) };
    let is_waiting = error == libc::ECONNREFUSED;
    if !is_waiting {
        if !is_refused(socket) {
            return Err(error);
        }
        match again() {
            libc::ECONNREFUSED => {}
            0 => return Err(error),
            now => return Err(now),
        }
    }
    guard::call_core(|| {
        let stream = NativeStream::connect(socket, remote, PATIENCE)?;
        fdtable::note_stream_made(fd, stream).map_err(io::Error::from_raw_os_error)
    })?;
    log::line(format_args!("fd {fd}: connected to {remote} without TCP"));
    if is_waiting { Ok(()) } else { Err(libc::EINPROGRESS) }
}

/// Whether TCP refuses within [`ANSWER`].
fn is_refused(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    poll(&mut fds, Some(&ANSWER)) == Ok(1) && fds[0].revents().contains(PollFlags::ERR)
}
