//! The part of a datagram socket for peers on other hosts: a queue on each RDMA device that it
//! uses.
//!
//! The device follows from the local address towards a peer, by the routing table; so a socket that
//! is bound to no address may have several queues. A datagram is sent without a handshake, and its
//! loss is not reported.
//!
//! It belongs to the process that created it. A forked child uses UDP.

use crate::datagram::header::KEY;
use crate::datagram::header::{HeaderBytes, MAX_QUEUE_HEADER, QueueHeader};
use crate::datagram::is_link_local;
use crate::datagram::lru::LruMap;
use crate::sys;
use rsock_cm::Port;
use rsock_verbs::family::{ProcessId, process};
use rsock_verbs::rdma::{GidEntry, RdmaContext, RdmaDestination, RdmaUd};
use rsock_verbs::{Arrived, DatagramCounters, DatagramError, DatagramQueue, Posted, QpNum};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The queues of one socket on RDMA devices.
#[derive(Debug)]
pub(super) struct Remote {
    port: Arc<Port>,
    owner: ProcessId,
    /// In the order of their creation; receivers read them without a lock.
    queues: [OnceLock<Arc<Queue>>; MAX_QUEUES],
    known: Mutex<Known>,
    /// Whether any datagram has come this way: then receivers spin for it.
    is_active: AtomicBool,
}

/// Cached facts about hosts and devices, which expire.
#[derive(Debug)]
struct Known {
    origins: LruMap<IpAddr, (Option<Origin>, Instant)>,
    devices: Vec<(IpAddr, Option<Device>, Instant)>,
}

/// A queue of one device.
///
/// # Invariants
/// `ud` is destroyed only by the process that created it: a child inherits its parent's objects.
#[derive(Debug)]
pub(super) struct Queue {
    ud: Arc<RdmaUd>,
    ctx: RdmaContext,
    port: u8,
    owner: ProcessId,
    /// When a datagram found no room, if none has found any since; by the kernel's coarse clock. 0
    /// otherwise.
    full_since: AtomicU32,
    /// How often there was room again after that; wraps.
    n_moves: AtomicU32,
}

/// A local address on the device of a queue.
#[derive(Clone, Debug)]
struct Device {
    queue: Arc<Queue>,
    gid: GidEntry,
}

/// The local end for datagrams to a host.
#[derive(Clone, Debug)]
struct Origin {
    device: Device,
    source: IpAddr,
}

/// A route to a queue on another host.
#[derive(Debug)]
pub(super) struct RemoteRoute {
    /// Declared before the queue, which keeps what sends under way still use.
    pub(super) to: RdmaDestination,
    pub(super) queue: Arc<Queue>,
}

/// Most devices that one socket uses.
const MAX_QUEUES: usize = 8;
/// Number of cached hosts.
const HOSTS: usize = 1024;
/// How long a route is cached.
const ROUTE_AGE: Duration = Duration::from_secs(1);
/// How long the device of a local address is cached; and that an address has none.
const DEVICE_AGE: Duration = Duration::from_secs(1);
const NO_DEVICE_AGE: Duration = Duration::from_secs(5);

/// Longest sleep of a sender before it checks again whether a device has room.
const FULL_FOR: Duration = Duration::from_millis(1);
/// After this many milliseconds without progress a device counts as stuck.
const STUCK_AFTER: u32 = 200;

/// WIRE: bytes of a peer's receive slots, which hold a datagram with its header.
const SLOT: usize = 2048;

impl Queue {
    pub(super) fn ud(&self) -> &RdmaUd {
        &self.ud
    }

    pub(super) fn context(&self) -> &RdmaContext {
        &self.ctx
    }

    /// Whether the calling process created it, and it works.
    pub(super) fn is_usable(&self) -> bool {
        self.owner == process() && !self.ud.is_broken()
    }

