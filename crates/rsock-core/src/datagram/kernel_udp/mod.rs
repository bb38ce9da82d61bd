//! A kernel UDP socket (the *twin*) with a queue in shared memory beside it.
//!
//! The program owns the descriptor, as with a [`AcceleratedStream`](crate::accelerate::AcceleratedStream): every call takes the one that it came
//! in by. What another process of this host sends to the socket may come by the queue, if that process runs
//! rsock too; everything else comes by the kernel, and so does whatever cannot be handled here.
//!
//! # Who is reached how
//!
//! A socket that the kernel brings datagrams from this host *opens*: it makes a queue, and publishes a name made
//! from its address (`discovery.rs`). Whoever has sent to a local address some times looks for that name, asks the
//! kernel whether the socket that was found is the only one that could get its datagrams (`holders.rs`), and from
//! then on writes to the queue (`sending.rs`). The two directions of a conversation find each other independently.
//!
//! # Rules
//!
//! * The kernel's socket is never closed, bound, read or written but by the program's own calls.
//! * A datagram that the queue does not take goes by the kernel: too long, no room for a moment, a queue that
//!   is gone. Room is short for longer where the receiver is slower than the sender: then it is dropped, as the
//!   kernel drops it, and counted.
//! * What a sender sent by the kernel between two datagrams of the queue, to whatever address of the socket, is
//!   received between them: the second one says so, and waits until the kernel's queue was seen empty. A sender that
//!   had to go by the kernel stays there for a while, so that the ways do not alternate.
//! * Nobody opens while a thread sleeps in the kernel where the queue cannot wake it (`kernel_waits`).
//! * A socket that is *pinned* (an option, an epoll set, a fork...) closes for good. What is in the queue stays
//!   there to be received, in a child of a fork too.
//!
//! Locks: `discovery`, then `routes`; neither in a child of the process that made them, and both inside a
//! [`Section`] only.

mod counters;
mod discovery;
mod header;
mod opening;
mod receiving;
mod sending;
#[cfg(test)]
mod tests;
mod waiting;

pub use crate::datagram::Received;
pub use counters::UdpCounters;
pub use receiving::Reception;
pub use sending::Batch;
pub(crate) use waiting::ArmedQueue;
pub use waiting::{EpollTrigger, KernelWait, register_epoll_sets};

use crate::closing::Closings;
use crate::datagram::SourceCheck;
use crate::interrupt::Section;
use crate::metrics::FallbackReason;
use crate::metrics::UdpSlot;
use crate::sys;
use counters::Counts;
use discovery::Discovery;
use opening::{OPEN, OVER, Opening, SHUT};
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

/// A kernel UDP socket, and what there is beside it.
#[derive(Debug)]
pub struct AcceleratedUdp {
    owner: ProcessId,
    /// For calls in progress whose descriptor the program closes.
    closings: Closings,
    is_v6: bool,
    inode: u64,
    /// Made when it is first needed, for sending or receiving.
    queue: OnceLock<Option<Queue>>,
    /// Whether senders find the queue.
    opening: Opening,
    /// Why nothing goes past the kernel any more: a [`FallbackReason`].
    pinned: AtomicU8,
    /// `O_NONBLOCK`, as far as the program has gone by us.
    is_nonblocking: AtomicBool,
    /// `shutdown` of the reading side: the kernel knows what that means.
    is_shut: AtomicBool,
    /// Whether another socket may take the port, so that it is to be looked for now and then.
    may_be_joined: AtomicBool,
    /// Whom it was connected to when it opened: others' datagrams are none of its own.
    open_peer: OnceLock<Option<SocketAddr>>,
    /// Whether anything has come by the queue: then it pays to look there first.
    is_active: AtomicBool,
    /// After the end, nothing was in the queue for a while: nothing will be.
    is_drained: AtomicBool,
    ended: AtomicU32,
    /// Where the datagram is that was looked at last and not taken: the next receive is to find it.
    peeked: AtomicU8,
    /// Receptions from the queue since the kernel's socket was looked at.
    since_kernel: AtomicU32,
    kernel_seen: AtomicU32,
    /// When handshakes were last made progress, and the port was last looked at.
    progressed: AtomicU32,
    checked: AtomicU32,
    /// When the peers were last asked whether they live.
    swept: AtomicU32,
    routes: Mutex<Routes>,
    discovery: Mutex<Discovery>,
    /// In epoll sets of the program, for what is in the queue.
    epoll_proxy: Mutex<Option<SoftBell>>,
    has_epoll_proxy: AtomicBool,
    /// How often bells had rung when it was armed last.
    rung_at: AtomicU32,
    /// One of them for edges; and something is left in the queue of what it has shown.
    is_edge_triggered: AtomicBool,
    has_unreported: AtomicBool,
    /// What happened for the first time, and nobody was told yet: [`FirstUse`].
    first_use: AtomicU8,
    counts: Counts,
    /// What `rsock stat` shows.
    stat: UdpSlot,
}

