//! A kernel UDP socket of an unmodified program, with a queue in shared memory beside it.
//!
//! The program owns the descriptor, as with an
//! [`AcceleratedStream`](crate::accelerate::AcceleratedStream): every call takes the descriptor
//! that the program named. Datagrams from another process of this host may come by the queue, if
//! that process runs rsock too. All others come by the kernel, and so do those that the queue
//! cannot carry.
//!
//! # How senders find the queue
//!
//! A socket that receives datagrams from this host through the kernel *opens*: it creates a queue,
//! and publishes a name made from its address (`discovery.rs`). A sender that has sent some
//! datagrams to a local address looks for that name, asks the kernel whether the socket found is
//! the only one that could receive those datagrams (`sys/sock_diag.rs`), and from then on writes to
//! the queue (`sending.rs`). The two directions of a conversation find each other independently.
//!
//! # Rules
//!
//! * rsock never closes, binds, reads or writes the kernel's socket but in the program's own calls.
//! * A datagram that the queue does not take goes by the kernel: it is too long, there is no room
//!   for a moment, the queue is gone. Where the receiver is slower than the sender, a queue has no
//!   room for longer: then the datagram is dropped, as the kernel would drop it, and counted.
//! * A datagram that went by the kernel between two datagrams of the queue, to any address of the
//!   socket, is received between them: the header of the second one is marked, and the receiver
//!   first takes everything from the kernel's socket. A sender that had to use the kernel stays
//!   there for a while, so that the two do not alternate.
//! * No queue opens while a thread sleeps in the kernel where the queue cannot wake it
//!   ([`KernelWait`]).
//! * A socket that is *pinned* (by an option, an epoll set, a fork...) stays with the kernel for
//!   good. Datagrams in its queue can still be received, in a forked child too.
//!
//! Locks: `discovery`, then `routes`. A forked child takes neither, and both are taken inside a
//! [`Section`] only.

mod counters;
mod discovery;
mod header;
mod opening;
mod receiving;
mod route;
mod sending;
#[cfg(test)]
mod tests;
mod waiting;

pub use crate::datagram::Received;
pub use counters::UdpCounters;
pub use receiving::Reception;
pub use sending::Batch;
pub(crate) use waiting::ArmedQueue;
pub use waiting::{EpollTrigger, KernelWait, ProxyChange, register_epoll_sets};

use crate::closing::Closings;
use crate::datagram::SourceCheck;
use crate::interrupt::Section;
use crate::metrics::FallbackReason;
use crate::metrics::UdpSlot;
use crate::sys;
use counters::Counts;
use discovery::Discovery;
use opening::{ENDED, NOT_OPEN, OPEN, Opening};
use rsock_cm::canonical;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::soft::{Soft, SoftBell, SoftContext, SoftUd};
use rsock_verbs::{DatagramBackend, DatagramQueue, QKey};
use rustix::fd::BorrowedFd;
use rustix::fs::OFlags;
use rustix::net::AddressFamily;
use sending::Routes;
use std::io;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// A kernel UDP socket with a queue beside it.
#[derive(Debug)]
pub struct AcceleratedUdp {
    owner: ProcessId,
    /// For calls in progress on a descriptor that the program closes.
    closings: Closings,
    is_v6: bool,
    inode: u64,
    /// Created when it is first needed, for sending or receiving.
    queue: OnceLock<Option<Queue>>,
    /// Whether senders can find the queue.
    opening: Opening,
    /// Why the socket stays with the kernel: a [`FallbackReason`].
    pinned: AtomicU8,
    /// `O_NONBLOCK`, as far as the program set it through intercepted calls.
    is_nonblocking: AtomicBool,
    /// Whether the reading side is shut down. Then the kernel's call gives the result.
    is_read_shutdown: AtomicBool,
    /// Whether another socket may be bound to the port, so that it is checked now and then.
    may_be_joined: AtomicBool,
    /// The peer that the socket was connected to when the queue opened: datagrams from others are
    /// dropped.
    open_peer: OnceLock<Option<SocketAddr>>,
    /// Whether any datagram has come by the queue: then receivers spin for it.
    is_active: AtomicBool,
    /// Whether the queue has ended and was empty for a while, so that it stays empty.
    is_drained: AtomicBool,
    ended: AtomicU32,
    /// Where the last peeked datagram is: the next receive must return it.
    peeked: AtomicU8,
    /// Receptions from the queue since the kernel's socket was last read.
    since_kernel: AtomicU32,
    kernel_seen: AtomicU32,
    /// When handshakes last advanced, and the port was last checked.
    progressed: AtomicU32,
    checked: AtomicU32,
    /// When the peers were last checked for exited processes.
    swept: AtomicU32,
    routes: Mutex<Routes>,
    discovery: Mutex<Discovery>,
    /// The bell in the program's epoll sets that shows datagrams in the queue.
    epoll_proxy: Mutex<Option<SoftBell>>,
    has_epoll_proxy: AtomicBool,
    /// Whether the last receive has found nothing, in the queue or in the kernel.
    found_nothing: AtomicBool,
    /// How often bells had rung when the proxy was last armed.
    rung_at: AtomicU32,
    /// Whether an epoll set watches for edges; and whether datagrams of the last edge are still in
    /// the queue.
    is_edge_triggered: AtomicBool,
    has_unreported: AtomicBool,
    /// Events that happened for the first time and were not returned yet: bits of [`FirstUse`].
    first_use: AtomicU8,
    counts: Counts,
    /// The slot that `rsock stat` shows.
    stat: UdpSlot,
}

