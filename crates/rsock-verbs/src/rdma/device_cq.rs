//! Completion queues that wrap one queue of the device each.
//!
//! Each has a completion channel of its own, whose descriptor becomes readable at the next
//! completion after the queue was armed. Bells and parked threads watch that descriptor, so an
//! event wakes all of them; a thread that takes the event wakes the others first.
//!
//! Verbs cannot say whether a queue is empty without polling it, so a check fills a stash, which
//! the next poll empties first.

use super::convert::{int, object, zero};
use super::outstanding_sends::{OutstandingSends, RECEIVE, SIGNALED};
use super::usage::{Counted, Kind as Counts};
use super::waiters::CqWaiters;
use super::{RdmaBell, RdmaContext};
use crate::device::Parked;
use crate::error::Error;
use crate::high_fd::verb;
use crate::mutex::try_lock;
use crate::own_fd;
use crate::types::{QpNum, WrId};
use crate::wc::{Completion, WcOp, WcStatus};
use rsock_rdma_sys::inline;
use rsock_rdma_sys::verbs::{ibv_comp_channel, ibv_cq, ibv_wc, ibv_wc_opcode};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use std::collections::{BTreeMap, VecDeque};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// A completion queue of the device's.
///
/// # Invariants
/// `raw` and `events` came from the calls that create them and are destroyed exactly once, in
/// `drop`, in this order; queue pairs that complete here hold this value. Every event taken from
/// `events` is acknowledged at once.
#[derive(Debug)]
pub(super) struct DeviceCq {
    raw: NonNull<ibv_cq>,
    events: NonNull<ibv_comp_channel>,
    /// Completions that a check found. Its lock is held while polling, so that none overtakes
    /// another.
    stash: Mutex<VecDeque<Completion>>,
    n_stashed: AtomicUsize,
    /// Queue pairs that complete their sends here.
    senders: Mutex<BTreeMap<u32, Weak<OutstandingSends>>>,
    waiters: CqWaiters,
    ctx: RdmaContext,
    _counted: Counted,
}

// SAFETY: libibverbs's queues and channels may be used from any thread.
unsafe impl Send for DeviceCq {}
// SAFETY: as above, by several at once.
unsafe impl Sync for DeviceCq {}

impl DeviceCq {
    pub(super) fn new(ctx: &RdmaContext, depth: u32) -> Result<Self, Error> {
        let verbs = ctx.verbs();
        // SAFETY: the context is open.
        let events = unsafe { verbs.ibv_create_comp_channel(ctx.raw()) };
        let events = object("ibv_create_comp_channel", events)?;
        // SAFETY: the channel is live, and no other thread knows of it yet.
        let fd = unsafe { &raw mut (*events.as_ptr()).fd };
        // SAFETY: libibverbs looks the descriptor up in the channel at each call.
        unsafe { own_fd::raise_at(fd) };
        // SAFETY: the context is open and the channel is live.
        let raw = unsafe {
            verbs.ibv_create_cq(ctx.raw(), int(depth), ptr::null_mut(), events.as_ptr(), 0)
        };
        let raw = match object("ibv_create_cq", raw) {
            Ok(raw) => raw,
            Err(e) => {
                // SAFETY: made above, and no queue notifies it.
                let _ = unsafe { verbs.ibv_destroy_comp_channel(events.as_ptr()) };
                return Err(e);
            }
        };
        // INVARIANT: made here, destroyed by `drop`.
        let this = Self {
            raw,
            events,
            stash: Mutex::new(VecDeque::with_capacity(BATCH)),
            n_stashed: AtomicUsize::new(0),
            senders: Mutex::default(),
            waiters: CqWaiters::default(),
            ctx: ctx.clone(),
            _counted: Counted::one(Counts::CompletionQueue),
        };
        let flags = rustix::fs::fcntl_getfl(this.fd()).map_err(verb("fcntl"))?;
        rustix::fs::fcntl_setfl(this.fd(), flags | OFlags::NONBLOCK).map_err(verb("fcntl"))?;
        Ok(this)
    }

    pub(super) fn raw(&self) -> *mut ibv_cq {
        self.raw.as_ptr()
    }

    fn senders(&self) -> MutexGuard<'_, BTreeMap<u32, Weak<OutstandingSends>>> {
        self.senders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A queue pair completes its sends here.
    pub(super) fn attach(&self, qp_num: QpNum, sends: &Arc<OutstandingSends>) {
        self.senders().insert(qp_num.0, Arc::downgrade(sends));
    }

