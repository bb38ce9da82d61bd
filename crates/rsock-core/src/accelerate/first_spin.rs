//! A moment's spin before a call asks the kernel whether, and for how long, it may wait: the two
//! system calls take as long as a peer on another CPU takes to answer.

#![forbid(unsafe_code)]

use crate::accelerate::AcceleratedStream;
use crate::accelerate::counters::Waited;
use crate::accelerate::state::{FLAG_RX_WAITS, FLAG_TX_WAITS};
use crate::accelerate::tcp_socket::is_nonblocking;
use crate::engine::Interest;
use crate::metrics::Direction;
use rustix::fd::BorrowedFd;

/// The flag that says whether the last call of a direction that had to wait did wait, and what such
/// a call waits for.
fn wait_of(direction: Direction) -> (u32, Interest) {
    match direction {
        Direction::Recv => (FLAG_RX_WAITS, Interest::Read),
        Direction::Send => (FLAG_TX_WAITS, Interest::Write),
    }
}

impl AcceleratedStream {
    /// Spins for a moment, if the last call of this direction that had to wait did wait. Returns
    /// whether something has happened on the ring since `mark`.
    #[inline]
    pub(super) fn first_spin(&self, direction: Direction, mark: u32) -> bool {
        let (flag, interest) = wait_of(direction);
        let has_changed =
            self.has(flag) && self.path().is_some_and(|path| path.spin_at_first(interest, mark));
        if has_changed {
            self.count_wait(direction, Waited::Spinning);
        }
        has_changed
    }

    /// Whether calls by `fd` return `EAGAIN` instead of waiting. The next call spins first if not.
    pub(super) fn may_not_wait(&self, fd: BorrowedFd<'_>, direction: Direction) -> bool {
        let (flag, _) = wait_of(direction);
        let is_nonblocking = is_nonblocking(fd);
        if is_nonblocking && self.has(flag) {
            self.dirs.shared.0.bits.lower(flag);
        } else if !is_nonblocking && !self.has(flag) {
            self.dirs.raise(flag);
        }
        is_nonblocking
    }
}
