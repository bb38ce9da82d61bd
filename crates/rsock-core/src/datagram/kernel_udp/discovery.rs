//! Discovery of peers on this host: a socket that receives publishes its address, a sender connects
//! to it.
//!
//! The handshake is the connection manager's, in a port space of its own. It advances in calls that
//! the program makes anyway; no thread waits for it.

use crate::datagram::kernel_udp::header::Header;
use crate::datagram::kernel_udp::opening::OpenAttempt;
use crate::datagram::kernel_udp::route::Route;
use crate::datagram::kernel_udp::{AcceleratedUdp, KEY, NOT_OPEN, OPEN, Queue, ip, local_of};
use crate::interrupt::{self, Section};
use crate::metrics::FallbackReason;
use crate::metrics::{DatagramEvent, ReceivePath};
use crate::sys;
use crate::sys::sock_diag;
use rsock_cm::manager::{Connected as _, Connecting as _, Listening as _};
use rsock_cm::soft::{
    SoftConnecting as Connecting, SoftEvent as Event, SoftListener as Listener,
    SoftProgress as Progress,
};
use rsock_cm::{Port, PortSpace, is_local};
use rsock_verbs::DatagramQueue;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The receiving end of handshakes, and the counts that decide when it begins.
#[derive(Debug)]
pub(super) struct Discovery {
    listener: Option<Listener>,
    /// Datagrams that came from this host.
    n_from_host: u32,
    /// The last address that was checked, and whether it is of this host.
    known: Option<(IpAddr, bool)>,
    /// How often the kernel was asked whether an address is of this host.
    n_asked: u32,
}

/// Datagrams from this host before a queue opens.
const FIRST_OPEN: u32 = 4;
/// How often the kernel is asked whether an address is of this host, at most.
const MAX_ASKED: u32 = 8;
/// Peers that may wait for [`AcceleratedUdp::progress`].
const BACKLOG: u32 = 64;
/// Time that a peer has for its part of a handshake: it takes part when it receives or polls.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);
/// Milliseconds between two checks for another socket on the port.
const CHECK_EVERY: u32 = 100;
/// Most senders that are answered at a time: others may ask without end.
const MOST_EVENTS: u32 = 16;

impl Discovery {
    pub(super) fn new() -> Self {
        Self { listener: None, n_from_host: 0, known: None, n_asked: 0 }
    }

    /// Counts a datagram that the kernel delivered from `from`. Returns whether the queue should
    /// open now.
    fn is_due(&mut self, from: IpAddr) -> bool {
        let is_of_host = from.is_loopback()
            || match self.known {
                Some((ip, is_of_host)) if ip == from => is_of_host,
                _ if self.n_asked >= MAX_ASKED => false,
                _ => {
                    self.n_asked += 1;
                    let is_of_host = is_local(from);
                    self.known = Some((from, is_of_host));
                    is_of_host
                }
            };
        self.n_from_host = self.n_from_host.saturating_add(is_of_host.into());
        is_of_host && self.n_from_host >= FIRST_OPEN && self.listener.is_none()
    }
}

impl AcceleratedUdp {
    /// Notes that the kernel delivered a datagram, from `from` if that is known.
    pub(super) fn note_kernel(&self, fd: BorrowedFd<'_>, from: Option<SocketAddr>) {
        self.count(DatagramEvent::ReceivedByKernel);
        self.found_nothing.store(false, Ordering::Relaxed);
        // To open the queue allocates.
        let may_open = self.state() == NOT_OPEN && !self.is_pinned() && self.is_own_process();
        if !may_open || interrupt::is_in_handler() {
            return;
        }
        let _section = Section::enter();
        let from = from.or_else(|| self.routes().peer);
        let Ok(mut discovery) = self.discovery.try_lock() else { return };
        if let Some(from) = from
            && discovery.is_due(from.ip().to_canonical())
            && !self.open(fd, &mut discovery)
        {
            // The next try is after as many more datagrams.
            discovery.n_from_host = 0;
        }
    }

    /// Opens the queue, so that senders find it. False if that is not possible now, or ever.
    fn open(&self, fd: BorrowedFd<'_>, discovery: &mut Discovery) -> bool {
        match self.try_open(fd, discovery) {
            Ok(is_open) => is_open,
            Err(why) => {
                self.rule_out_queue();
                self.stat.set_receives(why);
                false
            }
        }
    }

