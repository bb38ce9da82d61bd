//! Native streams: connections without TCP, to a peer that speaks rsockets alone.
//!
//! The program holds a placeholder, a kernel TCP socket (see `placeholder.rs`). It has the
//! descriptor's number, flags and options, and no byte that the program sends or receives goes
//! through it. So such a stream cannot leave RDMA: a process that can only use the kernel's socket
//! (a program started by `exec`, a process that receives the descriptor, libc's own streams) gets a
//! socket whose peer has reset it, and calls of a forked child fail with `ECONNRESET`. Such a
//! stream has no switch: its bytes are on the device until it is broken, and it is never pinned.

#![forbid(unsafe_code)]

use crate::accelerate::close::{end_and_drain, error_of_broken};
use crate::accelerate::counters::Waited;
use crate::accelerate::epoll_proxy::{ProxySlot, Shows};
use crate::accelerate::native_peer::placeholder::{self, Placeholder};
use crate::accelerate::native_peer::state::State;
use crate::accelerate::path::{Path, PathCell};
use crate::accelerate::state::{FLAG_BROKEN, FLAG_RX_SHUT};
use crate::accelerate::tcp_socket::queued;
use crate::accelerate::{FallbackReason, inode_of};
use crate::closing::Closings;
use crate::interrupt::Section;
use crate::metrics::{self, Direction};
use rsock_cm::in_family;
use rsock_proto::Keepalive;
use rsock_verbs::family::{self, FamilyBox};
use rustix::fd::{BorrowedFd, OwnedFd, RawFd};
use rustix::net::{AddressFamily, Shutdown, sockopt};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// A connection to a peer that speaks rsockets alone.
///
/// Like an accelerated stream it does not own the program's descriptor, the placeholder: every call
/// takes the descriptor that the program named. Threads may share it; sending and receiving do not
/// block each other.
#[derive(Debug)]
pub struct NativeStream {
    pub(super) state: FamilyBox<State>,
    path: PathCell,
    pub(super) stat: metrics::StreamSlot,
    /// The inode of the placeholder.
    inode: u64,
    pub(super) proxy: ProxySlot,
    /// For calls in progress whose descriptor the program closes.
    closings: Closings,
    /// The addresses, in the family of the program's socket.
    local: SocketAddr,
    peer: SocketAddr,
    /// Declared after the path, which must be dropped first.
    placeholder: Placeholder,
}

/// When probes are due, by the options of `fd`; `None` without `SO_KEEPALIVE`.
fn keepalive(fd: BorrowedFd<'_>) -> Option<Keepalive> {
    if !sockopt::socket_keepalive(fd).unwrap_or(false) {
        return None;
    }
    let idle = sockopt::tcp_keepidle(fd).ok()?;
    let interval = sockopt::tcp_keepintvl(fd).ok()?;
    Some(Keepalive { idle, interval, probes: sockopt::tcp_keepcnt(fd).ok()? })
}

