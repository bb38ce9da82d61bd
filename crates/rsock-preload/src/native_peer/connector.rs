//! What becomes of a connect that TCP refuses: peers that speak rsockets alone are called in their own way,
//! where the configuration says so. To the program it is one connect.

use crate::{fdtable, guard, log};
use libc::c_int;
use rsock_core::accelerate;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// How long a connect waits for the second answer. A host with a device gives it at once; a request that is
/// lost is repeated after seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long one that should not wait waits for TCP's answer, which tells whether it is to wait for another.
const ANSWER: Timespec = Timespec { tv_sec: 0, tv_nsec: 300_000_000 };

/// After `connect` of `fd` to `remote` has failed with `error`: the error that it fails with. `again` is the
/// same call, which says what has come of the first.
///
/// # Errors
/// `EINPROGRESS` may mean that it has succeeded meanwhile.
pub(crate) fn after_refusal(
    fd: c_int,
    remote: SocketAddr,
    error: c_int,
    again: impl FnOnce() -> c_int,
) -> Result<(), c_int> {
    if !matches!(error, libc::ECONNREFUSED | libc::EINPROGRESS) {
        return Err(error);
    }
    if guard::call_core(|| Ok(accelerate::is_called(remote))) != Ok(true) {
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
        let stream = accelerate::call(socket, remote, PATIENCE)?;
        fdtable::note_stream_made(fd, stream).map_err(io::Error::from_raw_os_error)
    })?;
    log::line(format_args!("fd {fd}: connected to {remote} without TCP"));
    if is_waiting { Ok(()) } else { Err(libc::EINPROGRESS) }
}

/// Whether TCP says no, soon.
fn is_refused(socket: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(socket, PollFlags::OUT)];
    poll(&mut fds, Some(&ANSWER)) == Ok(1) && fds[0].revents().contains(PollFlags::ERR)
}