    pub(super) fn detach(&self, qp_num: QpNum, sends: &Arc<OutstandingSends>) {
        let mut senders = self.senders();
        // Another queue pair may have the number by now.
        if senders.get(&qp_num.0).is_some_and(|other| other.as_ptr() == Arc::as_ptr(sends)) {
            senders.remove(&qp_num.0);
        }
    }

    /// Where events arrive.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is live; its descriptor does not change.
        let fd = unsafe { (*self.events.as_ptr()).fd };
        // SAFETY: the descriptor lives as long as the channel, so as long as `self`.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }

    fn stash(&self) -> MutexGuard<'_, VecDeque<Completion>> {
        self.stash.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes completions from the device until `sink` has `room` more or the queue is empty.
    /// Returns whether a completion was not passed on: it made room in a send queue, but the caller
    /// did not ask for it.
    fn take(&self, room: usize, mut sink: impl FnMut(Completion)) -> bool {
        let mut left = room;
        let mut swallowed = false;
        while left > 0 {
            let asked = left.min(BATCH);
            let is_all = self.take_some(asked, |_, completion| match completion {
                Some(completion) => {
                    sink(completion);
                    left -= 1;
                }
                None => swallowed = true,
            });
            if !is_all {
                break;
            }
        }
        swallowed
    }

    /// Takes up to [`BATCH`] completions from the device, each with its queue pair's number, and
    /// `None` for one that only makes room. Whether there may be more.
    pub(super) fn take_batch(&self, sink: impl FnMut(QpNum, Option<Completion>)) -> bool {
        self.take_some(BATCH, sink)
    }

    /// As [`Self::take_batch`], up to `n`; whether there were so many.
    fn take_some(&self, n: usize, mut sink: impl FnMut(QpNum, Option<Completion>)) -> bool {
        let mut wcs = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        let asked = n.min(BATCH);
        let n = i32::try_from(asked).unwrap_or(0);
        // SAFETY: the queue is live and there is room for `n` entries.
        let n = unsafe { inline::poll_cq(self.raw(), n, wcs.as_mut_ptr().cast()) };
        let n = usize::try_from(n).unwrap_or(0).min(asked);
        for wc in &wcs[..n] {
            // SAFETY: the driver has filled the first `n`.
            let wc = unsafe { wc.assume_init_ref() };
            sink(QpNum(wc.qp_num), self.completion(wc));
        }
        n == asked
    }

    /// A completion as this crate's type; `None` for one that only makes room.
    #[inline]
    fn completion(&self, wc: &ibv_wc) -> Option<Completion> {
        let status = WcStatus(wc.status.0);
        let mut id = WrId(wc.wr_id & !(SIGNALED | RECEIVE));
        if wc.wr_id & SIGNALED != 0 {
            let sends = self.senders().get(&wc.qp_num).and_then(Weak::upgrade);
            // A completion of a queue pair that is gone is dropped.
            let (name, is_wanted) = sends?.complete(id.0)?;
            if !is_wanted && status == WcStatus::SUCCESS {
                return None;
            }
            id = name;
        }
        let (op, len, imm) = match wc.opcode {
            ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM if wc.wr_id & RECEIVE != 0 => {
                // SAFETY: both forms of the union are plain numbers.
                let imm = unsafe { wc.__bindgen_anon_1.imm_data };
                (WcOp::RecvWriteImm, wc.byte_len, u32::from_be(imm))
            }
            _ if wc.wr_id & RECEIVE != 0 => (WcOp::Recv, wc.byte_len, wc.src_qp),
            ibv_wc_opcode::IBV_WC_RDMA_WRITE => (WcOp::Write, 0, 0),
            _ => (WcOp::Send, 0, 0),
        };
        Some(Completion { id, status, op, len, imm, qp_num: QpNum(wc.qp_num) })
    }

    /// Checks for completions, with the stash locked.
    fn fill_stash(&self, stash: &mut VecDeque<Completion>) -> bool {
        if stash.is_empty() {
            let swallowed = self.take(BATCH, |wc| stash.push_back(wc));
            self.n_stashed.store(stash.len(), Ordering::Relaxed);
            if swallowed {
                self.waiters.wake_all();
            }
        }
        !stash.is_empty()
    }

    /// Takes what the device has, even if there is something in the stash: for callers that need to
    /// know what has been sent. Another thread that polls does the same.
    pub(super) fn gather(&self) {
        let Some(mut stash) = try_lock(&self.stash) else { return };
        let swallowed = self.take(MOST_GATHERED, |wc| stash.push_back(wc));
        self.n_stashed.store(stash.len(), Ordering::Relaxed);
        drop(stash);
        if swallowed {
            self.waiters.wake_all();
        }
    }