impl NativeStream {
    /// Wraps the placeholder that the program holds, `program`, whose other end is `kept`:
    /// everything goes by `path`. `None` for lack of memory.
    pub(in crate::accelerate) fn new(
        program: BorrowedFd<'_>,
        kept: OwnedFd,
        path: PathCell,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Option<Self> {
        let is_v6 =
            sockopt::socket_domain(program).is_ok_and(|domain| domain == AddressFamily::INET6);
        let [local, peer] = [local, peer].map(|addr| in_family(addr, is_v6));
        let inode = inode_of(program);
        let stat = metrics::StreamSlot::open(local, peer, inode);
        for direction in [Direction::Send, Direction::Recv] {
            stat.set_transport(direction, metrics::Transport::Rdma);
        }
        stat.set_fallback(FallbackReason::PlainRsockets);
        let this = Self {
            state: FamilyBox::new(State::new())?,
            path,
            stat,
            inode,
            proxy: ProxySlot::default(),
            closings: Closings::new(),
            local,
            peer,
            placeholder: Placeholder::new(kept),
        };
        this.follow_keepalive(program);
        Some(this)
    }

    /// The path, unless it is a parent's, which a forked child cannot use.
    #[inline]
    pub(in crate::accelerate) fn path(&self) -> Option<&Path> {
        self.path.get().map(|path| &**path).filter(|path| !path.is_inherited())
    }

    #[inline]
    pub(super) fn has(&self, flag: u32) -> bool {
        self.state.flags.0.has(flag)
    }

    /// The keepalive options of the placeholder may have changed: the stream uses them from now on.
    /// (For an accelerated stream the kernel sends probes.)
    pub fn follow_keepalive(&self, fd: BorrowedFd<'_>) {
        if let Some(path) = self.path() {
            path.set_keepalive(keepalive(fd), self.stat.probes());
        }
    }

    /// The local address and the peer's, which the kernel's socket does not know.
    #[must_use]
    pub fn addrs(&self) -> [SocketAddr; 2] {
        [self.local, self.peer]
    }

    /// Has the placeholder show to epoll sets that there is no room. Returns whether there is room
    /// after all.
    pub(super) fn show_full(&self, fd: BorrowedFd<'_>, path: &Path) -> bool {
        self.placeholder.show_full(fd);
        // In this order: a thread that is about to sleep notices room that arrives later.
        let has_room = path.has_room() || path.is_disconnected();
        if has_room {
            self.show_room(fd);
        }
        has_room
    }

    /// Has the placeholder show to epoll sets that there is room.
    pub fn show_room(&self, fd: BorrowedFd<'_>) {
        self.placeholder.show_room(fd);
    }

    /// Whether the placeholder shows to epoll sets that there is no room. Then a thread must wait
    /// for room, with [`poll`](crate::accelerate::poll()), and call [`Self::show_room`].
    #[must_use]
    pub fn shows_full(&self) -> bool {
        self.placeholder.shows_full()
    }

    /// Whether any stream of this process [shows](Self::shows_full) that there is no room.
    #[inline]
    #[must_use]
    pub fn any_shows_full() -> bool {
        placeholder::any_shows_full()
    }

    /// The descriptor to add to an epoll set beside the placeholder, with the same data and
    /// interest in input. `None` in a forked child.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: there is no descriptor for it. A set without it may sleep
    /// although there are bytes.
    pub fn epoll_proxy(&self) -> io::Result<Option<RawFd>> {
        let Some(path) = self.path() else { return Ok(None) };
        let _section = Section::enter();
        let _rx = self.state.idle_reads.0.lock();
        self.proxy.open(path, Shows::RingAndEnd, &self.state.flags.0)
    }

    /// Bytes that a `recv` could return now (`FIONREAD`).
    ///
    /// # Errors
    /// As `ioctl(FIONREAD)`, in a forked child.
    pub fn bytes_readable(&self, fd: BorrowedFd<'_>) -> io::Result<usize> {
        let Some(path) = self.path() else { return queued(fd) };
        let _section = Section::enter();
        Ok(if self.has(FLAG_BROKEN) { 0 } else { path.bytes_readable() })
    }

    /// Whether `fd` is the placeholder that this stream began with, and not a successor of its
    /// number.
    #[must_use]
    pub fn is_same_socket(&self, fd: BorrowedFd<'_>) -> bool {
        inode_of(fd) == self.inode
    }

    pub(in crate::accelerate) fn inode(&self) -> u64 {
        self.inode
    }

    /// What calls on this socket need if their descriptor may be closed while they run.
    #[inline]
    #[must_use]
    pub fn closings(&self) -> &Closings {
        &self.closings
    }

    /// Waits for every call that holds the lock of a direction.
    pub(in crate::accelerate) fn await_locked_calls(&self) {
        drop(self.state.tx.0.lock());
        drop(self.state.idle_reads.0.lock());
    }

    /// The descriptor to watch for the end of the connection.
    pub(in crate::accelerate) fn auxiliary_fd(&self) -> Option<RawFd> {
        self.path().and_then(Path::connection_fd)
    }

    /// [`Self::auxiliary_fd`] has become readable.
    pub(in crate::accelerate) fn on_auxiliary_ready(&self) {
        if let Some(path) = self.path() {
            path.connection_state();
        }
    }

    pub(in crate::accelerate) fn count_wait(&self, direction: Direction, waited: Waited) {
        waited.count(&self.stat, direction);
    }

    /// As `shutdown(2)`. The placeholder is shut down too, for event loops that watch it.
    ///
    /// # Errors
    /// As `shutdown(2)`.
    pub fn shutdown(&self, fd: BorrowedFd<'_>, how: Shutdown) -> io::Result<()> {
        if how != Shutdown::Write {
            self.state.flags.0.raise(FLAG_RX_SHUT);
        }
        if how == Shutdown::Read {
            return Ok(rustix::net::shutdown(fd, how)?);
        }
        let _section = Section::enter();
        let _tx = self.state.tx.0.lock();
        if let Some(path) = self.path() {
            path.shutdown(std::net::Shutdown::Write);
        }
        Ok(rustix::net::shutdown(fd, how)?)
    }

    /// The program closes its last descriptor. The stream notifies the peer, even if bytes are
    /// unread here: C's rsockets learn of the close in no other way.
    pub fn close(&self, fd: BorrowedFd<'_>) {
        let Some(path) = self.path() else { return };
        if sockopt::socket_linger(fd) == Ok(Some(Duration::ZERO)) {
            path.shutdown(std::net::Shutdown::Both);
            return path.disconnect();
        }
        self.finish();
    }

    /// Delivers sent bytes to the peer, because the process is about to end.
    pub fn finish(&self) {
        if let Some(path) = self.path().filter(|_| !self.has(FLAG_BROKEN)) {
            let _section = Section::enter();
            end_and_drain(path);
        }
    }

    /// Ends the connection, which the device, or the peer's end, has broken in `direction`. The
    /// error is for the call that found it.
    pub(super) fn break_off(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        direction: Direction,
    ) -> io::Error {
        self.stat.set_transport(direction, metrics::Transport::Tcp);
        if !self.has(FLAG_BROKEN) {
            self.state.flags.0.raise(FLAG_BROKEN);
            let _ = rustix::net::shutdown(fd, Shutdown::Both);
            path.disconnect();
        }
        error_of_broken(Some(path))
    }

    /// Ends the stream for a process that can only use the kernel's socket. Returns the socket that
    /// must take the place of every descriptor of the stream in this process: its peer has reset
    /// it.
    ///
    /// # Errors
    /// When a descriptor cannot be had: `EMFILE`...
    pub fn hand_off(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.finish();
        placeholder::reset(fd, self.local.ip())
    }

    /// Whether another process holds this stream too, as far as is known.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.state.holders.0.has_others(family::process().0)
    }

    /// One more process holds this stream: this one, a forked child.
    pub fn note_inherited(&self) {
        self.state.holders.0.add_child(family::process().0);
    }

    /// This process holds this stream no more: it has closed its last descriptor.
    pub fn note_released(&self) {
        self.state.holders.0.remove(family::process().0);
    }
}
