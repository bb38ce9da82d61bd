//! Meeting peers of this host: a socket that receives publishes its address, one that sends looks there.
//!
//! The handshake is the connection manager's, in a port space of its own. It makes progress in calls that the
//! program makes anyway; nobody waits for it.

use crate::accelerate::FallbackReason;
use crate::datagram::kernel_udp::header::Header;
use crate::datagram::kernel_udp::holders;
use crate::datagram::kernel_udp::opening::Tried;
use crate::datagram::kernel_udp::sending::Way;
use crate::datagram::kernel_udp::{KEY, OPEN, Queue, SHUT, Udp, ip, local_of};
use crate::interrupt::Section;
use crate::metrics::{Happened, Receives};
use crate::sys;

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

/// The receiving end of handshakes, and when it begins.
#[derive(Debug)]
pub(super) struct Meeting {
    listener: Option<Listener>,
    /// Datagrams that came from this host.
    n_near: u32,
    /// The address that was asked about last, and whether it is of this host.
    known: Option<(IpAddr, bool)>,
    /// How often the kernel was asked.
    n_asked: u32,
}

/// Datagrams from this host before a socket opens.
const FIRST_OPEN: u32 = 4;
/// How often the kernel is asked whose an address is, at most.
const MOST_ASKED: u32 = 8;
/// Peers that may wait for us to look.
const BACKLOG: u32 = 64;
/// How long a peer has for its part of a handshake: it takes part when it receives or polls.
const PATIENCE: Duration = Duration::from_secs(2);
/// Milliseconds between two looks for another socket on the port.
const CHECK_EVERY: u32 = 100;

impl Meeting {
    pub(super) fn new() -> Self {
        Self { listener: None, n_near: 0, known: None, n_asked: 0 }
    }

    /// Counts a datagram that the kernel brought; whether it is time to open.
    fn is_due(&mut self, from: IpAddr) -> bool {
        let is_near = from.is_loopback()
            || match self.known {
                Some((ip, is_near)) if ip == from => is_near,
                _ if self.n_asked >= MOST_ASKED => false,
                _ => {
                    self.n_asked += 1;
                    let is_near = is_local(from);
                    self.known = Some((from, is_near));
                    is_near
                }
            };
        self.n_near = self.n_near.saturating_add(is_near.into());
        is_near && self.n_near >= FIRST_OPEN && self.listener.is_none()
    }
}

impl Udp {
    /// The kernel has brought a datagram, from `from` as far as that is known.
    pub(super) fn note_kernel(&self, fd: BorrowedFd<'_>, from: Option<SocketAddr>) {
        self.count(Happened::ReceivedByKernel);
        if self.state() != SHUT || self.is_pinned() || !self.is_ours() {
            return;
        }
        let _section = Section::enter();
        let from = from.or_else(|| self.routes().peer);
        let Ok(mut meeting) = self.meeting.try_lock() else { return };
        if let Some(from) = from
            && meeting.is_due(from.ip().to_canonical())
            && !self.open(fd, &mut meeting)
        {
            // Not sooner than after as many more.
            meeting.n_near = 0;
        }
    }

    /// From here on senders find the socket; false if that cannot be, now or ever.
    fn open(&self, fd: BorrowedFd<'_>, meeting: &mut Meeting) -> bool {
        match self.try_open(fd, meeting) {
            Ok(is_open) => is_open,
            Err(why) => {
                self.pin_receiving();
                self.stat.set_receives(why);
                false
            }
        }
    }

