//! The datagram socket: an `rsocket(2)` of type `SOCK_DGRAM`.
//!
//! Every method has the meaning of the system call of its name, and may be called by any thread at
//! any time. Calls that receive or poll process control packets and handshakes; a sender never
//! waits for either.
//!
//! Locks: `inbox`, then `routes`, then the cache in `remote.rs`. Handshakes advance under a lock
//! that is only tried, never waited for.

use crate::config::environment;
use crate::datagram::header::MAX_QUEUE_HEADER;
use crate::datagram::local::{Local, is_shared};
use crate::datagram::receiving::PendingDatagrams;
use crate::datagram::remote::Remote;
use crate::datagram::sending::Routes;
use crate::datagram::table::{Limits, Table};
use crate::datagram::udp::Inbox;
use crate::datagram::{Counts, Datagram, errno};
use crate::rdma_options::{RDMA_INLINE, RDMA_RQSIZE, RDMA_SQSIZE, SOL_RDMA};
use crate::sys;
use rsock_cm::{Port, canonical, in_family};
use rsock_verbs::{DatagramCounters, DatagramQueue};
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// What a socket has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketCounters {
    /// Through shared memory.
    pub local: DatagramCounters,
    /// Over RDMA devices, which do not report losses.
    pub remote: DatagramCounters,
    /// Datagrams sent by UDP.
    pub n_by_udp: u64,
    /// Datagrams received by UDP.
    pub n_received_by_udp: u64,
    /// Packets that the UDP socket had no room for (`SO_RCVBUF`), and those with a wrong checksum:
    /// datagrams, and control packets. Wraps at 32 bits.
    pub n_dropped_by_udp: u64,
    /// UDP packets that were not of the protocol.
    pub n_bad_packets: u64,
    /// Datagrams past UDP that were dropped: without a header, from another address than the header
    /// names, or, on a connected socket, not from its peer.
    pub n_foreign: u64,
    /// Control packets from addresses that this socket never sent to.
    pub n_unsolicited: u64,
}

impl Datagram {
    /// A new socket, of the IPv6 family if `v6`.
    ///
    /// # Errors
    /// As `socket(2)`.
    #[doc(alias = "rsocket")]
    pub fn new(v6: bool) -> io::Result<Self> {
        let routes =
            Routes { table: Table::new(Limits::default()), last: None, peer: None, is_local: None };
        let pending =
            PendingDatagrams { inbox: Inbox::new(), datagrams: VecDeque::new(), error: None };
        Ok(Self {
            port: Arc::new(Port::open_datagrams(v6)?),
            nonblocking: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            forks: sys::forks(),
            local: OnceLock::new(),
            remote: OnceLock::new(),
            routes: Mutex::new(routes),
            inbox: Mutex::new(pending),
            n_pending: AtomicUsize::new(0),
            since_udp: AtomicU32::new(0),
            udp_polled: AtomicU32::new(0),
            has_given_up: AtomicBool::new(false),
            counts: Counts::default(),
        })
    }

    /// A socket bound to `addr`; port 0 selects a free port.
    ///
    /// # Errors
    /// As `socket(2)` and `bind(2)`.
    pub fn bound(addr: SocketAddr) -> io::Result<Self> {
        let socket = Self::new(addr.is_ipv6())?;
        socket.bind(addr)?;
        Ok(socket)
    }

    /// As `bind(2)`.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EACCES`; `EINVAL` if it is bound already.
    #[doc(alias = "rbind")]
    pub fn bind(&self, addr: SocketAddr) -> io::Result<()> {
        Ok(self.port.bind(addr)?)
    }

    /// As `connect(2)`: from now on the socket receives datagrams from `to` alone, and sends there
    /// where no other destination is named.
    ///
    /// # Errors
    /// As `connect(2)` of a UDP socket.
    #[doc(alias = "rconnect")]
    pub fn connect(&self, to: SocketAddr) -> io::Result<()> {
        rustix::net::connect(&*self.port, &in_family(canonical(to), self.port.is_v6()))?;
        let peer = rustix::net::getpeername(&*self.port)?;
        let peer = peer.and_then(|peer| SocketAddr::try_from(peer).ok()).map(canonical);
        let mut routes = self.routes();
        routes.peer = peer;
        Ok(())
    }

    /// The part for peers on this host. Binds the socket.
    pub(super) fn local(&self) -> io::Result<Option<&Local>> {
        if let Some(local) = self.local.get() {
            return Ok(local.as_ref());
        }
        self.port.bind_if_unbound()?;
        Ok(self.local.get_or_init(|| Local::new(&self.port)).as_ref())
    }

    /// The part for peers on other hosts. The socket is bound.
    pub(super) fn remote(&self) -> Option<&Remote> {
        let make = || {
            let is_wanted = environment::is_enabled()
                && environment::device() != Some(environment::Device::Soft);
            (is_wanted && !is_shared(self.port.as_fd())).then(|| Remote::new(&self.port))
        };
        self.remote.get_or_init(make).as_ref().filter(|remote| remote.is_own_process())
    }

    pub(super) fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pending(&self) -> MutexGuard<'_, PendingDatagrams> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends calls that wait in other threads. The socket itself is closed when it is dropped.
    #[doc(alias = "rclose")]
    pub fn close(&self) {
        let has_queue = self.close_without_descriptor();
        // A forked child holds the same UDP socket, so this process must not shut it down.
        if !has_queue && sys::forks() == self.forks {
            // `shutdown` of an unconnected UDP socket fails with ENOTCONN, and wakes its sleepers
            // all the same.
            let _ = rustix::net::shutdown(&*self.port, rustix::net::Shutdown::Both);
        }
    }

