//! Descriptors of streams that another program inherits from this process.

use super::LAST_STANDARD;
use crate::slot::{Direction, Handle, Key};
use crate::{fdtable, guard, log, rows};
use rsock_core::accelerate::{FallbackReason, StreamRef, await_leave, socket_inode};
use rustix::fd::{AsRawFd, BorrowedFd, RawFd};
use rustix::io::{FdFlags, fcntl_getfd};
use std::time::Duration;

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

    pub(super) fn is_inherited(&self) -> bool {
        self.inherited().is_some()
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
        can_leave && self.is_inherited() && self.handle.is_meant_by(pid)
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
        if let Some(inode) = socket_inode(borrow(fd)) {
            f(fd, inode);
        }
    }
}

fn look(fd: RawFd) -> Option<StreamFd> {
    let flags = fcntl_getfd(borrow(fd)).ok()?;
    Some(StreamFd { fd, close_on_exec: flags.contains(FdFlags::CLOEXEC) })
}

fn borrow(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: not negative; only asked about, and nothing follows if it is not open.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Has the kernel alone carry what a program inherits which is about to start: those of `streams`
/// that an `exec` leaves open, connections that have not left TCP, UDP sockets. Waits for streams
/// that have not been asked before.
pub(super) fn return_to_tcp(streams: Vec<OpenStream>) {
    for fd in fdtable::known_fds(0, u32::MAX) {
        let may_move = fdtable::is_candidate(fd) || fdtable::datagrams::is_udp(fd);
        if may_move && socket_inode(borrow(fd)).and_then(|_| look(fd)).is_some_and(is_left_open) {
            fdtable::pin(fd, FallbackReason::Passed);
        }
    }
    await_leave_by_slices(&streams.into_iter().filter_map(ask_to_leave).collect::<Vec<_>>());
}

fn is_left_open(descriptor: StreamFd) -> bool {
    !descriptor.close_on_exec
}

/// A stream that has been asked to leave the ring.
struct Leaving {
    key: Key,
    /// Its number in the table.
    number: RawFd,
    /// A number that the new program inherits.
    inherited: RawFd,
}

/// `None` for a stream that the new program does not inherit, has been asked before, or has no TCP.
fn ask_to_leave(stream: OpenStream) -> Option<Leaving> {
    let inherited = stream.inherited().filter(|_| !stream.handle.stream().is_native())?;
    let handle = stream.handle;
    let pin = || Ok(handle.pin_by(borrow(inherited), FallbackReason::Passed));
    let is_new = guard::call_core(pin).unwrap_or(false);
    is_new.then(|| {
        log::line(format_args!("fd {inherited}: inherited by a program that starts"));
        Leaving { key: handle.key(), number: handle.fd().as_raw_fd(), inherited }
    })
}

fn await_leave_by_slices(leaving: &[Leaving]) {
    for _ in 0..LEAVE_LIMIT.as_millis() / SLICE.as_millis() {
        let open = |stream: &Leaving| {
            let handle = fdtable::find(stream.number, Direction::Recv)?;
            (handle.key() == stream.key).then_some((handle, stream.inherited))
        };
        let handles: Vec<_> = leaving.iter().filter_map(open).collect();
        let streams: Vec<_> = handles
            .iter()
            .filter_map(|(handle, fd)| match handle.stream() {
                StreamRef::Accelerated(stream) => Some((stream, borrow(*fd))),
                StreamRef::Native(_) => None,
            })
            .collect();
        let has_ended = guard::call_core(|| Ok(await_leave(&streams, SLICE)));
        if has_ended.unwrap_or(true) {
            return;
        }
    }
}