/// An event that is reported when it first happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FirstUse {
    /// A route to a peer's queue was found.
    Sends = 1,
    /// A datagram came by the queue.
    Receives = 2,
}

/// The queue, and its device.
#[derive(Debug)]
struct Queue {
    ud: SoftUd,
    ctx: SoftContext,
    sources: SourceCheck,
}

/// WIRE: the Q_Key of every such queue.
const KEY: QKey = QKey(0x7564_7031);

/// Whether UDP sockets of this process may have queues: `RSOCK_DGRAM=on`.
#[must_use]
pub fn is_enabled() -> bool {
    crate::config::environment::is_enabled() && crate::config::environment::has_udp_queues()
}

impl AcceleratedUdp {
    /// The state for calls on a descriptor that may be closed meanwhile.
    #[must_use]
    pub fn closings(&self) -> &Closings {
        &self.closings
    }

    /// Wraps a UDP socket. `None` if it is not a UDP socket, or can never be accelerated.
    #[must_use]
    pub fn adopt(fd: BorrowedFd<'_>) -> Option<Self> {
        if is_enabled() { Self::wrap(fd) } else { None }
    }

    fn wrap(fd: BorrowedFd<'_>) -> Option<Self> {
        use rustix::net::sockopt;
        if sockopt::socket_protocol(fd) != Ok(Some(rustix::net::ipproto::UDP)) {
            return None;
        }
        let is_v6 = match sockopt::socket_domain(fd).ok()? {
            AddressFamily::INET => false,
            AddressFamily::INET6 => true,
            _ => return None,
        };
        let now = sys::tick();
        let (peer, inode) = (peer_of(fd), sys::socket_inode(fd)?);
        let this = Self {
            owner: process(),
            closings: Closings::new(),
            is_v6,
            inode,
            queue: OnceLock::new(),
            opening: Opening::new(),
            pinned: AtomicU8::new(FallbackReason::None as u8),
            is_nonblocking: AtomicBool::new(false),
            is_read_shutdown: AtomicBool::new(false),
            may_be_joined: AtomicBool::new(false),
            open_peer: OnceLock::new(),
            is_active: AtomicBool::new(false),
            is_drained: AtomicBool::new(false),
            ended: AtomicU32::new(0),
            peeked: AtomicU8::new(0),
            since_kernel: AtomicU32::new(0),
            kernel_seen: AtomicU32::new(now),
            progressed: AtomicU32::new(now),
            checked: AtomicU32::new(now),
            swept: AtomicU32::new(now),
            routes: Mutex::new(Routes::new(peer)),
            discovery: Mutex::new(Discovery::new()),
            epoll_proxy: Mutex::new(None),
            has_epoll_proxy: AtomicBool::new(false),
            found_nothing: AtomicBool::new(false),
            rung_at: AtomicU32::new(0),
            is_edge_triggered: AtomicBool::new(false),
            has_unreported: AtomicBool::new(false),
            first_use: AtomicU8::new(0),
            counts: Counts::default(),
            stat: UdpSlot::open(shown(fd), peer, inode),
        };
        this.note_flags(fd);
        Some(this)
    }

    /// Whether the socket is of the IPv6 family, which shows IPv4 addresses mapped.
    #[must_use]
    pub fn is_v6(&self) -> bool {
        self.is_v6
    }

    /// Notes that the program may have changed `O_NONBLOCK`.
    pub fn note_flags(&self, fd: BorrowedFd<'_>) {
        let is_set =
            rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        self.is_nonblocking.store(is_set, Ordering::Relaxed);
    }

    /// Notes that the program has connected or disconnected the socket. Datagrams in the queue stay
    /// there, as they do in the kernel.
    pub fn note_connected(&self, fd: BorrowedFd<'_>) {
        self.stat.set_ends(shown(fd), peer_of(fd));
        if self.state() == OPEN {
            // Senders that may write to the queue now could not send to a connected socket.
            return self.pin(FallbackReason::Option);
        }
        if self.is_own_process() {
            let _section = Section::enter();
            *self.routes() = Routes::new(peer_of(fd));
            self.stat.set_peers(0, 0);
        }
        // It may have opened meanwhile, for the senders of before.
        if self.state() == OPEN {
            self.pin(FallbackReason::Option);
        }
    }

    /// Notes that the program has called `shutdown`.
    pub fn note_shutdown(&self) {
        self.pin(FallbackReason::Option);
        self.is_read_shutdown.store(true, Ordering::Release);
    }