    /// As `is_ready`, never wrong: waits for a thread that polls.
    fn is_surely_ready(&self) -> bool {
        self.fill_stash(&mut self.stash())
    }

    /// Takes one event, if there is one.
    pub(super) fn take_event(&self) -> bool {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let (verbs, events) = (self.ctx.verbs(), self.events.as_ptr());
        // SAFETY: the channel is live and both places are writable.
        if unsafe { verbs.ibv_get_cq_event(events, &raw mut cq, &raw mut context) } != 0 {
            return false;
        }
        // SAFETY: the event is of this queue, the channel's only one, and is acknowledged once.
        unsafe { verbs.ibv_ack_cq_events(cq, 1) };
        true
    }

    /// Takes pending events, and wakes all waiters.
    fn take_events(&self) {
        let mut any = false;
        while self.take_event() {
            any = true;
        }
        if any {
            self.waiters.wake_all();
        }
    }

    /// The device is to raise an event at the next completion.
    pub(super) fn request_event(&self) -> Result<(), Error> {
        // SAFETY: the queue is live.
        let rc = unsafe { inline::req_notify_cq(self.raw(), false) };
        zero("ibv_req_notify_cq", rc)
    }
}

impl Drop for DeviceCq {
    fn drop(&mut self) {
        let verbs = self.ctx.verbs();
        // SAFETY: made by `ibv_create_cq`; no queue pair completes here any longer.
        let _ = unsafe { verbs.ibv_destroy_cq(self.raw.as_ptr()) };
        own_fd::forget(self.fd().as_raw_fd());
        // SAFETY: made by `ibv_create_comp_channel`; its only queue is gone.
        let _ = unsafe { verbs.ibv_destroy_comp_channel(self.events.as_ptr()) };
    }
}

impl DeviceCq {
    pub(super) fn poll(&self, out: &mut [Completion]) -> usize {
        if out.is_empty() {
            return 0;
        }
        let mut stash = self.stash();
        let mut n = 0;
        while n < out.len()
            && let Some(wc) = stash.pop_front()
        {
            out[n] = wc;
            n += 1;
        }
        self.n_stashed.store(stash.len(), Ordering::Relaxed);
        let room = out.len() - n;
        let swallowed = self.take(room, |wc| {
            out[n] = wc;
            n += 1;
        });
        drop(stash);
        if swallowed {
            self.waiters.wake_all();
        }
        n
    }

    pub(super) fn is_stashed(&self) -> bool {
        self.n_stashed.load(Ordering::Relaxed) != 0
    }

    pub(super) fn is_ready(&self) -> bool {
        if self.is_stashed() {
            return true;
        }
        // False if another thread is polling.
        try_lock(&self.stash).is_some_and(|mut stash| self.fill_stash(&mut stash))
    }

    pub(super) fn arm(&self, bell: &RdmaBell) -> bool {
        if self.is_surely_ready() {
            return false;
        }
        self.take_events();
        self.waiters.register(bell.event());
        if bell.watch(self.fd()).is_ok() && self.request_event().is_ok() && !self.is_surely_ready()
        {
            return true;
        }
        self.disarm(bell);
        false
    }

    pub(super) fn disarm(&self, bell: &RdmaBell) {
        bell.forget(self.fd());
        self.waiters.unregister(bell.event());
    }

    pub(super) fn wake_epoch(&self) -> u32 {
        self.waiters.epoch()
    }

    pub(super) fn park_since(&self, epoch: u32, timeout: Option<Duration>) -> Parked {
        if self.is_surely_ready() {
            return Parked::Woken;
        }
        self.take_events();
        let Ok(event) = self.waiters.borrow() else {
            // No descriptor to sleep on: let the caller check again.
            return Parked::Woken;
        };
        self.waiters.register(&event);
        // Registered first: every ring from here on reaches this waiter.
        let parked = if self.waiters.epoch() != epoch
            || self.request_event().is_err()
            || self.is_surely_ready()
        {
            Parked::Woken
        } else {
            let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
            let mut fds = [
                PollFd::from_borrowed_fd(self.fd(), PollFlags::IN),
                PollFd::new(&*event, PollFlags::IN),
            ];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => Parked::TimedOut,
                Err(rustix::io::Errno::INTR) => Parked::Interrupted,
                _ => Parked::Woken,
            }
        };
        self.waiters.unregister(&event);
        self.waiters.give_back(event);
        parked
    }

    pub(super) fn wake_waiters(&self) {
        self.waiters.wake_all();
    }
}

/// Completions taken in one call.
pub(super) const BATCH: usize = 16;
/// Completions of receives that go to the stash at once: more than a queue has slots for.
const MOST_GATHERED: usize = 1024;
