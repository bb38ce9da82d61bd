//! Descriptors of streams that another program inherits from this process.

use crate::fdtable::LAST_STANDARD;
use crate::slot::{self, Direction, Handle, Key};
use crate::{fdtable, guard, rows};
use rsock_core::accelerate::{FallbackReason, socket_inode};
use rustix::fd::{BorrowedFd, RawFd};
use std::time::{Duration, Instant};

/// How long peers may take to leave the ring before a program starts, all together. Most need less
/// than a millisecond: a peer that waits for anything is woken for it.
const LEAVE_LIMIT: Duration = Duration::from_millis(200);
/// How long streams are in use by the wait at a time. A thread that closes one meanwhile waits too.
const SLICE: Duration = Duration::from_millis(10);

/// A descriptor of a stream.
pub(super) struct StreamFd {
    pub(super) fd: RawFd,
    /// Whether an `exec` closes it.
    pub(super) close_on_exec: bool,
}

/// A stream that is not on TCP for good, and all descriptors of this process that refer to it.
pub(super) struct OpenStream {
    pub(super) handle: Handle,
    /// Lowest first.
    descriptors: Vec<StreamFd>,
}

impl OpenStream {
    pub(super) fn lowest(&self) -> Option<RawFd> {
        self.descriptors.first().map(|descriptor| descriptor.fd)
    }

    /// The lowest descriptor that an `exec` leaves open.
    pub(super) fn inherited(&self) -> Option<RawFd> {
        self.descriptors.iter().find(|descriptor| !descriptor.close_on_exec).map(|found| found.fd)
    }

    /// Whether a program that inherits it gets it as its standard input, output or error.
    pub(super) fn is_standard(&self) -> bool {
        self.inherited().is_some_and(|fd| fd <= LAST_STANDARD)
    }

    /// Whether a new program gets it by a file action, whatever happens to these descriptors.
    pub(super) fn is_in_file_action(&self) -> bool {
        self.handle.is_for_child()
    }

    /// Whether the `vfork` child `pid` leaves it open on purpose.
    pub(super) fn is_meant_by(&self, pid: u32) -> bool {
        let can_leave = !self.handle.stream().is_native();
        can_leave && self.inherited().is_some() && self.handle.is_meant_by(pid)
    }
}

/// Every stream that is not on TCP for good. It takes one look at each descriptor, however many
/// streams there are.
pub(super) fn open_streams() -> Vec<OpenStream> {
    let with_inode = |handle: Handle| {
        let inode = handle.stream().inode()?;
        Some((inode, OpenStream { handle, descriptors: Vec::new() }))
    };
    let mut streams: Vec<_> =
        fdtable::accelerated_streams().into_iter().filter_map(with_inode).collect();
    if streams.is_empty() {
        return Vec::new();
    }
    streams.sort_unstable_by_key(|(inode, _)| *inode);
    for_each_socket(|fd, inode| {
        if let Ok(at) = streams.binary_search_by_key(&inode, |(inode, _)| *inode) {
            streams[at].1.descriptors.extend(look(fd));
        }
    });
    streams.into_iter().map(|(_, stream)| stream).collect()
}

/// All descriptors of this process that refer to the stream, lowest first.
pub(super) fn descriptors_of(handle: &Handle) -> Vec<StreamFd> {
    let mut found = Vec::new();
    let wanted = handle.stream().inode();
    for_each_socket(|fd, inode| {
        if Some(inode) == wanted {
            found.extend(look(fd));
        }
    });
    found
}

/// Passes the number and the inode of each socket of this process to `f`, lowest number first.
fn for_each_socket(mut f: impl FnMut(RawFd, u64)) {
    let end = RawFd::try_from(rows::end()).unwrap_or(RawFd::MAX);
    for fd in 0..end {
        // SAFETY: not negative; only asked about, and nothing follows if it is not open.
        if let Some(inode) = socket_inode(unsafe { BorrowedFd::borrow_raw(fd) }) {
            f(fd, inode);
        }
    }
}

fn look(fd: RawFd) -> Option<StreamFd> {
    fdtable::closes_on_exec(fd).map(|close_on_exec| StreamFd { fd, close_on_exec })
}

/// A stream that has been asked to leave the ring.
pub(super) struct Leaving {
    key: Key,
    fd: RawFd,
}

/// Pins all connections and UDP sockets that a program inherits which this process is about to
/// start. Returns the streams that were not pinned before.
pub(super) fn ask_to_leave() -> Vec<Leaving> {
    let mut leaving = Vec::new();
    for fd in fdtable::known_fds(0, u32::MAX) {
        let is_socket = fdtable::is_connection(fd) || fdtable::datagrams::is_udp(fd);
        if !is_socket || fdtable::closes_on_exec(fd) != Some(false) {
            continue;
        }
        let handle = fdtable::find(fd, Direction::Recv).filter(|handle| !handle.is_pinned());
        fdtable::pin(fd, FallbackReason::Passed);
        leaving.extend(handle.map(|handle| Leaving { key: handle.key(), fd }));
    }
    leaving
}

/// Waits until these streams have left the ring, [`LEAVE_LIMIT`] at most for all of them.
pub(super) fn await_leave(leaving: &[Leaving]) {
    if leaving.is_empty() {
        return;
    }
    let began = Instant::now();
    while began.elapsed() < LEAVE_LIMIT {
        let find = |stream: &Leaving| {
            let handle = fdtable::find(stream.fd, Direction::Recv)?;
            (handle.key() == stream.key).then_some(handle)
        };
        let handles: Vec<_> = leaving.iter().filter_map(find).collect();
        let has_ended = guard::call_core(|| Ok(slot::await_leave(&handles, SLICE)));
        if has_ended.unwrap_or(true) {
            return;
        }
    }
}
