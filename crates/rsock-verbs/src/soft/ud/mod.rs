//! Datagram queues: unreliable-datagram queue pairs in shared memory.
//!
//! A queue has one lane for each process that may send to it, in the segment that this process
//! alone writes ([`receiver`]); a process has one sender for each queue that it sends to, shared by
//! all its own queues ([`sender`]). A datagram for a full lane is lost, and its sender counts it.
//!
//! Invariants: an entry is whole, payload included, before it is published. The lane of a closed
//! queue is freed only when its sender has detached from it, or the sending process is dead.
//!
//! Locks: a queue's `rx` and its `receivers`, of which a thread that holds one only tries the
//! other; a sender's `tx`. No thread waits while it holds one of them.

mod receiver;
mod sender;

use super::Link;
use super::SoftContext;
use super::creation_stamp::CreationStamp;
use super::layout::{self, MAX_STAGE, STAGE};
use super::wait::Waiters;
use super::{Soft, SoftBell};
use crate::datagram::{
    Arrived, DatagramBackend, DatagramCounters, DatagramError, DatagramQueue, Posted,
};
use crate::device::Parked;
use crate::error::Error;
use crate::family::{FamilyBox, FamilySafe, Lock};
use crate::sync::slot::INLINE;
use crate::types::{QKey, QpNum};
use receiver::{Taken, UdReceiver};
use sender::UdSender;
pub(super) use sender::UdSenders;
use std::io::IoSlice;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};
use std::time::Duration;

/// Longest datagram, in bytes: the smallest lane has room for eight of them.
const MAX_LEN: usize = 8192;
/// Entries of a lane.
const SLOTS: u32 = 1024;

/// A datagram queue.
#[derive(Debug)]
pub struct SoftUd {
    number: QpNum,
    key: QKey,
    rx: FamilyBox<Lock<UdRx>>,
    counts: FamilyBox<Counts>,
    /// The lanes of all admitted processes. The data path never waits for this lock: a child may
    /// have been forked while another thread held it.
    receivers: RwLock<Vec<Arc<UdReceiver>>>,
    /// Changed under the lock of `receivers`.
    is_closed: AtomicBool,
    /// Bytes of the stage of lanes created from now on.
    stage: AtomicU32,
    waiters: Waiters,
    created: CreationStamp,
    ctx: SoftContext,
}

/// Where datagrams go.
#[derive(Clone, Debug)]
pub struct SoftDestination {
    sender: Arc<UdSender>,
    is_key_right: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct UdRx {
    /// Index of the receiver that is checked first, so that all get their turn.
    turn: usize,
}

#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Counts {
    n_sent: AtomicU64,
    n_full: AtomicU64,
    n_wrong_key: AtomicU64,
    received: Received,
}

/// On a cache line of its own: another thread than the sending one counts here.
#[repr(C, align(128))]
#[derive(Debug, Default)]
struct Received {
    n_received: AtomicU64,
    n_malformed: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl FamilySafe for Counts {}

impl DatagramBackend for Soft {
    type Datagrams = SoftUd;
    type Destination = SoftDestination;
    const KNOWS_LOSS: bool = true;

