//! Sending: into a peer's queue where a route to it is known, by the kernel otherwise.

use crate::datagram::kernel_udp::discovery::{Handshake, HandshakeStep, may_have_queue};
use crate::datagram::kernel_udp::header::MAX;
use crate::datagram::kernel_udp::route::Route;
use crate::datagram::kernel_udp::{AcceleratedUdp, FirstUse, Queue};
use crate::datagram::yield_to_receiver;
use crate::interrupt::{self, Section};
use crate::metrics::DatagramEvent;
use crate::sys;
use rsock_cm::canonical;
use rsock_verbs::soft::{SoftDestination, SoftUd};
use rsock_verbs::{DatagramError, DatagramQueue, Posted};
use rustix::fd::BorrowedFd;
use std::collections::HashMap;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};

/// The routes of a socket. They belong to the process that created it.
#[derive(Debug)]
pub(super) struct Routes {
    /// The address that the socket is connected to.
    pub(super) peer: Option<SocketAddr>,
    known: HashMap<SocketAddr, Known>,
    /// The route that was used last.
    last: Option<(SocketAddr, Arc<Route>)>,
    /// Handshakes under way.
    n_handshakes: usize,
    n_routes: usize,
    /// Numbers of destinations with and without a route, as `rsock stat` shows them.
    shown: (usize, usize),
    /// When a datagram that found no room in a queue last went by the kernel.
    rescued: u32,
    /// How often datagrams went by the kernel, wrapping, by the low bits of the destination port: a
    /// socket may have several addresses, which share its port.
    by_kernel: [u32; N_PORTS],
}

/// What is known of a destination.
#[derive(Debug)]
enum Known {
    /// Datagrams go by the kernel: how many so far, and at which number to look for a queue.
    Kernel {
        n_sent: u32,
        look_at: u32,
    },
    /// A queue was found, and the handshake is under way.
    Connecting {
        n_sent: u32,
        attempt: Box<Handshake>,
    },
    Route(Arc<Route>),
    /// The destination is not on this host.
    Elsewhere,
}

/// Datagrams to an address before the sender looks for a queue there.
pub(super) const FIRST_LOOK: u32 = 8;
/// Most datagrams between two such looks.
const MAX_BETWEEN: u32 = 4096;
/// Number of remembered destinations without a route.
pub(super) const MAX_KNOWN: usize = 1024;
/// Handshakes under way at the same time.
const MAX_HANDSHAKES: usize = 4;
/// Datagrams that follow a datagram which had to go by the kernel: if the two ways alternated, the
/// receiver could not tell the order. It is also the number that the kernel's socket may have room
/// for while the queue is full. One such run is sent per tick: more means that the receiver is too
/// slow.
const KERNEL_RUN: u32 = 64;

/// Ports whose kernel counts are separate. If two ports share one, the receiver reads the kernel's
/// socket once too often.
const N_PORTS: usize = 64;

/// The result of an attempt to send past the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PostOutcome {
    /// The datagram is in the queue of the route that was used last.
    Done,
    /// The datagram was lost, and counted.
    Lost,
    /// The kernel must send it.
    Kernel,
}

