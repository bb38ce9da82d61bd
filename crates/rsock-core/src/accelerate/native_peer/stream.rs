//! A stream without TCP: the peer speaks rsockets alone.
//!
//! The program holds a placeholder all the same, a kernel TCP socket that is connected to a socket of
//! ours. It has the number, the flags and the options, and nothing that the program sends or receives
//! ever goes through it. So such a stream cannot leave RDMA: who can use the kernel's socket only (a
//! program started by exec, a process that is sent the descriptor, libc's own streams) gets one whose
//! peer has reset it, and a forked child meets `ECONNRESET`. Such a
//! stream has no switch: its bytes are on the device until it is broken, and it is never pinned.

#![forbid(unsafe_code)]

use crate::accelerate::path::{ConnectionState, Path, RdmaPath};
use crate::accelerate::receive::{self, SOCKET_CHECK_INTERVAL};
use crate::accelerate::send;
use crate::accelerate::socket_proxy;
use crate::accelerate::state::{
    FLAG_BROKEN, FLAG_EPOLL_PROXY, FLAG_HAS_PATH, FLAG_RX_SHUT, Receiving, Sending,
};
use crate::accelerate::{AcceleratedStream, FallbackReason, Side, inode_of};
use crate::engine::{RecvError, SendError};
use crate::metrics::{self, Direction};
use rsock_cm::in_family;
use rsock_proto::Keepalive;
use rsock_verbs::HighFd;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, sockopt};
use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What a stream without TCP has in its place.
#[derive(Debug)]
pub(in crate::accelerate) struct Sole {
    /// The other end of the program's descriptor.
    _far: HighFd,
    /// While the placeholder shows that there is no room: the size of its send buffer otherwise.
    full: Mutex<Option<usize>>,
    /// As the program's kind of socket shows them.
    local: SocketAddr,
    peer: SocketAddr,
}

/// Placeholders that show that there is no room.
static N_FULL: AtomicUsize = AtomicUsize::new(0);

