//! Breaking off a connection between hosts, whose path has failed.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::state::{FLAG_TX_PLAIN, Sending};
use crate::metrics::{self, Direction};
use rustix::fd::BorrowedFd;
use std::io;

impl AcceleratedStream {
    /// The path between hosts failed, and it is unknown which of the sent bytes have arrived. So
    /// the connection ends, whatever TCP could still do. The caller holds the lock.
    pub(in crate::accelerate) fn break_off(
        &self,
        fd: BorrowedFd<'_>,
        tx: &mut Sending,
    ) -> io::Error {
        let how = self.how_to_break(tx);
        tx.switch.break_off();
        self.note_transport(Direction::Send, metrics::Transport::Tcp);
        self.dirs.raise(FLAG_TX_PLAIN);
        self.break_connection(fd, how)
    }
}