/// How a datagram is put into a queue: by [`DatagramQueue::send`], or by [`DatagramQueue::post`]
/// where [`DatagramQueue::ring`] follows.
type Post = fn(&SoftUd, &SoftDestination, &[IoSlice<'_>]) -> Result<Posted, DatagramError>;

impl Routes {
    pub(super) fn new(peer: Option<SocketAddr>) -> Self {
        Self {
            peer,
            known: HashMap::new(),
            last: None,
            n_handshakes: 0,
            n_routes: 0,
            shown: (0, 0),
            rescued: sys::tick(),
            by_kernel: [0; N_PORTS],
        }
    }

    /// The route that was used last, if it leads to canonical `to`.
    #[inline(always)]
    fn last_to(&self, to: SocketAddr) -> Option<&Arc<Route>> {
        self.last.as_ref().filter(|(last, _)| *last == to).map(|(_, route)| route)
    }

    /// Counts a datagram that goes to canonical `to` by the kernel.
    fn note_kernel(&mut self, to: SocketAddr) {
        let n = &mut self.by_kernel[usize::from(to.port()) % N_PORTS];
        *n = n.wrapping_add(1);
    }

    /// How many datagrams went to the port of `to` by the kernel.
    fn kernel_count(&self, to: &SocketAddr) -> u32 {
        self.by_kernel[usize::from(to.port()) % N_PORTS]
    }

    /// Abandons handshakes with destinations that the program no longer sends to.
    fn forget_stale(&mut self) {
        self.known.retain(
            |_, known| !matches!(known, Known::Connecting { attempt, .. } if attempt.is_stale()),
        );
        let is_sought = |known: &&Known| matches!(known, Known::Connecting { .. });
        self.n_handshakes = self.known.values().filter(is_sought).count();
    }
}

/// Datagrams that are sent in a row. Their receivers are woken when this is dropped, at the latest.
/// The caller drops it before any call that may wait.
#[derive(Debug)]
#[must_use]
pub struct Batch<'a> {
    udp: &'a AcceleratedUdp,
    fd: BorrowedFd<'a>,
    held: Option<(MutexGuard<'a, Routes>, Section)>,
    /// The route of the last datagrams, whose receiver was not woken yet.
    unrung: Option<Arc<Route>>,
}

impl Batch<'_> {
    /// As [`AcceleratedUdp::send`].
    #[must_use]
    pub fn send(&mut self, bufs: &[IoSlice<'_>], to: Option<SocketAddr>) -> bool {
        let udp = self.udp;
        if udp.is_pinned() || !udp.is_own_process() {
            return false;
        }
        let (routes, _) = self.held.get_or_insert_with(|| {
            let section = Section::enter();
            (udp.routes(), section)
        });
        match udp.post(self.fd, routes, bufs, to, SoftUd::post) {
            PostOutcome::Done => {
                let Some((_, route)) = &routes.last else { return true };
                if !self.unrung.as_ref().is_some_and(|unrung| Arc::ptr_eq(unrung, route))
                    && let Some(unrung) = self.unrung.replace(Arc::clone(route))
                {
                    udp.ring(&unrung);
                }
                true
            }
            PostOutcome::Kernel => {
                udp.count(DatagramEvent::ByKernel);
                false
            }
            PostOutcome::Lost => {
                self.flush();
                yield_to_receiver();
                true
            }
        }
    }

    /// Wakes the last receiver, and releases the lock.
    fn flush(&mut self) {
        if let Some(route) = self.unrung.take() {
            self.udp.ring(&route);
        }
        self.held = None;
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

#[cfg(test)]
impl Routes {
    pub(super) fn n_known(&self) -> usize {
        self.known.len()
    }

    pub(super) fn route(&self, to: SocketAddr) -> Option<Arc<Route>> {
        match self.known.get(&to)? {
            Known::Route(route) => Some(Arc::clone(route)),
            _ => None,
        }
    }
}

impl AcceleratedUdp {
    /// Sends the pieces as one datagram past the kernel, to `to` or the peer of a connected socket.
    /// False if the caller must send it by the kernel, whose result counts then.
    #[must_use]
    pub fn send(&self, fd: BorrowedFd<'_>, bufs: &[IoSlice<'_>], to: Option<SocketAddr>) -> bool {
        if self.is_pinned() || !self.is_own_process() {
            return false;
        }
        let post = {
            let _section = Section::enter();
            self.post(fd, &mut self.routes(), bufs, to, SoftUd::send)
        };
        match post {
            PostOutcome::Done => true,
            PostOutcome::Kernel => {
                self.count(DatagramEvent::ByKernel);
                false
            }
            PostOutcome::Lost => {
                yield_to_receiver();
                true
            }
        }
    }

    /// As [`Self::send`], where the last datagram took the same route. False if nothing was sent:
    /// [`Self::send`] makes the call. Allocates nothing.
    #[must_use]
    #[inline(always)]
    pub fn send_at_once(&self, bytes: &[u8], to: Option<SocketAddr>) -> bool {
        if self.is_pinned() || !self.is_own_process() {
            return false;
        }
        let outcome = {
            let _section = Section::enter();
            self.post_at_once(&mut self.routes(), bytes, to)
        };
        if outcome == PostOutcome::Lost {
            yield_to_receiver();
        }
        outcome != PostOutcome::Kernel
    }

    #[inline(always)]
    fn post_at_once(
        &self,
        routes: &mut Routes,
        bytes: &[u8],
        to: Option<SocketAddr>,
    ) -> PostOutcome {
        let is_last = match (&routes.last, to) {
            (Some((last, _)), Some(to)) => *last == canonical(to),
            (Some((last, _)), None) => routes.peer == Some(*last),
            (None, _) => false,
        };
        let is_free = |(_, route): &(_, Arc<Route>)| route.by_kernel.load(Ordering::Relaxed) == 0;
        if is_last && routes.last.as_ref().is_some_and(is_free) {
            self.post_by_last(routes, &[IoSlice::new(bytes)], SoftUd::send)
        } else {
            PostOutcome::Kernel
        }
    }

    /// Notes that the program sends by the kernel, to an address that only the kernel understands.
    /// Datagrams that follow it past the kernel, to any destination, must not be received before
    /// it.
    pub fn note_sent_by_kernel(&self) {
        if self.is_pinned() || !self.is_own_process() {
            return;
        }
        let _section = Section::enter();
        for n in &mut self.routes().by_kernel {
            *n = n.wrapping_add(1);
        }
        self.count(DatagramEvent::ByKernel);
    }

    /// Begins a batch of datagrams, with one wake-up for all that go to one peer.
    pub fn begin_batch<'a>(&'a self, fd: BorrowedFd<'a>) -> Batch<'a> {
        Batch { udp: self, fd, held: None, unrung: None }
    }

    fn ring(&self, route: &Route) {
        if let Some(queue) = self.queue() {
            queue.ud.ring(&route.to);
        }
    }

    fn post(
        &self,
        fd: BorrowedFd<'_>,
        routes: &mut Routes,
        bufs: &[IoSlice<'_>],
        to: Option<SocketAddr>,
        post: Post,
    ) -> PostOutcome {
        let Some(to) = to.map(canonical).or(routes.peer) else { return PostOutcome::Kernel };
        // To find a route allocates.
        let outcome = if interrupt::is_in_handler() {
            PostOutcome::Kernel
        } else {
            self.post_to(fd, routes, bufs, to, post)
        };
        if outcome == PostOutcome::Kernel {
            routes.note_kernel(to);
        }
        outcome
    }

    /// As [`Self::post`], to canonical `to`.
    #[inline]
    fn post_to(
        &self,
        fd: BorrowedFd<'_>,
        routes: &mut Routes,
        bufs: &[IoSlice<'_>],
        to: SocketAddr,
        post: Post,
    ) -> PostOutcome {
        if routes.last_to(to).is_none() {
            self.find(fd, routes, to);
        }
        let Some(route) = routes.last_to(to) else { return PostOutcome::Kernel };
        let Some(Queue { ud, .. }) = self.queue() else { return PostOutcome::Kernel };
        let by_kernel = route.by_kernel.load(Ordering::Relaxed);
        if by_kernel != 0 {
            let len = bufs.iter().fold(0usize, |sum, buf| sum.saturating_add(buf.len()));
            let left = if len > ud.max_len() - MAX { KERNEL_RUN } else { by_kernel - 1 };
            route.by_kernel.store(left, Ordering::Relaxed);
            return PostOutcome::Kernel;
        }
        self.post_by_last(routes, bufs, post)
    }

    /// As [`Self::post_to`], by the route that was used last.
    #[inline(always)]
    fn post_by_last(&self, routes: &mut Routes, bufs: &[IoSlice<'_>], post: Post) -> PostOutcome {
        let (Some(Queue { ud, .. }), Some((to, route))) = (self.queue(), &routes.last) else {
            return PostOutcome::Kernel;
        };
        let by_kernel = routes.kernel_count(to);
        let is_after_kernel = route.kernel_seen.load(Ordering::Relaxed) != by_kernel;
        let header = route.header.after_kernel(is_after_kernel);
        let header = IoSlice::new(header.as_bytes());
        let posted = if let [buf] = bufs {
            post(ud, &route.to, &[header, *buf])
        } else {
            let mut pieces = vec![header];
            pieces.extend_from_slice(bufs);
            post(ud, &route.to, &pieces)
        };
        match posted {
            Ok(Posted::Out) => {
                route.kernel_seen.store(by_kernel, Ordering::Relaxed);
                self.count(DatagramEvent::Sent);
                PostOutcome::Done
            }
            Ok(Posted::Lost) => {
                ud.ring(&route.to);
                let now = sys::tick();
                if routes.rescued == now {
                    self.count(DatagramEvent::Dropped);
                    return PostOutcome::Lost;
                }
                route.by_kernel.store(KERNEL_RUN, Ordering::Relaxed);
                routes.rescued = now;
                self.count(DatagramEvent::Rescued);
                PostOutcome::Kernel
            }
            Err(DatagramError::TooLong | DatagramError::Full) => {
                route.by_kernel.store(KERNEL_RUN, Ordering::Relaxed);
                PostOutcome::Kernel
            }
            Err(DatagramError::Gone | DatagramError::Broken) => {
                let later = Known::Kernel { n_sent: 0, look_at: FIRST_LOOK };
                if let Some((to, _)) = routes.last.take()
                    && let Some(Known::Route(_)) = routes.known.insert(to, later)
                {
                    routes.n_routes -= 1;
                }
                self.show(routes);
                PostOutcome::Kernel
            }
        }
    }

    /// Updates the counts of `rsock stat`, if they have changed.
    fn show(&self, routes: &mut Routes) {
        let shown = (routes.n_routes, routes.known.len() - routes.n_routes);
        if routes.shown != shown {
            routes.shown = shown;
            self.stat.set_peers(shown.0, shown.1);
        }
    }

    /// Makes the route to `to` the last one that was used, if there is one by now; looks for it
    /// when that is due.
    fn find(&self, fd: BorrowedFd<'_>, routes: &mut Routes, to: SocketAddr) {
        self.look_up(fd, routes, to);
        self.show(routes);
    }

    fn look_up(&self, fd: BorrowedFd<'_>, routes: &mut Routes, to: SocketAddr) {
        if routes.known.len() >= MAX_KNOWN && !routes.known.contains_key(&to) {
            routes.known.retain(|_, known| matches!(known, Known::Route(_)));
            routes.n_handshakes = 0;
            if routes.known.len() >= MAX_KNOWN {
                routes.known.clear();
                routes.n_routes = 0;
            }
        }
        let fresh = Known::Kernel { n_sent: 0, look_at: FIRST_LOOK };
        let n_by_kernel = routes.kernel_count(&to);
        let known = routes.known.entry(to).or_insert(fresh);
        match known {
            Known::Elsewhere => {}
            Known::Route(route) => {
                routes.last = Some((to, Arc::clone(route)));
            }
            Known::Kernel { n_sent, look_at } => {
                *n_sent = n_sent.saturating_add(1);
                if *n_sent < *look_at {
                    return;
                }
                let n_sent = *n_sent;
                let again = n_sent.saturating_add(n_sent.clamp(FIRST_LOOK, MAX_BETWEEN));
                *look_at = again;
                if routes.n_handshakes >= MAX_HANDSHAKES {
                    routes.forget_stale();
                    return;
                }
                if !may_have_queue(to) {
                    *known = Known::Elsewhere;
                    return;
                }
                let attempt = self.make_queue().and_then(|queue| Handshake::begin(fd, queue, to));
                let Some(attempt) = attempt else { return };
                *known = Known::Connecting { n_sent, attempt: Box::new(attempt) };
                routes.n_handshakes += 1;
            }
            Known::Connecting { n_sent, attempt } => {
                *n_sent = n_sent.saturating_add(1);
                let n_sent = *n_sent;
                let Some(queue) = self.queue() else { return };
                match attempt.progress(queue) {
                    HandshakeStep::Pending => {}
                    HandshakeStep::Failed => {
                        let look_at = n_sent.saturating_add(n_sent.min(MAX_BETWEEN));
                        *known = Known::Kernel { n_sent, look_at };
                        routes.n_handshakes = routes.n_handshakes.saturating_sub(1);
                    }
                    HandshakeStep::Found(route) => {
                        // This datagram still goes by the kernel: the route begins after it.
                        route.kernel_seen.store(n_by_kernel, Ordering::Relaxed);
                        *known = Known::Route(Arc::new(*route));
                        self.first_use.fetch_or(FirstUse::Sends as u8, Ordering::Relaxed);
                        routes.n_handshakes = routes.n_handshakes.saturating_sub(1);
                        routes.n_routes += 1;
                    }
                }
            }
        }
    }
}
