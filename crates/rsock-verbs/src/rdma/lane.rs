//! Completion queues that many queue pairs share: *shards*, and each queue pair's part of one, its
//! *lane*.
//!
//! Nobody owns a shard. Whoever polls a lane polls the shard: completions go into the stashes of their
//! lanes, and wake who waits there. Sleepers watch the shard's events, or rely on others that do
//! (`watch.rs`): whoever takes one arms the shard again for all that sleep, and then polls for all.
//!
//! Invariants. While somebody sleeps, the device has been asked for an event that nobody has taken yet,
//! or who took it is about to poll. A shard is never asked to hold more completions than it has room
//! for: lanes reserve theirs.

use super::own_cq::{BATCH, OwnCq};
use super::sends::Sends;
use super::waiters::{Event, Waiters};
use super::watch::{Nap, Watch};
use super::{RdmaBell, RdmaContext};
use crate::device::{Context, Parked};
use crate::error::Error;
use crate::types::QpNum;
use crate::wc::Completion;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A completion queue for many.
#[derive(Debug)]
struct Shard {
    queue: Arc<OwnCq>,
    depth: u32,
    /// Completions that lanes have reserved room for.
    n_reserved: Mutex<u32>,
    /// By queue pair.
    lanes: Mutex<BTreeMap<u32, Weak<Lane>>>,
    /// Held by who polls the device.
    pump: Mutex<()>,
    /// Threads that sleep, and armings of bells.
    n_sleepers: AtomicUsize,
    /// The device was asked for an event, or is about to be, and nobody has taken it.
    is_armed: AtomicBool,
    /// Threads that sleep, other than with a bell.
    watch: Watch,
    /// Bells that watch the events, and for how many lanes.
    bells: Mutex<Vec<(Arc<Event>, usize)>>,
}

/// One queue pair's part of a shard.
#[derive(Debug)]
pub(super) struct Lane {
    stash: Mutex<VecDeque<Completion>>,
    n_stashed: AtomicUsize,
    waiters: Waiters,
    n_reserved: u32,
    shard: Arc<Shard>,
}

