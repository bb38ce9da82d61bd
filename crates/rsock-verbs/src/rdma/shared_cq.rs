//! Completion queues that many queue pairs share: *shared queues*, and each queue pair's part of
//! one, its *share*.
//!
//! No thread owns a shared queue. To poll a share is to poll the shared queue: completions go into
//! the stashes of their shares, and wake the threads that wait there. Sleepers watch the shared
//! queue's events, or rely on others that do (`event_watchers.rs`): a thread that takes an event
//! arms the queue again for all sleepers, and then polls for all.
//!
//! Invariants. While a thread sleeps, the device has been asked for an event that no thread has
//! taken yet, or the thread that took it is about to poll. A shared queue never holds more
//! completions than it has room for: shares reserve theirs.

use super::device_cq::{BATCH, DeviceCq};
use super::event_watchers::{EventSleep, EventWatchers};
use super::outstanding_sends::OutstandingSends;
use super::waiters::{CqWaiters, Event};
use super::{RdmaBell, RdmaContext};
use crate::device::{Context, Parked};
use crate::error::Error;
use crate::types::QpNum;
use crate::wc::Completion;
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A completion queue for many queue pairs.
#[derive(Debug)]
struct SharedCq {
    queue: DeviceCq,
    depth: u32,
    /// Completions that shares have reserved room for.
    n_reserved: Mutex<u32>,
    /// By queue pair.
    shares: Mutex<BTreeMap<u32, Weak<CqShare>>>,
    /// Held by the thread that polls the device.
    pump: Mutex<()>,
    /// Threads that sleep, and armings of bells.
    n_sleepers: AtomicUsize,
    /// The device was asked for an event, or is about to be, and no thread has taken it.
    is_armed: AtomicBool,
    /// Threads that sleep, other than with a bell.
    watch: EventWatchers,
    /// Bells that watch the events, and for how many shares.
    bells: Mutex<Vec<(Arc<Event>, usize)>>,
}

/// One queue pair's part of a shared queue.
#[derive(Debug)]
pub(super) struct CqShare {
    stash: Mutex<VecDeque<Completion>>,
    n_stashed: AtomicUsize,
    waiters: CqWaiters,
    n_reserved: u32,
    /// The queue pair that was attached last, if no other share has its number by now; or
    /// [`NO_QUEUE_PAIR`].
    qp_num: AtomicU32,
    shared: Arc<SharedCq>,
}

/// The shared queues of a device.
#[derive(Debug, Default)]
pub(super) struct SharedCqs(Mutex<Vec<Weak<SharedCq>>>);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl SharedCqs {
    /// A share with room for `n` completions; `None` if the device has no queue so long.
    pub(super) fn share(&self, ctx: &RdmaContext, n: u32) -> Result<Option<Arc<CqShare>>, Error> {
        let mut shared_cqs = lock(&self.0);
        shared_cqs.retain(|shared| shared.strong_count() > 0);
        let mut open = shared_cqs.iter().filter_map(Weak::upgrade);
        if let Some(share) = open.find_map(|shared| CqShare::new(&shared, n)) {
            return Ok(Some(share));
        }
        // The first one is short: most processes have few streams.
        let n_shares = FEW << (2 * shared_cqs.len().min(4));
        let depth = n.saturating_mul(n_shares).min(LONGEST).min(ctx.attr().max_cqe);
        if depth < n {
            return Ok(None);
        }
        let shared = Arc::new(SharedCq {
            queue: DeviceCq::new(ctx, depth)?,
            depth,
            n_reserved: Mutex::new(0),
            shares: Mutex::default(),
            pump: Mutex::new(()),
            n_sleepers: AtomicUsize::new(0),
            is_armed: AtomicBool::new(false),
            watch: EventWatchers::default(),
            bells: Mutex::default(),
        });
        shared_cqs.push(Arc::downgrade(&shared));
        Ok(CqShare::new(&shared, n))
    }
}

impl SharedCq {
    /// Takes what the device has, up to a bound, and distributes it.
    #[inline]
    fn poll(&self, own: &CqShare) {
        // Bounded, or busy peers would occupy this thread without end.
        self.poll_batches(MOST_BATCHES, Some(own));
    }

    /// Distributes everything that has completed so far: a device's queue holds no more than this
    /// takes.
    fn poll_all(&self) {
        self.poll_batches(self.depth as usize / BATCH + 1, None);
    }