    /// # Errors
    /// The reason why the queue can never open.
    fn try_open(&self, fd: BorrowedFd<'_>, discovery: &mut Discovery) -> Result<bool, ReceivePath> {
        let (shared, unfit) = (ReceivePath::SharedPort, ReceivePath::Address);
        let local = local_of(fd).ok().flatten().filter(|local| local.port() != 0).ok_or(unfit)?;
        let has_scope = matches!(local, SocketAddr::V6(v6) if v6.scope_id() != 0);
        if has_scope || local.ip().is_multicast() {
            return Err(unfit);
        }
        if sockopt::socket_reuseport(fd).unwrap_or(true)
            || !sock_diag::is_only_receiver(local, self.inode).unwrap_or(false)
        {
            return Err(shared);
        }
        let may_be_joined = sockopt::socket_reuseaddr(fd).unwrap_or(true);
        self.may_be_joined.fetch_or(may_be_joined, Ordering::Relaxed);
        let is_v6_only = self.is_v6 && sockopt::ipv6_v6only(fd).unwrap_or(false);
        let queue = self.make_queue().ok_or(ReceivePath::Exhausted)?;
        let n_epoll_changes = self.opening.n_epoll_changes();
        let is_in_epoll_set = n_epoll_changes != 0;
        if is_in_epoll_set && !self.join_epoll_sets(queue) {
            return Err(ReceivePath::Watched);
        }
        let is_heard = match self.opening.attempt(n_epoll_changes) {
            // Decided meanwhile: another thread has pinned the socket.
            OpenAttempt::AlreadyDecided | OpenAttempt::WouldMissWakeups => false,
            OpenAttempt::Open => !self.is_pinned(),
        };
        let listener = is_heard.then(|| {
            Listener::listen_at(&queue.ctx, PortSpace::KernelUdp, local, is_v6_only, BACKLOG)
        });
        match listener {
            Some(Ok(listener)) => {
                // As it is now: a `connect` that comes later finds the queue open. No sender is
                // admitted before the listener is there.
                let peer = self.routes().peer;
                let _ = self.open_peer.set(peer);
                discovery.listener = Some(listener);
                self.ended.store(1, Ordering::Relaxed);
                self.stat.set_ends(local, peer);
                self.stat.set_receives(ReceivePath::Queue);
                Ok(true)
            }
            // No sender has found the queue.
            Some(Err(_)) | None => {
                // This does nothing if the socket was pinned meanwhile: its queue never opens.
                self.opening.give_up();
                if is_in_epoll_set {
                    self.leave_epoll_sets();
                }
                if is_heard { Err(ReceivePath::Exhausted) } else { Ok(false) }
            }
        }
    }

    /// Gives up the queue for receiving; datagrams may still be sent past the kernel.
    fn rule_out_queue(&self) {
        self.opening.rule_out();
    }

    /// Admits senders that ask for a lane, now and then; with `is_due` at once. Never waits.
    pub(super) fn progress(&self, fd: BorrowedFd<'_>, is_due: bool) {
        // To admit a sender allocates.
        if self.state() != OPEN || !self.is_own_process() || interrupt::is_in_handler() {
            return;
        }
        let tick = sys::tick();
        if self.progressed.swap(tick, Ordering::Relaxed) == tick && !is_due {
            return;
        }
        if tick.wrapping_sub(self.checked.load(Ordering::Relaxed)) >= CHECK_EVERY {
            self.checked.store(tick, Ordering::Relaxed);
            self.check_port_sharing(fd);
        }
        let _section = Section::enter();
        if let Ok(mut discovery) = self.discovery.try_lock()
            && let Some(queue) = self.queue()
        {
            self.serve(fd, queue, &mut discovery);
        }
    }

    /// Checks whether another socket has been bound to the port. Then only the kernel can decide
    /// which socket receives a datagram, and this one is pinned.
    pub fn check_port_sharing(&self, fd: BorrowedFd<'_>) {
        if self.state() != OPEN || !self.may_be_joined.load(Ordering::Relaxed) {
            return;
        }
        let local = local_of(fd).ok().flatten();
        if !local.is_some_and(|at| sock_diag::is_only_receiver(at, self.inode).unwrap_or(false)) {
            self.stat.set_receives(ReceivePath::SharedPort);
            self.pin(FallbackReason::Option);
        }
    }

    fn serve(&self, fd: BorrowedFd<'_>, queue: &Queue, discovery: &mut Discovery) {
        let Some(listener) = &mut discovery.listener else { return };
        let now = sys::now();
        let peer = self.open_peer.get().copied().flatten();
        for _ in 0..MOST_EVENTS {
            // An error is a shortage, which passes.
            let Ok(Some(event)) = listener.try_next(now) else { break };
            let Event::Request(request) = event else { continue };
            let from = request.peer_addr;
            let is_welcome = peer.is_none_or(|peer| peer == from)
                && queue.sources.verify(request.path.sender(), from);
            queue.ud.set_room(sys::receive_buffer(fd));
            let _ = if is_welcome && queue.ud.admit(&request.path).is_ok() {
                let inode = self.inode.to_le_bytes();
                listener.accept(request.id, queue.ud.qp_num(), &inode)
            } else {
                listener.reject(request.id, &[])
            };
        }
        let now = sys::tick();
        if now.wrapping_sub(self.swept.load(Ordering::Relaxed)) >= SWEEP_EVERY {
            self.swept.store(now, Ordering::Relaxed);
            queue.ud.sweep();
        }
    }