    /// Notes that the program may have allowed other sockets on the port (`SO_REUSEADDR`).
    pub fn note_reuse(&self) {
        self.may_be_joined.store(true, Ordering::Relaxed);
    }

    /// Makes the socket stay with the kernel, in both directions. Datagrams in the queue can still
    /// be received.
    pub fn pin(&self, reason: FallbackReason) {
        let unpinned = FallbackReason::None as u8;
        let pinned = &self.pinned;
        let pinned =
            pinned.compare_exchange(unpinned, reason as u8, Ordering::AcqRel, Ordering::Relaxed);
        if !self.is_own_process() {
            return;
        }
        if pinned.is_ok() {
            self.stat.set_fallback(reason);
            self.stat.set_peers(0, 0);
        }
        let _section = Section::enter();
        if self.opening.end() {
            self.ended.store(sys::tick(), Ordering::Relaxed);
            if let Some(queue) = self.queue() {
                queue.ud.close();
            }
        }
        let over = {
            let mut discovery = self.discovery.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *discovery, Discovery::new())
        };
        drop(over);
        let routes = std::mem::replace(&mut *self.routes(), Routes::new(None));
        drop(routes);
    }

    /// Why the socket stays with the kernel; [`FallbackReason::None`] if it does not.
    #[must_use]
    pub fn pin_reason(&self) -> FallbackReason {
        FallbackReason::from_u8(self.pinned.load(Ordering::Acquire))
    }

    fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed) != FallbackReason::None as u8
    }

    /// Whether the calling process created it. A forked child makes no handshakes, and sends by the
    /// kernel.
    fn is_own_process(&self) -> bool {
        self.owner == process()
    }

    fn state(&self) -> u8 {
        self.opening.state()
    }

    /// Whether all datagrams come by the kernel, now and for good.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.is_pinned() && self.has_ended()
    }

    /// Whether no datagram can come by the queue any more.
    #[inline]
    fn has_ended(&self) -> bool {
        self.state() == ENDED && (self.never_opened() || self.is_drained())
    }

    fn never_opened(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == 0
    }

    /// Whether the queue has ended and is, and stays, empty.
    fn is_drained(&self) -> bool {
        /// Longer than any sender takes from its check of the queue to its last store.
        const QUIET: u32 = 1000;
        if self.is_drained.load(Ordering::Relaxed) {
            return true;
        }
        let since = sys::tick().wrapping_sub(self.ended.load(Ordering::Relaxed));
        let is_drained = since > QUIET && !self.is_ready();
        if is_drained {
            self.is_drained.store(true, Ordering::Relaxed);
        }
        is_drained
    }

    /// Whether the queue has a datagram, as far as a few loads can tell.
    #[must_use]
    #[inline]
    pub fn is_ready(&self) -> bool {
        // A signal handler that closes the queue would wait for a lock of the thread that it
        // interrupts.
        let _section = Section::enter();
        self.queue().is_some_and(|queue| queue.ud.is_ready())
    }

    /// An event that happened for the first time since the last call, if any.
    #[must_use]
    #[inline]
    pub fn first_use(&self) -> Option<FirstUse> {
        // Only a load in the common case.
        if self.first_use.load(Ordering::Relaxed) == 0 { None } else { self.take_first_use() }
    }

    #[cold]
    fn take_first_use(&self) -> Option<FirstUse> {
        let is_new = |first_use| {
            self.first_use.fetch_and(!(first_use as u8), Ordering::Relaxed) & first_use as u8 != 0
        };
        [FirstUse::Sends, FirstUse::Receives].into_iter().find(|first_use| is_new(*first_use))
    }

    /// Whether `fd` is the socket that was wrapped; takes a system call.
    #[must_use]
    pub fn is_same_socket(&self, fd: BorrowedFd<'_>) -> bool {
        sys::socket_inode(fd) == Some(self.inode)
    }

    /// The queue, if there is one.
    #[inline]
    fn queue(&self) -> Option<&Queue> {
        self.queue.get()?.as_ref()
    }

    /// The queue, which is created if there is none.
    fn make_queue(&self) -> Option<&Queue> {
        let make = || {
            let ctx = SoftContext::open().ok()?;
            let ud = Soft::create_datagrams(&ctx, KEY).ok()?;
            Some(Queue { ud, ctx, sources: SourceCheck::new() })
        };
        sys::get_or_make(&self.queue, make).as_ref()
    }

    fn routes(&self) -> MutexGuard<'_, Routes> {
        self.routes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The address that the socket is connected to.
fn peer_of(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    rustix::net::getpeername(fd).ok().flatten().and_then(ip)
}

fn ip(any: rustix::net::SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(any).ok().map(canonical)
}

/// The bound address, for `rsock stat`.
fn shown(fd: BorrowedFd<'_>) -> SocketAddr {
    let unbound = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    local_of(fd).ok().flatten().unwrap_or(unbound)
}

/// The canonical address that the socket is bound to.
fn local_of(fd: BorrowedFd<'_>) -> io::Result<Option<SocketAddr>> {
    Ok(ip(rustix::net::getsockname(fd)?))
}