    fn poll_batches(&self, n: usize, own: Option<&CqShare>) {
        let _pump = lock(&self.pump);
        for _ in 0..n {
            if !self.hand_out(own) {
                break;
            }
        }
    }

    /// One batch; whether there may be more. PERF: most of it is for the caller's `own` share,
    /// which needs no search: that saves some 100 instructions of a round trip (callgrind).
    fn hand_out(&self, own: Option<&CqShare>) -> bool {
        let own = own.map(|own| (QpNum(own.qp_num.load(Ordering::Relaxed)), own));
        let mut is_for_own = false;
        let mut to: Option<(QpNum, Option<Arc<CqShare>>)> = None;
        let is_full = self.queue.take_batch(|qp_num, completion| {
            if let Some((own_num, own)) = own
                && own_num == qp_num
            {
                is_for_own = true;
                if let Some(completion) = completion {
                    own.push(completion);
                }
                return;
            }
            if to.as_ref().is_none_or(|(last, _)| *last != qp_num) {
                // A completion of a queue pair that is gone is dropped.
                let next = lock(&self.shares).get(&qp_num.0).and_then(Weak::upgrade);
                if let Some((_, Some(share))) = to.replace((qp_num, next)) {
                    share.waiters.wake_all();
                }
            }
            if let (Some((_, Some(share))), Some(completion)) = (&to, completion) {
                share.push(completion);
            }
        });
        if let Some((_, Some(share))) = to {
            share.waiters.wake_all();
        }
        if let Some((_, own)) = own.filter(|_| is_for_own) {
            own.waiters.wake_all();
        }
        is_full
    }

    /// For a sleeper that has counted itself: what has completed so far is distributed, and the
    /// next completion raises an event.
    fn arm(&self) -> Result<(), Error> {
        // SYNC(shared-cq-arm): the sleeper counts itself, then reads this; a thread that takes an
        // event clears this, then reads the count. SeqCst, or both could miss.
        if !self.is_armed.load(Ordering::SeqCst) {
            self.arm_device()?;
        }
        // All of it: for what is left there would be no event.
        self.poll_all();
        Ok(())
    }

    fn arm_device(&self) -> Result<(), Error> {
        // Set first: set afterwards it could hide that the event was raised and taken meanwhile. A
        // thread that relies on it polls, and so does this one after asking.
        self.is_armed.store(true, Ordering::SeqCst);
        self.queue.request_event().inspect_err(|_| self.is_armed.store(false, Ordering::SeqCst))
    }

    /// Takes the event, if there is one, and does what its taker has to.
    fn take_event(&self) {
        if !self.queue.take_event() {
            return;
        }
        // SYNC(shared-cq-arm): pairs with `arm`.
        self.is_armed.store(false, Ordering::SeqCst);
        if self.n_sleepers.load(Ordering::SeqCst) != 0 {
            // If it fails the device is gone.
            let _ = self.arm_device();
        }
        self.poll_all();
    }

    /// Counts one more share that `bell` rings for.
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

impl CqShare {
    fn new(shared: &Arc<SharedCq>, n: u32) -> Option<Arc<Self>> {
        let mut n_reserved = lock(&shared.n_reserved);
        if *n_reserved + n > shared.depth {
            return None;
        }
        *n_reserved += n;
        drop(n_reserved);
        Some(Arc::new(Self {
            stash: Mutex::default(),
            n_stashed: AtomicUsize::new(0),
            waiters: CqWaiters::default(),
            n_reserved: n,
            qp_num: AtomicU32::new(NO_QUEUE_PAIR),
            shared: Arc::clone(shared),
        }))
    }

    /// The device's queue.
    pub(super) fn queue(&self) -> &DeviceCq {
        &self.shared.queue
    }

    /// Completions of a queue pair come here from now on.
    pub(super) fn attach(self: &Arc<Self>, qp_num: QpNum, sends: &Arc<OutstandingSends>) {
        let earlier = lock(&self.shared.shares).get(&qp_num.0).and_then(Weak::upgrade);
        if let Some(earlier) = earlier {
            earlier.forget(qp_num);
        }
        // Completions of an earlier queue pair with this number are not for the new one. Threads
        // that poll after this one know that the earlier share has lost the number.
        self.shared.poll_all();
        self.shared.queue.attach(qp_num, sends);
        lock(&self.shared.shares).insert(qp_num.0, Arc::downgrade(self));
        self.qp_num.store(qp_num.0, Ordering::Relaxed);
    }