    fn create_datagrams(ctx: &SoftContext, key: QKey) -> Result<SoftUd, Error> {
        let room = || Error::Exhausted("family memory");
        let (rx, counts) = (Lock::new(UdRx::default()), Counts::default());
        let (rx, counts) =
            (FamilyBox::new(rx).ok_or_else(room)?, FamilyBox::new(counts).ok_or_else(room)?);
        let waiters = Waiters::new()?;
        let number = ctx.node().numbers().take().ok_or(Error::Exhausted("queue pairs"))?;
        Ok(SoftUd {
            number,
            key,
            rx,
            counts,
            receivers: RwLock::default(),
            is_closed: AtomicBool::new(false),
            stage: AtomicU32::new(STAGE),
            waiters,
            created: CreationStamp::now(),
            ctx: ctx.clone(),
        })
    }
}

impl SoftUd {
    /// Posts a datagram by `post`, which takes the number of this queue and the length of the
    /// pieces, and counts it.
    #[inline(always)]
    fn count_posted(
        &self,
        to: &SoftDestination,
        payload: &[IoSlice<'_>],
        post: impl FnOnce((QpNum, u64), usize) -> Result<Posted, DatagramError>,
    ) -> Result<Posted, DatagramError> {
        let len = payload.iter().fold(0usize, |sum, piece| sum.saturating_add(piece.len()));
        if len > MAX_LEN {
            return Err(DatagramError::TooLong);
        }
        let lost = if to.is_key_right {
            let n_received = self.counts.received.n_received.load(Ordering::Relaxed);
            match post((self.number, n_received), len)? {
                Posted::Out => None,
                Posted::Lost => Some(&self.counts.n_full),
            }
        } else {
            Some(&self.counts.n_wrong_key)
        };
        self.counts.n_sent.fetch_add(1, Ordering::Relaxed);
        let Some(count) = lost else { return Ok(Posted::Out) };
        count.fetch_add(1, Ordering::Relaxed);
        Ok(Posted::Lost)
    }

    /// Runs `f` on the receivers, unless another thread is changing the list.
    #[inline]
    fn with_receivers<R>(&self, f: impl FnOnce(&[Arc<UdReceiver>]) -> R) -> Option<R> {
        match self.receivers.try_read() {
            Ok(receivers) => Some(f(&receivers)),
            Err(TryLockError::Poisoned(receivers)) => Some(f(&receivers.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Passes the oldest datagram to `take`, which returns whether it is taken or stays in place;
    /// false if there is none. `take` must not use the queue.
    #[inline]
    pub fn try_take(&self, mut take: impl FnMut(&dyn Arrived) -> bool) -> bool {
        self.with_ready(|receivers, turn| self.take_from(receivers, turn, &mut take))
            .unwrap_or(false)
    }

    /// Runs `f` on the receivers, if one of them has a datagram, under the lock that takers hold.
    #[inline(always)]
    fn with_ready<R>(&self, mut f: impl FnMut(&[Arc<UdReceiver>], &mut usize) -> R) -> Option<R> {
        let tried = self.with_receivers(|receivers| {
            // Without this check, threads that poll an empty queue would slow each other down.
            if !receivers.iter().any(|receiver| receiver.is_ready()) {
                return Some(None);
            }
            let mut rx = self.rx.try_lock()?;
            Some(Some(f(receivers, &mut rx.turn)))
        });
        match tried? {
            Some(done) => done,
            None => self.with_receivers_in_turn(&mut f),
        }
    }

    /// Waits for another taker, which may be a thread of a stopped child, and then runs `f`. The
    /// list can be changed meanwhile.
    #[cold]
    #[inline(never)]
    fn with_receivers_in_turn<R>(
        &self,
        f: &mut dyn FnMut(&[Arc<UdReceiver>], &mut usize) -> R,
    ) -> Option<R> {
        let mut rx = self.rx.lock();
        self.with_receivers(|receivers| f(receivers, &mut rx.turn))
    }

    /// Sets roughly how many bytes of datagrams the queue holds for each process that is admitted
    /// from now on: at least 64 KiB, at most 4 MiB, and 1024 datagrams. Pages are allocated as they
    /// are used.
    pub fn set_room(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(MAX_STAGE).clamp(STAGE, MAX_STAGE);
        self.stage.store(bytes.next_power_of_two(), Ordering::Relaxed);
    }

    /// Closes the queue: senders find it gone. Datagrams that are in it, or are being sent at this
    /// moment, can still be taken.
    pub fn close(&self) {
        let receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        self.is_closed.store(true, Ordering::Relaxed);
        receivers.iter().for_each(|receiver| receiver.close());
        drop(receivers);
        self.wake_if_ready();
    }

    /// A number that changes when bells that are armed for the queue are rung, or may be: while it
    /// stays the same, a bell that was armed before is still armed.
    #[must_use]
    pub fn n_rung(&self) -> u32 {
        self.waiters.n_rung()
    }

    /// Wakes waiters if a datagram is there. A waiter that armed while the list of receivers was
    /// changing could not check them.
    fn wake_if_ready(&self) {
        if self.is_ready() {
            self.waiters.wake_all();
        }
    }

    /// Takes a datagram from the first of `receivers` that has one, beginning at index `turn`.
    #[inline(always)]
    fn take_from(
        &self,
        receivers: &[Arc<UdReceiver>],
        turn: &mut usize,
        take: &mut impl FnMut(&dyn Arrived) -> bool,
    ) -> bool {
        let (later, first) = receivers.split_at((*turn).min(receivers.len()));
        let numbered = first.iter().zip(later.len()..).chain(later.iter().zip(0..));
        for (receiver, at) in numbered {
            // Bounded: a peer that publishes malformed entries must not keep this thread here.
            for _ in 0..SLOTS {
                match receiver.take(take) {
                    Taken::Datagram => {
                        *turn = at + 1;
                        add_alone(&self.counts.received.n_received);
                        return true;
                    }
                    Taken::Left => {
                        // The next call finds the same datagram.
                        *turn = at;
                        return true;
                    }
                    Taken::Malformed => {
                        add_alone(&self.counts.received.n_malformed);
                    }
                    Taken::Nothing => break,
                }
            }
        }
        false
    }
}

/// Adds one, in the only thread that changes the count: it holds the lock that goes with it. PERF:
/// no locked instruction.
#[inline]
fn add_alone(count: &AtomicU64) {
    count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
}

impl DatagramQueue<Soft> for SoftUd {
    fn qp_num(&self) -> QpNum {
        self.number
    }

    fn max_len(&self) -> usize {
        MAX_LEN
    }

    fn room(&self, len: usize) -> usize {
        let slots = SLOTS as usize;
        if len <= INLINE {
            slots
        } else {
            let next = u64::from(self.stage.load(Ordering::Relaxed));
            let least = |receivers: &[Arc<UdReceiver>]| {
                receivers.iter().map(|receiver| receiver.stage_len()).min()
            };
            let stage = self.with_receivers(least).flatten().map_or(next, |least| least.min(next));
            let n = stage / layout::staged_len(len as u64);
            slots.min(usize::try_from(n).unwrap_or(usize::MAX))
        }
    }

    fn admit(&self, path: &Arc<Link>) -> Result<(), Error> {
        if !path.is_alive() {
            return Err(Error::PeerGone);
        }
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error::Invalid("the queue is closed"));
        }
        if receivers.iter().any(|receiver| receiver.is_from(path)) {
            return Ok(());
        }
        let stage = self.stage.load(Ordering::Relaxed);
        receivers.push(Arc::new(UdReceiver::open(
            path,
            &self.waiters,
            self.number,
            self.key,
            stage,
        )?));
        drop(receivers);
        self.wake_if_ready();
        Ok(())
    }

    fn destination(
        &self,
        path: &Arc<Link>,
        dest: QpNum,
        key: QKey,
    ) -> Result<SoftDestination, Error> {
        let sender = UdSender::to(path, self.number, dest)?;
        let is_key_right = sender.key() == key;
        Ok(SoftDestination { sender, is_key_right })
    }

    #[inline]
    fn post(&self, to: &SoftDestination, payload: &[IoSlice<'_>]) -> Result<Posted, DatagramError> {
        self.count_posted(to, payload, |src, len| to.sender.post(src, payload, len))
    }

    #[inline]
    fn ring(&self, to: &SoftDestination) {
        to.sender.ring();
    }

    #[inline(always)]
    fn send(&self, to: &SoftDestination, payload: &[IoSlice<'_>]) -> Result<Posted, DatagramError> {
        self.count_posted(to, payload, |src, len| to.sender.send(src, payload, len))
    }

    #[inline]
    fn try_recv(&self, take: &mut dyn FnMut(&dyn Arrived)) -> bool {
        self.try_take(|arrived| {
            take(arrived);
            true
        })
    }

    #[inline]
    fn try_recv_up_to(&self, most: usize, take: &mut dyn FnMut(&dyn Arrived)) -> usize {
        let mut take = |arrived: &dyn Arrived| {
            take(arrived);
            true
        };
        let take_all = |receivers: &[Arc<UdReceiver>], turn: &mut usize| {
            (0..most).take_while(|_| self.take_from(receivers, turn, &mut take)).count()
        };
        self.with_ready(take_all).unwrap_or(0)
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.with_receivers(|receivers| receivers.iter().any(|receiver| receiver.is_ready()))
            .unwrap_or(false)
    }

    fn arm(&self, bell: &SoftBell) -> bool {
        self.waiters.arm_bell_unless(bell.name(), || self.is_ready())
    }

    fn disarm(&self, bell: &SoftBell) {
        self.waiters.disarm_bell(bell.id());
    }

    fn wake_epoch(&self) -> u32 {
        self.waiters.epoch()
    }

    fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked {
        self.waiters.park(epoch, timeout, || self.is_ready())
    }

    fn wake_waiters(&self) {
        self.waiters.wake_all();
    }

    fn sweep(&self) {
        if !self.created.is_this_process() {
            return;
        }
        self.ctx.node().ud_senders.sweep();
        let is_over =
            |receiver: &mut Arc<UdReceiver>| !receiver.is_ready() && !receiver.link().probe();
        let mut receivers = self.receivers.write().unwrap_or_else(PoisonError::into_inner);
        let over: Vec<_> = receivers.extract_if(.., is_over).collect();
        drop(receivers);
        drop(over);
        self.wake_if_ready();
        self.waiters.prune();
    }

    fn counters(&self) -> DatagramCounters {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { n_sent, n_full, n_wrong_key, received } = &*self.counts;
        DatagramCounters {
            n_sent: read(n_sent),
            n_full: read(n_full),
            n_wrong_key: read(n_wrong_key),
            n_received: read(&received.n_received),
            n_malformed: read(&received.n_malformed),
        }
    }
}

impl Drop for SoftUd {
    fn drop(&mut self) {
        // A receiver closes its lane when it drops. The lock is not taken, because no other thread
        // can hold it; in a forked child it may be marked as held by a thread that does not exist.
        let receivers = self.receivers.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(std::mem::take(receivers));
        // A number that existed during a fork may still be in use by another process.
        if self.created.is_unshared() {
            self.ctx.node().numbers().give_back(self.number);
        }
        // In a forked child the lock may be held by a thread that does not exist.
        if self.created.is_this_process() {
            self.ctx.node().ud_senders.sweep();
        }
    }
}

#[cfg(test)]
mod tests;
