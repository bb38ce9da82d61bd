//! The part of a datagram socket that other hosts reach: a queue on each RDMA device over which it talks.
//!
//! Which device that is follows from our own address towards a peer, as the routing table has it; so a
//! socket that is bound to no address may have several queues. Nobody is asked before a datagram is sent
//! this route, and nobody tells when one is lost.
//!
//! It belongs to the process that made it. A child forked from that one uses UDP.

use crate::datagram::handshake::KEY;
use crate::datagram::header::{HeaderBytes, MAX_QUEUE_HEADER, QueueHeader};
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
    /// In the order in which they were made; a receiver looks at them without a lock.
    queues: [OnceLock<Arc<Queue>>; MAX_QUEUES],
    known: Mutex<Known>,
    /// Whether anything has come this route: then it pays to look here first.
    is_active: AtomicBool,
}

/// What was found out about hosts and devices, and is believed for a while.
#[derive(Debug)]
struct Known {
    origins: LruMap<IpAddr, (Option<Origin>, Instant)>,
    devices: Vec<(IpAddr, Option<Device>, Instant)>,
}

/// A queue of one device.
///
/// # Invariants
/// `ud` comes to its end in the process that made it only: what a child has inherited is its parent's.
#[derive(Debug)]
pub(super) struct Queue {
    ud: Arc<RdmaUd>,
    ctx: RdmaContext,
    port: u8,
    owner: ProcessId,
    /// When a datagram found no room, and none has found any since; by the kernel's coarse clock. 0: not so.
    full_since: AtomicU32,
    /// How often there was room again after that; wraps.
    n_moves: AtomicU32,
}

/// Where one of our addresses is: on the device of a queue.
#[derive(Clone, Debug)]
struct Device {
    queue: Arc<Queue>,
    gid: GidEntry,
}

/// From where a host is talked to.
#[derive(Clone, Debug)]
struct Origin {
    device: Device,
    source: IpAddr,
}

/// A route to a queue on another host.
#[derive(Debug)]
pub(super) struct RemoteRoute {
    /// Goes before its queue does, which keeps what sends still need.
    pub(super) to: RdmaDestination,
    pub(super) queue: Arc<Queue>,
}

/// Devices that one socket talks over.
const MAX_QUEUES: usize = 8;
/// Hosts that are remembered.
const HOSTS: usize = 1024;
/// How long the routing table is believed.
const ROUTE_AGE: Duration = Duration::from_secs(1);
/// How long the place of one of our addresses is believed; and that it has none.
const DEVICE_AGE: Duration = Duration::from_secs(1);
const NO_DEVICE_AGE: Duration = Duration::from_secs(5);

/// Longest time until a sender looks whether a device has room again.
const FULL_FOR: Duration = Duration::from_millis(1);
/// How long a device may send nothing, in milliseconds.
const STUCK_AFTER: u32 = 200;

/// WIRE: bytes of a peer's slots, in which a datagram lies with its header.
const SLOT: usize = 2048;

impl Queue {
    pub(super) fn ud(&self) -> &RdmaUd {
        &self.ud
    }

    pub(super) fn context(&self) -> &RdmaContext {
        &self.ctx
    }

    /// Whether the calling process may use it, and it works.
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
                // Who was first has said since when.
                let _ = self.full_since.compare_exchange(0, now, AcqRel, Relaxed);
            }
            Err(_) => {}
        }
        posted
    }

    fn is_moving(&self) {
        if self.full_since.load(Acquire) != 0 {
            self.n_moves.fetch_add(1, Release);
            // SYNC(room): after the count, for who finds this to be 0 and then looks at the count.
            self.full_since.store(0, Release);
        }
    }

    /// How often there was room again after there had been none; wraps.
    pub(super) fn n_moves(&self) -> u32 {
        self.n_moves.load(Acquire)
    }

    /// Whether it has had no room for so long that it may never have any.
    pub(super) fn is_stuck(&self) -> bool {
        let since = self.full_since.load(Relaxed);
        since != 0 && sys::tick().wrapping_sub(since) >= STUCK_AFTER
    }

    /// After a datagram found no room: how long to wait for some, at most. Nothing at all where there is some
    /// now, or may never be. `None` if there has been some since.
    pub(super) fn patience(&self) -> Option<Duration> {
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

    /// Waits for room in a thread, for a while.
    pub(super) fn park_for_room(&self) {
        self.ud.park_since(self.ud.wake_epoch(), Some(FULL_FOR));
    }

    /// Longest datagram, with its header.
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
    /// For the socket at `port`, which is bound. Looks for no device yet.
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

    /// Whether the calling process may use it.
    pub(super) fn is_own_process(&self) -> bool {
        self.owner == process()
    }

    pub(super) fn is_active(&self) -> bool {
        self.is_active.load(Relaxed)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queues that there are.
    pub(super) fn queues(&self) -> impl Iterator<Item = &Arc<Queue>> {
        self.queues.iter().map_while(OnceLock::get)
    }

    /// Whether it talks over any device.
    pub(super) fn has_queues(&self) -> bool {
        self.queues[0].get().is_some()
    }

    /// How many queues there are; never fewer than before.
    pub(super) fn n_queues(&self) -> usize {
        self.queues().count()
    }

    /// The number of the queue that `peer` could answer to.
    pub(super) fn number_for(&self, peer: IpAddr) -> Option<QpNum> {
        self.origin(peer).map(|origin| origin.device.queue.ud.qp_num())
    }

    /// A route to queue `number` at canonical `peer`.
    ///
    /// # Errors
    /// `ENODEV` if no device leads there; what the device answers.
    pub(super) fn open(
        &self,
        peer: SocketAddr,
        number: QpNum,
    ) -> io::Result<(RemoteRoute, HeaderBytes<MAX_QUEUE_HEADER>)> {
        let none = || io::Error::from_raw_os_error(libc::ENODEV);
        let Origin { device: Device { queue, gid }, source } =
            self.origin(peer.ip()).ok_or_else(none)?;
        // Making an address handle would wait for the neighbour to answer. UDP asks it, too, and does not wait.
        if !rsock_cm::knows_neighbour(peer.ip()) {
            return Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH));
        }
        let path = queue.ctx.path(&gid, peer.ip().into())?;
        let to = queue.ud.destination(&path, number, KEY)?;
        let source = SocketAddr::new(source, self.port.local_addr()?.port());
        Ok((RemoteRoute { to, queue }, QueueHeader { source }.encode()))
    }

    /// From where `peer` is talked to; nothing where that is not over a device.
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
        // Of the other family, a loopback address, or one that means something on one link only.
        if source.is_ipv4() != peer.is_ipv4() || source.is_loopback() || is_link_local(peer) {
            return None;
        }
        let device = self.device(known, source, now)?;
        device.queue.is_usable().then_some(Origin { device, source })
    }

    /// The device that has our address `source`, with a queue there.
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

    /// The queue on a device's port, made if there is none; under the lock of what is known.
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

    /// Whether something may have come.
    pub(super) fn is_ready(&self) -> bool {
        self.is_own_process() && self.queues().any(|queue| queue.ud.is_ready())
    }

    /// Hands the next datagram to `take`; false if there is none.
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

fn is_link_local(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.segments()[0] & 0xffc0 == 0xfe80,
    }
}