    /// Sends the pieces as one datagram.
    pub(super) fn post(
        &self,
        to: &RdmaDestination,
        pieces: &[IoSlice<'_>],
    ) -> Result<Posted, DatagramError> {
        if !self.is_usable() {
            return Err(DatagramError::Broken);
        }
        let len = pieces.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        if len > self.max_len() {
            return Err(DatagramError::TooLong);
        }
        let posted = self.ud.post(to, pieces);
        match posted {
            Ok(_) => self.is_moving(),
            Err(DatagramError::Full) => {
                let now = sys::tick().max(1);
                // The first sender that found no room has stored the time.
                let _ = self.full_since.compare_exchange(0, now, AcqRel, Relaxed);
            }
            Err(_) => {}
        }
        posted
    }

    fn is_moving(&self) {
        if self.full_since.load(Acquire) != 0 {
            self.n_moves.fetch_add(1, Release);
            // SYNC(room): after the count, for a thread that reads 0 here and then reads the count.
            self.full_since.store(0, Release);
        }
    }

    /// How often there was room again after there had been none; wraps.
    pub(super) fn n_moves(&self) -> u32 {
        self.n_moves.load(Acquire)
    }

    /// Whether there has been no room for so long that there may never be any.
    pub(super) fn is_stuck(&self) -> bool {
        let since = self.full_since.load(Relaxed);
        since != 0 && sys::tick().wrapping_sub(since) >= STUCK_AFTER
    }

    /// After a datagram found no room: how long to wait for some, at most. Zero where there is room
    /// now, or may never be. `None` if there has been room since.
    pub(super) fn room_retry_after(&self) -> Option<Duration> {
        // SYNC(room): pairs with `is_moving`.
        if self.full_since.load(Acquire) == 0 {
            return None;
        }
        if !self.is_usable() || !self.ud.is_full() {
            self.is_moving();
            return Some(Duration::ZERO);
        }
        Some(if self.is_stuck() { Duration::ZERO } else { FULL_FOR })
    }

    /// Blocks the calling thread until there may be room, for a bounded time.
    pub(super) fn park_for_room(&self) {
        self.ud.park_since(self.ud.wake_epoch(), Some(FULL_FOR));
    }

    /// Length of the longest datagram, with its header.
    pub(super) fn max_len(&self) -> usize {
        self.ud.max_len().min(SLOT)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.owner != process() {
            std::mem::forget(Arc::clone(&self.ud));
        }
    }
}

impl Remote {
    /// For the socket at `port`, which is bound. Opens no device yet.
    pub(super) fn new(port: &Arc<Port>) -> Self {
        let known = Known { origins: LruMap::new(HOSTS), devices: Vec::new() };
        Self {
            port: Arc::clone(port),
            owner: process(),
            queues: [const { OnceLock::new() }; MAX_QUEUES],
            known: Mutex::new(known),
            is_active: AtomicBool::new(false),
        }
    }

    /// Whether the calling process created it.
    pub(super) fn is_own_process(&self) -> bool {
        self.owner == process()
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The existing queues.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.iter().map_while(OnceLock::get)
    }

    /// Whether it has any queue.
    pub(super) fn has_queues(&self) -> bool {
        self.queues[0].get().is_some()
    }

    /// Number of queues; it never decreases.
    pub(super) fn n_queues(&self) -> usize {
        self.queues().count()
    }

    /// The number of the queue to which `peer` can send.
    pub(super) fn number_for(&self, peer: IpAddr) -> Option<QpNum> {
        self.origin(peer).map(|origin| origin.device.queue.ud.qp_num())
    }

