//! The counters of a connection that `rsock stat` shows.

use crate::accelerate::four_tuple::FourTuple;
use crate::accelerate::{AcceleratedStream, inode_of};
use crate::metrics::{self, Direction};
use crate::sys;
use rustix::fd::BorrowedFd;

/// How a wait on the ring was spent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    Spinning,
    Sleeping,
}

impl Waited {
    /// Counts such a wait for data, or for room, on the ring.
    pub(super) fn count(self, stat: &metrics::StreamSlot, direction: Direction) {
        match self {
            Self::Spinning => stat.add_spin(direction),
            Self::Sleeping => stat.add_wakeup(direction),
        }
    }
}

impl AcceleratedStream {
    /// Opens this connection's line for `rsock stat`. Not for short connections: it costs a few
    /// system calls.
    pub(super) fn open_metrics(&self, fd: BorrowedFd<'_>) {
        sys::get_or_make(&self.stat, || {
            let none = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
            let known = self.tuple.get().copied().flatten();
            let tuple = known.or_else(|| FourTuple::of(fd).ok().flatten());
            let [local, peer] = tuple.map_or([none; 2], |t| [t.local, t.peer]);
            let inode = *sys::get_or_make(&self.inode, || inode_of(fd));
            let slot = metrics::StreamSlot::open(local, peer, inode);
            let (tx, rx) = (self.dirs.tx.0.try_lock(), self.dirs.rx.0.try_lock());
            if let (Some(tx), Some(rx)) = (tx, rx) {
                slot.add_bytes(Direction::Send, metrics::Transport::Tcp, tx.switch.tcp_bytes());
                slot.add_bytes(Direction::Recv, metrics::Transport::Tcp, rx.switch.tcp_bytes());
            }
            slot
        });
    }

    /// Counts bytes moved.
    #[inline]
    pub(super) fn count_bytes(&self, direction: Direction, path: metrics::Transport, n: usize) {
        if let Some(stat) = self.stat.get() {
            stat.add_bytes(direction, path, n as u64);
        }
    }

    /// Counts a wait on the ring.
    pub(super) fn count_wait(&self, direction: Direction, waited: Waited) {
        if let Some(stat) = self.stat.get() {
            waited.count(stat, direction);
        }
    }

    /// Notes which transport a direction uses from now on.
    pub(super) fn note_transport(&self, direction: Direction, path: metrics::Transport) {
        if let Some(stat) = self.stat.get() {
            stat.set_transport(direction, path);
        }
    }
}