/// The shards of a device.
#[derive(Debug, Default)]
pub(super) struct Shards(Mutex<Vec<Weak<Shard>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shards {
    /// A lane with room for `n` completions; `None` if the device has no queue so long.
    pub(super) fn lane(&self, ctx: &RdmaContext, n: u32) -> Result<Option<Arc<Lane>>, Error> {
        let mut shards = lock(&self.0);
        shards.retain(|shard| shard.strong_count() > 0);
        let mut open = shards.iter().filter_map(Weak::upgrade);
        if let Some(lane) = open.find_map(|shard| Lane::new(&shard, n)) {
            return Ok(Some(lane));
        }
        // The first one is short: most processes have few streams.
        let n_lanes = FEW << (2 * shards.len().min(4));
        let depth = n.saturating_mul(n_lanes).min(LONGEST).min(ctx.attr().max_cqe);
        if depth < n {
            return Ok(None);
        }
        let shard = Arc::new(Shard {
            queue: OwnCq::new(ctx, depth, None)?,
            depth,
            n_reserved: Mutex::new(0),
            lanes: Mutex::default(),
            pump: Mutex::new(()),
            n_sleepers: AtomicUsize::new(0),
            is_armed: AtomicBool::new(false),
            watch: Watch::default(),
            bells: Mutex::default(),
        });
        shards.push(Arc::downgrade(&shard));
        Ok(Lane::new(&shard, n))
    }
}

impl Shard {
    /// Takes what the device has, up to a bound, and hands it out.
    fn poll(&self) {
        // Bounded, or peers that never rest would keep this thread.
        self.poll_batches(MOST_BATCHES);
    }

    /// Hands out everything that has completed so far: a device's queue holds no more than this takes.
    fn poll_all(&self) {
        self.poll_batches(self.depth as usize / BATCH + 1);
    }

    fn poll_batches(&self, n: usize) {
        let _pump = lock(&self.pump);
        for _ in 0..n {
            if !self.hand_out() {
                break;
            }
        }
    }

    /// One batch; whether there may be more.
    fn hand_out(&self) -> bool {
        let mut to: Option<(QpNum, Option<Arc<Lane>>)> = None;
        let is_full = self.queue.take_batch(|qp_num, completion| {
            if to.as_ref().is_none_or(|(last, _)| *last != qp_num) {
                // A queue pair that is gone wants nothing any more.
                let next = lock(&self.lanes).get(&qp_num.0).and_then(Weak::upgrade);
                if let Some((_, Some(lane))) = to.replace((qp_num, next)) {
                    lane.waiters.wake_all();
                }
            }
            if let (Some((_, Some(lane))), Some(completion)) = (&to, completion) {
                lane.push(completion);
            }
        });
        if let Some((_, Some(lane))) = to {
            lane.waiters.wake_all();
        }
        is_full
    }

    /// For a sleeper that has counted itself: what has completed so far is handed out, and the next
    /// completion raises an event.
    fn arm(&self) -> Result<(), Error> {
        // SYNC(shard-arm): the sleeper counts itself, then looks here; who takes an event says so here,
        // then looks at the count. SeqCst, or both could miss.
        if !self.is_armed.load(Ordering::SeqCst) {
            self.arm_device()?;
        }
        // All of it: for what is left there would be no event.
        self.poll_all();
        Ok(())
    }

    fn arm_device(&self) -> Result<(), Error> {
        // Said first: said afterwards it could hide that the event was raised and taken meanwhile. Who
        // trusts it polls, and so do we after asking.
        self.is_armed.store(true, Ordering::SeqCst);
        self.queue.request_event().inspect_err(|_| self.is_armed.store(false, Ordering::SeqCst))
    }

    /// Takes the event, if there is one, and does what its taker has to.
    fn take_event(&self) {
        if !self.queue.take_event() {
            return;
        }
        // SYNC(shard-arm): pairs with `arm`.
        self.is_armed.store(false, Ordering::SeqCst);
        if self.n_sleepers.load(Ordering::SeqCst) != 0 {
            // If it fails the device is gone, of which sleepers hear elsewhere.
            let _ = self.arm_device();
        }
        self.poll_all();
    }

    /// `bell` rings for one lane more.
    fn add_bell(&self, bell: &RdmaBell) -> Result<(), Error> {
        let mut bells = lock(&self.bells);
        if let Some((_, n)) = bells.iter_mut().find(|(event, _)| Arc::ptr_eq(event, bell.event())) {
            *n += 1;
            return Ok(());
        }
        bell.watch(self.queue.fd())?;
        bells.push((Arc::clone(bell.event()), 1));
        Ok(())
    }

    fn remove_bell(&self, bell: &RdmaBell) {
        let mut bells = lock(&self.bells);
        let place = bells.iter().position(|(event, _)| Arc::ptr_eq(event, bell.event()));
        let Some(place) = place else { return };
        bells[place].1 -= 1;
        if bells[place].1 == 0 {
            bells.swap_remove(place);
            bell.forget(self.queue.fd());
        }
    }
}

impl Lane {
    fn new(shard: &Arc<Shard>, n: u32) -> Option<Arc<Self>> {
        let mut n_reserved = lock(&shard.n_reserved);
        if *n_reserved + n > shard.depth {
            return None;
        }
        *n_reserved += n;
        drop(n_reserved);
        Some(Arc::new(Self {
            stash: Mutex::default(),
            n_stashed: AtomicUsize::new(0),
            waiters: Waiters::default(),
            n_reserved: n,
            shard: Arc::clone(shard),
        }))
    }

    /// The device's queue.
    pub(super) fn queue(&self) -> &OwnCq {
        &self.shard.queue
    }

    /// Completions of a queue pair come here from now on.
    pub(super) fn attach(self: &Arc<Self>, qp_num: QpNum, sends: &Arc<Sends>) {
        // What another one with this number has left is not for the new one.
        self.shard.poll_all();
        self.shard.queue.attach(qp_num, sends);
        lock(&self.shard.lanes).insert(qp_num.0, Arc::downgrade(self));
    }

    /// The queue pair is gone.
    pub(super) fn detach(self: &Arc<Self>, qp_num: QpNum, sends: &Arc<Sends>) {
        let mut lanes = lock(&self.shard.lanes);
        // The number may be another one's by now.
        if lanes.get(&qp_num.0).is_some_and(|lane| lane.as_ptr() == Arc::as_ptr(self)) {
            lanes.remove(&qp_num.0);
        }
        drop(lanes);
        self.shard.queue.detach(qp_num, sends);
        // Its completions take no room any more.
        self.shard.poll_all();
    }

    fn push(&self, completion: Completion) {
        let mut stash = lock(&self.stash);
        stash.push_back(completion);
        self.n_stashed.store(stash.len(), Ordering::SeqCst);
    }

    fn take_stashed(&self, out: &mut [Completion]) -> usize {
        let mut stash = lock(&self.stash);
        let n = out.len().min(stash.len());
        for (to, from) in out.iter_mut().zip(stash.drain(..n)) {
            *to = from;
        }
        self.n_stashed.store(stash.len(), Ordering::SeqCst);
        n
    }

    fn is_stashed(&self) -> bool {
        self.n_stashed.load(Ordering::SeqCst) != 0
    }

    pub(super) fn poll(&self, out: &mut [Completion]) -> usize {
        // What is here already needs no look at the device: whoever polls on comes back for the rest.
        if !self.is_ready() {
            return 0;
        }
        self.take_stashed(out)
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_stashed() || {
            self.shard.poll();
            self.is_stashed()
        }
    }

    pub(super) fn arm(&self, bell: &RdmaBell) -> bool {
        if self.is_ready() {
            return false;
        }
        let mut is_watched = Ok(());
        if self.waiters.register(bell.event()) {
            self.shard.n_sleepers.fetch_add(1, Ordering::SeqCst);
            is_watched = self.shard.add_bell(bell);
        }
        // An old event would ring at once, or, where it has rung already, hide the next one.
        self.shard.take_event();
        if is_watched.is_ok() && self.shard.arm().is_ok() && !self.is_stashed() {
            return true;
        }
        self.disarm(bell);
        false
    }

    pub(super) fn disarm(&self, bell: &RdmaBell) {
        if self.waiters.unregister(bell.event()) {
            self.shard.remove_bell(bell);
            self.shard.n_sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    pub(super) fn wake_epoch(&self) -> u32 {
        self.waiters.epoch()
    }

    pub(super) fn wake_waiters(&self) {
        self.waiters.wake_all();
    }

    pub(super) fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked {
        if self.is_ready() {
            return Parked::Woken;
        }
        let Ok(event) = self.waiters.borrow() else {
            // No descriptor to sleep on: let the caller look again.
            return Parked::Woken;
        };
        let shard = &*self.shard;
        self.waiters.register(&event);
        shard.n_sleepers.fetch_add(1, Ordering::SeqCst);
        // Registered and counted first: who rings from here on rings us.
        let is_woken = || self.waiters.epoch() != epoch || self.is_stashed();
        let parked = if shard.arm().is_err() || is_woken() {
            Parked::Woken
        } else {
            let (events, event) = (shard.queue.fd(), &event);
            let nap = Nap { events, take: || shard.take_event(), event, is_woken };
            shard.watch.sleep(&nap, timeout)
        };
        self.waiters.unregister(&event);
        shard.n_sleepers.fetch_sub(1, Ordering::SeqCst);
        self.waiters.give_back(event);
        parked
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        *lock(&self.shard.n_reserved) -= self.n_reserved;
    }
}

/// Lanes of the first shard; each further one has room for four times as many, up to [`LONGEST`].
const FEW: u32 = 8;
/// Most completions of a shard.
const LONGEST: u32 = 32_000;
/// Batches handed out in one go.
const MOST_BATCHES: usize = 16;