    fn forget(&self, qp_num: QpNum) {
        let (old, none) = (qp_num.0, NO_QUEUE_PAIR);
        let _ = self.qp_num.compare_exchange(old, none, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Removes a queue pair that is gone.
    pub(super) fn detach(self: &Arc<Self>, qp_num: QpNum, sends: &Arc<OutstandingSends>) {
        self.forget(qp_num);
        let mut shares = lock(&self.shared.shares);
        // Another queue pair may have the number by now.
        if shares.get(&qp_num.0).is_some_and(|share| share.as_ptr() == Arc::as_ptr(self)) {
            shares.remove(&qp_num.0);
        }
        drop(shares);
        self.shared.queue.detach(qp_num, sends);
        // Its completions take no room any more.
        self.shared.poll_all();
    }

    fn push(&self, completion: Completion) {
        let mut stash = lock(&self.stash);
        stash.push_back(completion);
        self.n_stashed.store(stash.len(), Ordering::SeqCst);
    }

    #[inline]
    fn take_stashed(&self, out: &mut [Completion]) -> usize {
        let mut stash = lock(&self.stash);
        let n = out.len().min(stash.len());
        for (to, from) in out.iter_mut().zip(stash.drain(..n)) {
            *to = from;
        }
        self.n_stashed.store(stash.len(), Ordering::SeqCst);
        n
    }

    #[inline]
    pub(super) fn is_stashed(&self) -> bool {
        self.n_stashed.load(Ordering::SeqCst) != 0
    }

    #[inline]
    pub(super) fn poll(&self, out: &mut [Completion]) -> usize {
        // What is in the stash needs no poll of the device: a caller that wants more polls again.
        if !self.is_ready() {
            return 0;
        }
        self.take_stashed(out)
    }

    #[inline]
    pub(super) fn is_ready(&self) -> bool {
        self.is_stashed() || {
            self.shared.poll(self);
            self.is_stashed()
        }
    }

    pub(super) fn arm(&self, bell: &RdmaBell) -> bool {
        if self.is_ready() {
            return false;
        }
        let mut is_watched = Ok(());
        if self.waiters.register(bell.event()) {
            self.shared.n_sleepers.fetch_add(1, Ordering::SeqCst);
            is_watched = self.shared.add_bell(bell);
        }
        // An old event would ring at once, or, where it has rung already, hide the next one.
        self.shared.take_event();
        if is_watched.is_ok() && self.shared.arm().is_ok() && !self.is_stashed() {
            return true;
        }
        self.disarm(bell);
        false
    }

    pub(super) fn disarm(&self, bell: &RdmaBell) {
        if self.waiters.unregister(bell.event()) {
            self.shared.remove_bell(bell);
            self.shared.n_sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[inline]
    pub(super) fn wake_epoch(&self) -> u32 {
        self.waiters.epoch()
    }

    #[inline]
    pub(super) fn wake_waiters(&self) {
        self.waiters.wake_all();
    }

    pub(super) fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked {
        if self.is_ready() {
            return Parked::Woken;
        }
        let Ok(event) = self.waiters.borrow() else {
            // No descriptor to sleep on: let the caller check again.
            return Parked::Woken;
        };
        let shared = &*self.shared;
        self.waiters.register(&event);
        shared.n_sleepers.fetch_add(1, Ordering::SeqCst);
        // Registered and counted first: every ring from here on reaches this waiter.
        let is_woken = || self.waiters.epoch() != epoch || self.is_stashed();
        let parked = if shared.arm().is_err() || is_woken() {
            Parked::Woken
        } else {
            let (events, event) = (shared.queue.fd(), &event);
            let sleep = EventSleep { events, take: || shared.take_event(), event, is_woken };
            shared.watch.sleep(&sleep, timeout)
        };
        self.waiters.unregister(&event);
        shared.n_sleepers.fetch_sub(1, Ordering::SeqCst);
        self.waiters.give_back(event);
        parked
    }
}

impl Drop for CqShare {
    fn drop(&mut self) {
        *lock(&self.shared.n_reserved) -= self.n_reserved;
    }
}

/// Of a share without a queue pair: numbers have 24 bits.
const NO_QUEUE_PAIR: u32 = u32::MAX;
/// Shares of the first shared queue; each further one has room for four times as many, up to
/// [`LONGEST`].
const FEW: u32 = 8;
/// Most completions of a shared queue.
const LONGEST: u32 = 32_000;
/// Most batches that one poll distributes.
const MOST_BATCHES: usize = 16;