    /// The descriptor that is readable when a sender asks for a lane.
    pub(crate) fn listener_fd(&self) -> Option<RawFd> {
        if self.state() != OPEN || !self.is_own_process() {
            return None;
        }
        let _section = Section::enter();
        let discovery = self.discovery.try_lock().ok()?;
        discovery.listener.as_ref().map(|listener| listener.as_fd().as_raw_fd())
    }
}

/// Milliseconds between two checks for peers that have exited.
const SWEEP_EVERY: u32 = 200;
/// A handshake that was not advanced for so many milliseconds is abandoned.
const STALE: u32 = 2000;

/// Whether a queue can exist at canonical `to`: a unicast address of this host.
pub(super) fn may_have_queue(to: SocketAddr) -> bool {
    let ip = to.ip();
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    let has_scope = matches!(to, SocketAddr::V6(v6) if v6.scope_id() != 0);
    to.port() != 0
        && !(ip.is_multicast() || ip.is_unspecified() || is_broadcast || has_scope)
        && is_local(ip)
}

/// A handshake of a sender, under way.
#[derive(Debug)]
pub(super) struct Handshake {
    to: SocketAddr,
    source: SocketAddr,
    connecting: Connecting,
    looked: u32,
}

/// The result of a step of a handshake.
#[derive(Debug)]
pub(super) enum HandshakeStep {
    Pending,
    Failed,
    Found(Box<Route>),
}

impl Handshake {
    /// Begins a handshake with the queue at canonical `to`; `None` if no queue is published there.
    pub(super) fn begin(fd: BorrowedFd<'_>, queue: &Queue, to: SocketAddr) -> Option<Self> {
        let local = local_of(fd).ok()??;
        let source = source_for(fd, local, to)?;
        let port = Arc::new(Port::open_datagrams(to.is_ipv6()).ok()?);
        let now = sys::now();
        let (space, ends) = (PortSpace::KernelUdp, (source, to));
        let connecting =
            Connecting::start_as(&queue.ctx, space, port, ends, now, now + HANDSHAKE_TIMEOUT)
                .ok()?;
        Some(Self { to, source, connecting, looked: sys::tick() })
    }

    /// Whether the program has not sent there for long, so that the handshake does not advance.
    pub(super) fn is_stale(&self) -> bool {
        sys::tick().wrapping_sub(self.looked) > STALE
    }

    /// Takes the steps that can be taken, at most once per tick. Never waits.
    pub(super) fn progress(&mut self, queue: &Queue) -> HandshakeStep {
        let tick = sys::tick();
        if tick == self.looked {
            return HandshakeStep::Pending;
        }
        self.looked = tick;
        match self.step(queue, sys::now()) {
            Ok(None) => HandshakeStep::Pending,
            Ok(Some(route)) => HandshakeStep::Found(Box::new(route)),
            Err(_) => HandshakeStep::Failed,
        }
    }

    fn step(&mut self, queue: &Queue, now: Instant) -> io::Result<Option<Route>> {
        let refused = || io::Error::from_raw_os_error(libc::ECONNREFUSED);
        loop {
            match self.connecting.progress(now)? {
                Progress::Pending => return Ok(None),
                Progress::Rejected(_) => return Err(refused()),
                Progress::Path(..) => self.connecting.send_request(queue.ud.qp_num(), &[])?,
                Progress::Accepted(answer) => {
                    let told = answer.private_data.as_bytes().first_chunk().copied();
                    let inode = u64::from_le_bytes(told.ok_or_else(refused)?);
                    // The socket that answers under the address must be the one to which the kernel
                    // would deliver the datagrams.
                    if !sock_diag::is_only_receiver(self.to, inode)? {
                        return Err(refused());
                    }
                    let connected = self.connecting.establish()?;
                    let to = queue.ud.destination(connected.path(), answer.qp_num, KEY)?;
                    let header = Header { from: self.source, is_after_kernel: false }.encode();
                    let (kernel_seen, by_kernel) = (AtomicU32::new(0), AtomicU32::new(0));
                    return Ok(Some(Route { to, header, kernel_seen, by_kernel }));
                }
            }
        }
    }
}

/// The address that the kernel would show as the source of datagrams from `local`, the address of
/// `fd`, to `to`. `None` if the kernel would not send them, or perhaps to more than one socket.
fn source_for(fd: BorrowedFd<'_>, local: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
    let is_any = local.ip().is_unspecified();
    let is_v6_only = || sockopt::ipv6_v6only(fd).unwrap_or(true);
    if local.port() == 0
        || !is_any && local.is_ipv4() != to.is_ipv4()
        || local.is_ipv6() && to.is_ipv4() && is_v6_only()
    {
        return None;
    }
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // Nothing is sent: `connect` makes the kernel look the route up. It refuses a broadcast
    // address, since this socket has not set `SO_BROADCAST`.
    let probe =
        rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&probe, &to).ok()?;
    if !is_any {
        return Some(local);
    }
    let found = rustix::net::getsockname(&probe).ok().and_then(ip)?;
    Some(SocketAddr::new(found.ip(), local.port()))
}