/// What happened for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FirstUse {
    /// A route to a peer's queue was found.
    Sends = 1,
    /// A datagram came by the queue.
    Receives = 2,
}

/// The queue, and the device it lies on.
#[derive(Debug)]
struct Queue {
    ud: SoftUd,
    ctx: SoftContext,
    sources: SourceCheck,
}

/// WIRE: the Q_Key of every such queue.
const KEY: QKey = QKey(0x7564_7031);

/// Whether UDP sockets of this process may have queues at all: `RSOCK_DGRAM=on`.
#[must_use]
pub fn is_enabled() -> bool {
    crate::config::environment::is_enabled() && crate::config::environment::has_dgram_twins()
}

impl AcceleratedUdp {
    /// What calls on this socket need that came by a descriptor which may be closed under them.
    #[must_use]
    pub fn closings(&self) -> &Closings {
        &self.closings
    }

    /// Wraps a UDP socket. `None` if it is none, or if it can never be accelerated.
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
        let (peer, inode) = (peer_of(fd), inode_of(fd)?);
        let this = Self {
            owner: process(),
            closings: Closings::new(),
            is_v6,
            inode,
            queue: OnceLock::new(),
            opening: Opening::new(),
            pinned: AtomicU8::new(FallbackReason::None as u8),
            is_nonblocking: AtomicBool::new(false),
            is_shut: AtomicBool::new(false),
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

    /// The program has changed `O_NONBLOCK`, perhaps.
    pub fn note_flags(&self, fd: BorrowedFd<'_>) {
        let is_set =
            rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        self.is_nonblocking.store(is_set, Ordering::Relaxed);
    }

    /// The program has connected the socket, or disconnected it. Datagrams that were in the queue before stay
    /// there, as they do in the kernel's.
    pub fn note_connected(&self, fd: BorrowedFd<'_>) {
        self.stat.set_ends(shown(fd), peer_of(fd));
        if self.state() == OPEN {
            // From now on others may not send to it, who could.
            return self.pin(FallbackReason::Option);
        }
        if self.is_own_process() {
            let _section = Section::enter();
            *self.routes() = Routes::new(peer_of(fd));
            self.stat.set_peers(0, 0);
        }
    }

    /// The program has called `shutdown`.
    pub fn note_shutdown(&self) {
        self.pin(FallbackReason::Option);
        self.is_shut.store(true, Ordering::Release);
    }

    /// The program lets other sockets have the port too (`SO_REUSEADDR`), perhaps.
    pub fn note_reuse(&self) {
        self.may_be_joined.store(true, Ordering::Relaxed);
    }

    /// Nothing goes past the kernel any more, in either direction. What is in the queue stays there to be
    /// received.
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

    /// Why nothing goes past the kernel; `None` if it may.
    #[must_use]
    pub fn pin_reason(&self) -> FallbackReason {
        FallbackReason::from_u8(self.pinned.load(Ordering::Acquire))
    }

    fn is_pinned(&self) -> bool {
        self.pinned.load(Ordering::Relaxed) != FallbackReason::None as u8
    }

    /// Whether the calling process made it: a child does not meet anybody, and sends by the kernel.
    fn is_own_process(&self) -> bool {
        self.owner == process()
    }

    fn state(&self) -> u8 {
        self.opening.state()
    }

    /// Whether the kernel's socket alone brings datagrams, now and for ever.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        self.is_pinned() && self.is_over()
    }