    /// Opens a route to queue `number` at canonical `peer`.
    ///
    /// # Errors
    /// `ENODEV` if no device leads there; the device's errors.
    pub(super) fn open(
        &self,
        peer: SocketAddr,
        number: QpNum,
    ) -> io::Result<(RemoteRoute, HeaderBytes<MAX_QUEUE_HEADER>)> {
        let none = || io::Error::from_raw_os_error(libc::ENODEV);
        let Origin { device: Device { queue, gid }, source } =
            self.origin(peer.ip()).ok_or_else(none)?;
        // Creating an address handle would wait until the neighbour is resolved. UDP resolves it
        // too, and does not wait.
        if !rsock_cm::knows_neighbour(peer.ip()) {
            return Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH));
        }
        let path = queue.ctx.path(&gid, peer.ip().into())?;
        let to = queue.ud.destination(&path, number, KEY)?;
        let source = SocketAddr::new(source, self.port.local_addr()?.port());
        Ok((RemoteRoute { to, queue }, QueueHeader { source }.encode()))
    }

    /// The local end for `peer`; none where no device leads to it.
    fn origin(&self, peer: IpAddr) -> Option<Origin> {
        if !self.is_own_process() {
            return None;
        }
        let now = sys::now();
        let mut known = self.known();
        if let Some((origin, asked)) = known.origins.get_mut(&peer)
            && now.saturating_duration_since(*asked) < ROUTE_AGE
        {
            return origin.clone().filter(|origin| origin.device.queue.is_usable());
        }
        let origin = self.find(&mut known, peer, now);
        known.origins.insert(peer, (origin.clone(), now));
        origin
    }

    fn find(&self, known: &mut Known, peer: IpAddr, now: Instant) -> Option<Origin> {
        let bound = self.port.local_addr().ok()?.ip();
        let source = if bound.is_unspecified() { rsock_cm::route_to(peer)?.source? } else { bound };
        // Addresses of different families, loopback and link-local addresses are not reached by a
        // device.
        let is_of_link =
            matches!(peer, IpAddr::V4(ip) if ip.is_link_local()) || is_link_local(peer);
        if source.is_ipv4() != peer.is_ipv4() || source.is_loopback() || is_of_link {
            return None;
        }
        let device = self.device(known, source, now)?;
        device.queue.is_usable().then_some(Origin { device, source })
    }

    /// The device that has the local address `source`, with a queue on it.
    fn device(&self, known: &mut Known, source: IpAddr, now: Instant) -> Option<Device> {
        known.devices.retain(|(_, device, asked)| {
            let age = if device.is_some() { DEVICE_AGE } else { NO_DEVICE_AGE };
            now.saturating_duration_since(*asked) < age
        });
        if let Some((_, device, _)) = known.devices.iter().find(|(ip, ..)| *ip == source) {
            return device.clone();
        }
        let device = rsock_cm::rdma::device_at(source).ok().and_then(|(ctx, gid)| {
            let queue = self.queue(&ctx, gid.port).ok()?;
            Some(Device { queue, gid })
        });
        known.devices.push((source, device.clone(), now));
        device
    }

    /// The queue on a device's port, which is created if there is none. The caller holds the lock
    /// of `known`.
    fn queue(&self, ctx: &RdmaContext, port: u8) -> io::Result<Arc<Queue>> {
        let is_there = |queue: &&Arc<Queue>| {
            (queue.ctx.name(), queue.port) == (ctx.name(), port) && queue.is_usable()
        };
        if let Some(queue) = self.queues().find(is_there) {
            return Ok(Arc::clone(queue));
        }
        let full = || io::Error::from_raw_os_error(libc::ENOBUFS);
        let place = self.queues.iter().find(|place| place.get().is_none()).ok_or_else(full)?;
        let ud = Arc::new(ctx.create_datagrams(port, KEY)?);
        let (ctx, owner) = (ctx.clone(), process());
        let (full_since, n_moves) = (AtomicU32::new(0), AtomicU32::new(0));
        let queue = Arc::new(Queue { ud, ctx, port, owner, full_since, n_moves });
        Ok(Arc::clone(place.get_or_init(|| queue)))
    }

    /// Whether a datagram may have come.
    pub(super) fn is_ready(&self) -> bool {
        self.is_own_process() && self.queues().any(|queue| queue.ud.is_ready())
    }

    /// Passes the next datagram to `take`. False if there is none.
    #[inline]
    pub(super) fn try_recv(&self, take: &mut dyn FnMut(&dyn Arrived)) -> bool {
        let any = self.is_own_process() && self.queues().any(|queue| queue.ud.try_recv(take));
        if any && !self.is_active() {
            self.is_active.store(true, Relaxed);
        }
        any
    }

    pub(super) fn counters(&self) -> DatagramCounters {
        self.queues().map(|queue| queue.ud.counters()).fold(
            DatagramCounters::default(),
            |sum, one| DatagramCounters {
                n_sent: sum.n_sent + one.n_sent,
                n_received: sum.n_received + one.n_received,
                n_malformed: sum.n_malformed + one.n_malformed,
                ..sum
            },
        )
    }
}
