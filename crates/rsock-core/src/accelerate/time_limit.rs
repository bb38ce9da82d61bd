//! How long a call may wait: `SO_RCVTIMEO` and `SO_SNDTIMEO`.

#![forbid(unsafe_code)]

use crate::sys;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use std::io;
use std::time::{Duration, Instant};

/// The time limit of one call. It reads the socket's option at its first wait.
pub(super) struct TimeLimit {
    option: Timeout,
    /// `Some(None)` is without limit.
    deadline: Option<Option<Instant>>,
}

/// The time of one wait: `most`, or what is `left` if that is less.
pub(super) fn at_most(most: Duration, left: Option<Duration>) -> Duration {
    left.map_or(most, |left| left.min(most))
}

impl TimeLimit {
    /// The limit that `option` sets.
    pub(super) fn new(option: Timeout) -> Self {
        Self { option, deadline: None }
    }

    /// Whether the option has been read.
    pub(super) fn is_known(&self) -> bool {
        self.deadline.is_some()
    }

    /// The call begins again: only calls without a limit do.
    pub(super) fn restart(&mut self) {
        if self.deadline == Some(None) {
            self.deadline = None;
        }
    }

    /// How long the call may still wait; `None` is without limit.
    ///
    /// # Errors
    /// `EAGAIN` if the time is over; `ENOTSOCK` or `EBADF` if the number is another file's, or
    /// none's, by now.
    pub(super) fn left(&mut self, fd: BorrowedFd<'_>) -> io::Result<Option<Duration>> {
        let deadline = match self.deadline {
            Some(deadline) => deadline,
            None => *self.deadline.insert(deadline(fd, self.option)?),
        };
        match sys::time_left(deadline) {
            Some(Duration::ZERO) => Err(Errno::AGAIN.into()),
            left => Ok(left),
        }
    }
}

/// When a call that begins to wait now must end.
fn deadline(fd: BorrowedFd<'_>, option: Timeout) -> Result<Option<Instant>, Errno> {
    match sockopt::socket_timeout(fd, option) {
        Ok(timeout) => Ok(timeout.and_then(|timeout| sys::now().checked_add(timeout))),
        Err(e @ (Errno::NOTSOCK | Errno::BADF)) => Err(e),
        Err(_) => Ok(None),
    }
}