    /// Whether nothing can come by the queue any more.
    #[inline]
    fn is_over(&self) -> bool {
        self.state() == OVER && (self.never_opened() || self.is_drained())
    }

    fn never_opened(&self) -> bool {
        self.ended.load(Ordering::Relaxed) == 0
    }

    /// Whether after the end nothing is, or will be, in the queue.
    fn is_drained(&self) -> bool {
        /// Longer than any sender takes from its look to its last store.
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

    /// Whether the queue has something, as far as a few loads can tell.
    #[must_use]
    #[inline]
    pub fn is_ready(&self) -> bool {
        self.queue().is_some_and(|queue| queue.ud.is_ready())
    }

    /// What has happened for the first time since this was asked last.
    #[must_use]
    #[inline]
    pub fn first_use(&self) -> Option<FirstUse> {
        // A load as a rule.
        if self.first_use.load(Ordering::Relaxed) == 0 { None } else { self.take_first_use() }
    }

    #[cold]
    fn take_first_use(&self) -> Option<FirstUse> {
        let is_new = |first_use| {
            self.first_use.fetch_and(!(first_use as u8), Ordering::Relaxed) & first_use as u8 != 0
        };
        [FirstUse::Sends, FirstUse::Receives].into_iter().find(|first_use| is_new(*first_use))
    }

    /// Whether `fd` is the socket that this began with: a system call.
    #[must_use]
    pub fn is_same_socket(&self, fd: BorrowedFd<'_>) -> bool {
        inode_of(fd) == Some(self.inode)
    }

    /// The queue, if there is one.
    #[inline]
    fn queue(&self) -> Option<&Queue> {
        self.queue.get()?.as_ref()
    }

    /// The queue, which is made if there is none.
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

    /// Bytes of the datagram that a receive would return now, if it is in the queue (`FIONREAD`).
    #[must_use]
    pub fn bytes_readable(&self) -> Option<usize> {
        let mut len = None;
        let _section = Section::enter();
        self.queue()?.ud.try_take(&mut |arrived| {
            let mut front = [0; header::MAX];
            let front = &mut front[..arrived.len().min(header::MAX)];
            arrived.copy_out(0, front);
            len = header::Header::parse(front).map(|(_, at)| arrived.len() - at);
            false
        });
        len
    }
}

fn inode_of(fd: BorrowedFd<'_>) -> Option<u64> {
    rustix::fs::fstat(fd).ok().map(|stat| stat.st_ino)
}

/// Whom the socket is connected to.
fn peer_of(fd: BorrowedFd<'_>) -> Option<SocketAddr> {
    rustix::net::getpeername(fd).ok().flatten().and_then(ip)
}

fn ip(any: rustix::net::SocketAddrAny) -> Option<SocketAddr> {
    SocketAddr::try_from(any).ok().map(canonical)
}

/// What `rsock stat` shows the socket to be bound to.
fn shown(fd: BorrowedFd<'_>) -> SocketAddr {
    let unbound = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    local_of(fd).ok().flatten().unwrap_or(unbound)
}

/// The canonical address that the socket is bound to.
fn local_of(fd: BorrowedFd<'_>) -> io::Result<Option<SocketAddr>> {
    Ok(ip(rustix::net::getsockname(fd)?))
}