impl Drop for Sole {
    fn drop(&mut self) {
        if self.full.get_mut().unwrap_or_else(PoisonError::into_inner).is_some() {
            N_FULL.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// A socket for the program that passes for one which `like` has accepted, and its other end.
///
/// # Errors
/// As `socket(2)` and `connect(2)`.
pub(in crate::accelerate) fn placeholder(
    like: BorrowedFd<'_>,
    local: SocketAddr,
) -> io::Result<(OwnedFd, OwnedFd)> {
    let (near, far) = socket_proxy::placeholder(sockopt::socket_domain(like)?, local.ip())?;
    socket_proxy::copy_options(like, rustix::fd::AsFd::as_fd(&near));
    Ok((near, far))
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

impl AcceleratedStream {
    /// Wraps the placeholder `near`, whose other end is `far`: everything goes by `path`. `None` for lack
    /// of memory.
    pub(in crate::accelerate) fn sole(
        near: BorrowedFd<'_>,
        far: OwnedFd,
        path: RdmaPath,
        side: Side,
        (local, peer): (SocketAddr, SocketAddr),
    ) -> Option<Self> {
        let is_v6 = sockopt::socket_domain(near).is_ok_and(|domain| domain == AddressFamily::INET6);
        let [local, peer] = [local, peer].map(|addr| in_family(addr, is_v6));
        let mut this = Self::adopt(near, Some(side))?;
        this.sole = Some(Sole { _far: HighFd::new(far), full: Mutex::new(None), local, peer });
        this.inode.get_or_init(|| inode_of(near));
        this.path.get_or_init(|| Box::new(Path::Rdma(path)));
        this.dirs.raise(FLAG_HAS_PATH);
        this.open_metrics(near);
        for direction in [Direction::Send, Direction::Recv] {
            this.note_transport(direction, metrics::Transport::Rdma);
        }
        if let Some(stat) = this.stat.get() {
            stat.set_fallback(FallbackReason::PlainRsockets);
        }
        this.follow_keepalive(near);
        Some(this)
    }

    /// The placeholder's keepalive options may have changed: a stream without TCP keeps to them. (Of others the
    /// kernel asks after the peer.)
    pub fn follow_keepalive(&self, fd: BorrowedFd<'_>) {
        if let (Some(_), Some(path)) = (&self.sole, self.path()) {
            let count = self.stat.get().and_then(metrics::StreamSlot::probes);
            path.set_keepalive(keepalive(fd), count);
        }
    }

    /// Whether the peer speaks rsockets alone, so that there is no TCP.
    #[inline]
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.sole.is_some()
    }

    /// The stream's addresses, ours and the peer's, where the kernel's socket does not know them.
    #[must_use]
    pub fn sole_addrs(&self) -> Option<[SocketAddr; 2]> {
        self.sole.as_ref().map(|sole| [sole.local, sole.peer])
    }

    /// Has the placeholder show that there is no room, to who watches it in an epoll set: its send buffer is
    /// made small, and filled. Whether there is room after all.
    pub(in crate::accelerate) fn show_full(&self, fd: BorrowedFd<'_>) -> bool {
        let (Some(sole), Some(path)) = (&self.sole, self.path()) else { return false };
        {
            let mut full = sole.full.lock().unwrap_or_else(PoisonError::into_inner);
            if full.is_none()
                && let Ok(size) = sockopt::socket_send_buffer_size(fd)
            {
                *full = Some(size);
                N_FULL.fetch_add(1, Ordering::SeqCst);
                let _ = sockopt::set_socket_send_buffer_size(fd, 1);
                let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
                // Nobody ever reads it, so the next time there is less to do.
                while rustix::net::send(fd, &[0; 4096], flags).is_ok() {}
            }
        }
        // In this order: room that comes later is seen by who is about to sleep.
        let has_room = path.has_room() || path.is_disconnected();
        if has_room {
            self.show_room(fd);
        }
        has_room
    }

    /// Takes [`Self::show_full`] back: epoll sets are told that there is room.
    pub fn show_room(&self, fd: BorrowedFd<'_>) {
        let Some(sole) = &self.sole else { return };
        let full = sole.full.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(size) = full {
            N_FULL.fetch_sub(1, Ordering::SeqCst);
            // The kernel tells twice what it was given.
            let _ = sockopt::set_socket_send_buffer_size(fd, size / 2);
        }
    }

    /// Whether the placeholder shows to epoll sets that there is no room. Somebody must wait for room, with
    /// [`poll`](crate::accelerate::poll()), and take it back then.
    #[must_use]
    pub fn shows_full(&self) -> bool {
        let is_full =
            |sole: &Sole| sole.full.lock().unwrap_or_else(PoisonError::into_inner).is_some();
        self.sole.as_ref().is_some_and(is_full)
    }

    /// Whether any stream of this process [shows](Self::shows_full) that there is no room.
    #[inline]
    #[must_use]
    pub fn any_shows_full() -> bool {
        N_FULL.load(Ordering::Relaxed) != 0
    }

    /// Receives from the stream on the device, which is all there is. Zero is its end. The caller holds the lock.
    pub(in crate::accelerate) fn receive_native(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        rx: &mut Receiving,
        bufs: &mut [IoSliceMut<'_>],
        flags: RecvFlags,
    ) -> Result<usize, receive::Blocked<'_>> {
        if self.has(FLAG_BROKEN) {
            return Err(receive::Blocked::Error(Errno::CONNRESET.into()));
        }
        let mark = path.mark();
        match path.try_recv(bufs, flags.contains(RecvFlags::PEEK)) {
            Ok(n) => {
                rx.idle_reads = 0;
                if n != 0 && !flags.contains(RecvFlags::PEEK) {
                    self.count_bytes(Direction::Recv, path.kind(), n);
                }
                Ok(n)
            }
            Err(RecvError::WouldBlock) => {
                rx.idle_reads = rx.idle_reads.wrapping_add(1);
                let look = rx.idle_reads.is_multiple_of(SOCKET_CHECK_INTERVAL)
                    || path.is_disconnected()
                    || self.has(FLAG_RX_SHUT)
                    || self.has(FLAG_EPOLL_PROXY);
                if look && let Some(end) = self.sole_end(fd, rx, path) {
                    return end;
                }
                self.quiet_epoll_proxy(rx, path);
                Err(receive::Blocked::Ring(mark))
            }
            Err(RecvError::Fault) => Err(receive::Blocked::Error(Errno::FAULT.into())),
            Err(RecvError::Failed(_)) => Err(receive::Blocked::Error(self.break_off_rx(fd, rx))),
        }
    }

    /// Sends on the device. The caller holds the lock.
    pub(in crate::accelerate) fn send_native(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        tx: &mut Sending,
        pieces: &[IoSlice<'_>],
    ) -> Result<usize, send::Blocked> {
        if self.has(FLAG_BROKEN) {
            // As TCP after a reset that a read has reported.
            return Err(send::Blocked::Error(Errno::PIPE.into()));
        }
        let mark = path.mark();
        match path.try_send(pieces) {
            Ok(n) => {
                self.count_bytes(Direction::Send, path.kind(), n);
                Ok(n)
            }
            Err(SendError::WouldBlock) if path.is_disconnected() => {
                Err(send::Blocked::Error(self.break_off(fd, tx)))
            }
            Err(SendError::WouldBlock) => Err(send::Blocked::Ring(mark)),
            Err(SendError::Closed) => Err(send::Blocked::Error(Errno::PIPE.into())),
            Err(SendError::Fault) => Err(send::Blocked::Error(Errno::FAULT.into())),
            Err(SendError::Failed(_)) => Err(send::Blocked::Error(self.break_off(fd, tx))),
        }
    }

    /// Nothing is on the ring: what a read answers, or `None` if something may still come.
    pub(in crate::accelerate) fn sole_end<'a>(
        &'a self,
        fd: BorrowedFd<'_>,
        rx: &mut Receiving,
        path: &Path,
    ) -> Option<Result<usize, receive::Blocked<'a>>> {
        if self.has(FLAG_RX_SHUT) {
            return Some(Ok(0));
        }
        // In this order: what came before the cut is seen after it.
        if path.connection_state() == ConnectionState::Open {
            return None;
        }
        if path.bytes_readable() != 0 {
            return Some(Err(receive::Blocked::Short));
        }
        if path.has_eof() && !path.has_failed() {
            return Some(Ok(0));
        }
        // Whoever ends in good order says so on the ring: without that, something may be lost.
        Some(Err(receive::Blocked::Error(self.break_off_rx(fd, rx))))
    }

    /// The program closes its last descriptor. The peer is told so on the stream, whatever is unread here:
    /// C's rsockets do not listen to anything else.
    pub(in crate::accelerate) fn close_sole(&self, fd: BorrowedFd<'_>, path: &Path) {
        if sockopt::socket_linger(fd) == Ok(Some(Duration::ZERO)) {
            path.shutdown(std::net::Shutdown::Both);
            return path.disconnect();
        }
        self.end_between_hosts(path);
    }

    /// In the place of a stream that cannot be handed over: a socket whose peer has reset it.
    pub(in crate::accelerate) fn reset_socket(&self, fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        let ip = self.sole.as_ref().map_or(std::net::Ipv4Addr::LOCALHOST.into(), |s| s.local.ip());
        let (near, far) = socket_proxy::placeholder(sockopt::socket_domain(fd)?, ip)?;
        socket_proxy::copy_options(fd, rustix::fd::AsFd::as_fd(&near));
        rustix::fs::fcntl_setfl(&near, rustix::fs::fcntl_getfl(fd)?)?;
        let _ = sockopt::set_socket_linger(&far, Some(Duration::ZERO));
        crate::sys::close(far);
        Ok(near)
    }
}