    /// As [`Self::close`], after the program has closed the socket's descriptor: its number may be
    /// that of another file, which is left alone. The socket must not be dropped. False if calls
    /// may wait for the UDP socket alone, as after the kernel's `close`.
    pub fn close_without_descriptor(&self) -> bool {
        // SYNC(closed): before the wake-up, whose fence pairs with the one of arming: a thread that
        // falls asleep checks once more.
        self.is_closed.store(true, Ordering::Release);
        let Some(Some(local)) = self.local.get() else { return false };
        local.ud.wake_waiters();
        true
    }

    /// As `getsockname(2)`.
    ///
    /// # Errors
    /// As `getsockname(2)`.
    #[doc(alias = "rgetsockname")]
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(in_family(self.port.local_addr()?, self.port.is_v6()))
    }

    /// As `getpeername(2)`.
    ///
    /// # Errors
    /// `ENOTCONN`.
    #[doc(alias = "rgetpeername")]
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        let peer = self.routes().peer.ok_or_else(|| errno(libc::ENOTCONN))?;
        Ok(in_family(peer, self.port.is_v6()))
    }

    /// Number of datagrams of `len` bytes that the receive queues have room for: per sending
    /// process on this host, or for all senders together where datagrams come over an RDMA device.
    /// `None` where the socket has no such queue.
    #[must_use]
    pub fn room_past_udp(&self, len: usize) -> Option<usize> {
        let len = len.saturating_add(MAX_QUEUE_HEADER);
        if let Ok(Some(local)) = self.local() {
            local.ud.set_room(sys::receive_buffer(self.port.as_fd()));
            return Some(local.ud.room(len));
        }
        self.remote()?.queues().map(|queue| queue.ud().room(len)).min()
    }

    /// Whether the socket is of the IPv6 family, which shows IPv4 addresses mapped.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.port.is_v6()
    }

    /// Whether calls that would wait answer `EAGAIN`.
    #[must_use]
    pub fn is_nonblocking(&self) -> bool {
        self.nonblocking.load(Ordering::Relaxed)
    }

    /// Sets `O_NONBLOCK`.
    pub fn set_nonblocking(&self, on: bool) {
        self.nonblocking.store(on, Ordering::Relaxed);
    }

    /// How long a call waits for a datagram, as `SO_RCVTIMEO`; `None` waits without end.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    pub fn set_recv_timeout(&self, limit: Option<Duration>) -> io::Result<()> {
        use rustix::net::sockopt::{Timeout, set_socket_timeout};
        Ok(set_socket_timeout(&*self.port, Timeout::Recv, limit)?)
    }

    /// As `setsockopt(2)`, of the UDP socket. `SO_RCVBUF` also sets the room for each process on
    /// this host that begins to send to this socket afterwards: as many bytes as the kernel
    /// reports, rounded up to a power of two, from 64 KiB to 4 MiB, and 1024 datagrams. The sizes
    /// of queues at level `SOL_RDMA` are accepted and have no effect.
    ///
    /// # Errors
    /// As `setsockopt(2)`.
    #[doc(alias = "rsetsockopt")]
    pub fn set_option(&self, level: i32, name: i32, value: &[u8]) -> io::Result<()> {
        match (level, name) {
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE) if value.len() >= 4 => Ok(()),
            (SOL_RDMA, RDMA_SQSIZE | RDMA_RQSIZE | RDMA_INLINE) => Err(errno(libc::EINVAL)),
            (SOL_RDMA, _) => Err(errno(libc::ENOTSUP)),
            _ => sys::set_option(self.port.as_fd(), level, name, value),
        }
    }

    /// As `getsockopt(2)`, of the UDP socket: the value as C lays it out, `room` bytes at most.
    ///
    /// # Errors
    /// As `getsockopt(2)`; `ENOTSUP` at level `SOL_RDMA`.
    #[doc(alias = "rgetsockopt")]
    pub fn option(&self, level: i32, name: i32, room: usize) -> io::Result<Vec<u8>> {
        if level == SOL_RDMA {
            return Err(errno(libc::ENOTSUP));
        }
        sys::option(self.port.as_fd(), level, name, room)
    }

    /// Counters of what was sent, received and lost.
    #[must_use]
    pub fn counters(&self) -> SocketCounters {
        let local = self.local.get().and_then(Option::as_ref);
        let remote = self.remote.get().and_then(Option::as_ref);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        SocketCounters {
            local: local.map(|local| local.ud.counters()).unwrap_or_default(),
            remote: remote.map(Remote::counters).unwrap_or_default(),
            n_by_udp: read(&self.counts.n_by_udp),
            n_received_by_udp: read(&self.counts.n_received_by_udp),
            n_dropped_by_udp: sys::n_dropped(self.port.as_fd()),
            n_bad_packets: read(&self.counts.n_bad_packets),
            n_foreign: read(&self.counts.n_foreign),
            n_unsolicited: self.routes().table.n_unsolicited(),
        }
    }
}

impl AsFd for Datagram {
    /// The UDP socket. It does not become readable for datagrams that come past UDP.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.port.as_fd()
    }
}