    /// # Errors
    /// Why it can never be.
    fn try_open(&self, fd: BorrowedFd<'_>, meeting: &mut Meeting) -> Result<bool, Receives> {
        let (shared, unfit) = (Receives::SharedPort, Receives::Address);
        let local = local_of(fd).ok().flatten().filter(|local| local.port() != 0).ok_or(unfit)?;
        let has_scope = matches!(local, SocketAddr::V6(v6) if v6.scope_id() != 0);
        if has_scope || local.ip().is_multicast() {
            return Err(unfit);
        }
        if sockopt::socket_reuseport(fd).unwrap_or(true)
            || !holders::is_sole(local, self.inode).unwrap_or(false)
        {
            return Err(shared);
        }
        let may_be_joined = sockopt::socket_reuseaddr(fd).unwrap_or(true);
        self.may_be_joined.fetch_or(may_be_joined, Ordering::Relaxed);
        let is_v6_only = self.is_v6 && sockopt::ipv6_v6only(fd).unwrap_or(false);
        let peer = self.routes().peer;
        let queue = self.make_queue().ok_or(Receives::Exhausted)?;
        let is_watched = self.opening.is_watched();
        if is_watched && !self.enter_sets(queue) {
            return Err(Receives::Watched);
        }
        let _ = self.open_peer.set(peer);
        let is_heard = match self.opening.attempt(is_watched) {
            Tried::NotShut => return Ok(false),
            Tried::Unheard => false,
            Tried::Open => !self.is_pinned(),
        };
        let listener = is_heard.then(|| {
            Listener::listen_at(&queue.ctx, PortSpace::KernelUdp, local, is_v6_only, BACKLOG)
        });
        match listener {
            Some(Ok(listener)) => {
                meeting.listener = Some(listener);
                self.ended.store(1, Ordering::Relaxed);
                self.stat.set_ends(local, peer);
                self.stat.set_receives(Receives::Queue);
                Ok(true)
            }
            // Nobody has found it.
            Some(Err(_)) | None => {
                // Unless it was pinned meanwhile.
                self.opening.give_up();
                if is_watched {
                    self.leave_sets();
                }
                if is_heard { Err(Receives::Exhausted) } else { Ok(false) }
            }
        }
    }

    /// Nothing will come by the queue; what is sent may go past the kernel.
    fn pin_receiving(&self) {
        self.opening.rule_out();
    }

    /// Lets those in who ask, now and then; `is_due` for at once. Never waits.
    pub(super) fn progress(&self, fd: BorrowedFd<'_>, is_due: bool) {
        if self.state() != OPEN || !self.is_ours() {
            return;
        }
        let tick = sys::tick();
        if self.progressed.swap(tick, Ordering::Relaxed) == tick && !is_due {
            return;
        }
        if tick.wrapping_sub(self.checked.load(Ordering::Relaxed)) >= CHECK_EVERY {
            self.checked.store(tick, Ordering::Relaxed);
            self.look_for_others(fd);
        }
        let _section = Section::enter();
        if let Ok(mut meeting) = self.meeting.try_lock()
            && let Some(queue) = self.queue()
        {
            self.serve(fd, queue, &mut meeting);
        }
    }

    /// Looks whether another socket has come to have the port: then the kernel has to say who gets what.
    pub fn look_for_others(&self, fd: BorrowedFd<'_>) {
        if self.state() != OPEN || !self.may_be_joined.load(Ordering::Relaxed) {
            return;
        }
        let local = local_of(fd).ok().flatten();
        if !local.is_some_and(|at| holders::is_sole(at, self.inode).unwrap_or(false)) {
            self.stat.set_receives(Receives::SharedPort);
            self.pin(FallbackReason::Option);
        }
    }

    fn serve(&self, fd: BorrowedFd<'_>, queue: &Queue, meeting: &mut Meeting) {
        let Some(listener) = &mut meeting.listener else { return };
        let now = sys::now();
        let peer = self.open_peer.get().copied().flatten();
        // An error is a shortage, which passes.
        while let Ok(Some(event)) = listener.try_next(now) {
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

    /// The descriptor that is readable when somebody asks to be let in.
    pub(crate) fn side_fd(&self) -> Option<RawFd> {
        if self.state() != OPEN || !self.is_ours() {
            return None;
        }
        let _section = Section::enter();
        let meeting = self.meeting.try_lock().ok()?;
        meeting.listener.as_ref().map(|listener| listener.as_fd().as_raw_fd())
    }
}

/// Milliseconds between two looks for peers that died.
const SWEEP_EVERY: u32 = 200;
/// Milliseconds: an attempt that nobody has asked about for so long is over.
const STALE: u32 = 2000;

/// Whether a queue may be found at canonical `to`: an address of this host, and one socket's.
pub(super) fn may_be_sought(to: SocketAddr) -> bool {
    let ip = to.ip();
    let is_broadcast = matches!(ip, IpAddr::V4(v4) if v4.is_broadcast());
    let has_scope = matches!(to, SocketAddr::V6(v6) if v6.scope_id() != 0);
    to.port() != 0
        && !(ip.is_multicast() || ip.is_unspecified() || is_broadcast || has_scope)
        && is_local(ip)
}

/// A handshake under way, of one that sends.
#[derive(Debug)]
pub(super) struct Attempt {
    to: SocketAddr,
    source: SocketAddr,
    connecting: Connecting,
    looked: u32,
}

/// What came of a step.
#[derive(Debug)]
pub(super) enum Sought {
    Pending,
    Failed,
    Found(Box<Way>),
}

impl Attempt {
    /// Begins to look for the queue at canonical `to`; `None` if nobody is there.
    pub(super) fn begin(fd: BorrowedFd<'_>, queue: &Queue, to: SocketAddr) -> Option<Self> {
        let local = local_of(fd).ok()??;
        let source = source_for(fd, local, to)?;
        let port = Arc::new(Port::open_datagrams(to.is_ipv6()).ok()?);
        let now = sys::now();
        let (space, ends) = (PortSpace::KernelUdp, (source, to));
        let connecting =
            Connecting::start_as(&queue.ctx, space, port, ends, now, now + PATIENCE).ok()?;
        Some(Self { to, source, connecting, looked: sys::tick() })
    }

    /// Whether nobody has sent there for long, so that nothing goes on.
    pub(super) fn is_stale(&self) -> bool {
        sys::tick().wrapping_sub(self.looked) > STALE
    }

    /// Takes the steps that can be taken, if it is time to look. Never waits.
    pub(super) fn progress(&mut self, queue: &Queue) -> Sought {
        let tick = sys::tick();
        if tick == self.looked {
            return Sought::Pending;
        }
        self.looked = tick;
        match self.step(queue, sys::now()) {
            Ok(None) => Sought::Pending,
            Ok(Some(way)) => Sought::Found(Box::new(way)),
            Err(_) => Sought::Failed,
        }
    }

    fn step(&mut self, queue: &Queue, now: Instant) -> io::Result<Option<Way>> {
        let refused = || io::Error::from_raw_os_error(libc::ECONNREFUSED);
        loop {
            match self.connecting.progress(now)? {
                Progress::Pending => return Ok(None),
                Progress::Rejected(_) => return Err(refused()),
                Progress::Path(..) => self.connecting.send_request(queue.ud.qp_num(), &[])?,
                Progress::Accepted(answer) => {
                    let told = answer.private_data.as_bytes().first_chunk().copied();
                    let inode = u64::from_le_bytes(told.ok_or_else(refused)?);
                    // What is found under the address must be the socket that the kernel would give
                    // our datagrams to.
                    if !holders::is_sole(self.to, inode)? {
                        return Err(refused());
                    }
                    let met = self.connecting.establish()?;
                    let to = queue.ud.destination(met.path(), answer.qp_num, KEY)?;
                    let header = Header { from: self.source, is_after_kernel: false }.encode();
                    let (kernel_seen, by_kernel) = (AtomicU32::new(0), AtomicU32::new(0));
                    return Ok(Some(Way { to, header, kernel_seen, by_kernel }));
                }
            }
        }
    }
}

/// The address that the kernel would show as the source of datagrams from `local`, which is `fd`'s, to `to`. `None` if it
/// would not send them, or perhaps to more than one socket.
fn source_for(fd: BorrowedFd<'_>, local: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
    let is_any = local.ip().is_unspecified();
    let is_sixes_alone = || sockopt::ipv6_v6only(fd).unwrap_or(true);
    if local.port() == 0
        || !is_any && local.is_ipv4() != to.is_ipv4()
        || local.is_ipv6() && to.is_ipv4() && is_sixes_alone()
    {
        return None;
    }
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    // Nothing is sent: the kernel looks the route up, and says what it found. A broadcast it refuses, since nobody has
    // asked to be allowed any by this socket.
    let probe =
        rustix::net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&probe, &to).ok()?;
    if !is_any {
        return Some(local);
    }
    let found = rustix::net::getsockname(&probe).ok().and_then(ip)?;
    Some(SocketAddr::new(found.ip(), local.port()))
}
