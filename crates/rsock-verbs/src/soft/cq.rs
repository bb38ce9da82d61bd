//! Completion queues.
//!
//! There is no ring of completions: a queue polls the queue pairs that complete to it. Most queues
//! serve one queue pair, which is found without a lock and stays known until the queue is gone;
//! further ones are behind a lock.

use super::Soft;
use super::bell::SoftBell;
use super::channel::SoftChannel;
use super::qp::QpCore;
use super::wait::Waiters;
use super::{Attached, Role, SoftCq};
use crate::device::{CompletionQueue, Parked};
use crate::error::Error;
use crate::wc::Completion;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

impl Role {
    #[inline(always)]
    pub(super) fn sends(self) -> bool {
        self != Self::Recv
    }

    #[inline(always)]
    pub(super) fn recvs(self) -> bool {
        self != Self::Send
    }
}

impl SoftCq {
    pub(super) fn new(channel: Option<&Arc<SoftChannel>>) -> Result<Self, Error> {
        Ok(Self {
            first: OnceLock::new(),
            first_live: AtomicBool::new(false),
            more: Mutex::default(),
            n_more: AtomicUsize::new(0),
            turn: AtomicUsize::new(0),
            waiters: Arc::new(Waiters::new()?),
            channel: channel.map(Arc::clone),
        })
    }

    pub(super) fn waiters(&self) -> &Arc<Waiters> {
        &self.waiters
    }

    fn more(&self) -> MutexGuard<'_, Vec<Attached>> {
        self.more.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From here on `qp` completes here.
    pub(super) fn attach(&self, qp: &Arc<QpCore>, role: Role) -> Result<(), Error> {
        if let Some(channel) = &self.channel {
            channel.watch(qp.link())?;
        }
        let attached = Attached { qp: Arc::clone(qp), role };
        let mut more = self.more();
        if let Err(attached) = self.first.set(attached) {
            more.push(attached);
            self.n_more.store(more.len(), Ordering::Release);
        } else {
            self.first_live.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// `qp` is going away: what of it was not polled is lost, as with any device.
    pub(super) fn detach(&self, qp: &Arc<QpCore>) {
        let mut more = self.more();
        if self.first.get().is_some_and(|a| Arc::ptr_eq(&a.qp, qp)) {
            self.first_live.store(false, Ordering::Release);
        }
        let gone: Vec<_> = more.extract_if(.., |a| Arc::ptr_eq(&a.qp, qp)).collect();
        self.n_more.store(more.len(), Ordering::Release);
        drop(more);
        drop(gone);
    }

    #[inline(always)]
    fn first(&self) -> Option<&Attached> {
        self.first.get().filter(|_| self.first_live.load(Ordering::Acquire))
    }

    #[cold]
    fn poll_more(&self, out: &mut [Completion]) -> usize {
        let more = self.more();
        if more.is_empty() {
            return 0;
        }
        let start = self.turn.fetch_add(1, Ordering::Relaxed) % more.len();
        let (before, from) = more.split_at(start);
        let mut n = 0;
        for a in from.iter().chain(before) {
            if n == out.len() {
                break;
            }
            n += a.poll(&mut out[n..]);
        }
        n
    }

    #[cold]
    fn is_any_ready(&self) -> bool {
        self.more().iter().any(|a| a.qp.is_ready(a.role))
    }
}

impl Attached {
    #[inline]
    fn poll(&self, out: &mut [Completion]) -> usize {
        let mut n = 0;
        if self.role.sends() && self.qp.has_events() {
            n = self.qp.poll_sends(out);
        }
        if self.role.recvs() {
            n += self.qp.poll_recvs(&mut out[n..]);
        } else if n == 0 {
            n = self.qp.poll_end(out);
        }
        n
    }
}

impl CompletionQueue<Soft> for SoftCq {
    #[inline]
    fn poll(&self, out: &mut [Completion]) -> usize {
        let n = self.first().map_or(0, |a| a.poll(out));
        if self.n_more.load(Ordering::Acquire) == 0 || n == out.len() {
            return n;
        }
        n + self.poll_more(&mut out[n..])
    }

    #[inline]
    fn is_ready(&self) -> bool {
        self.first().is_some_and(|a| a.qp.is_ready(a.role))
            || self.n_more.load(Ordering::Acquire) != 0 && self.is_any_ready()
    }

    fn req_notify(&self) -> Result<(), Error> {
        let channel = self.channel.as_ref().ok_or(Error::Invalid("no completion channel"))?;
        self.waiters.arm_channel(channel.bell());
        Ok(())
    }

    fn arm(&self, bell: &SoftBell) -> bool {
        self.waiters.arm_bell_unless(bell.id(), || self.is_ready())
    }

    fn disarm(&self, bell: &SoftBell) {
        self.waiters.disarm_bell(bell.id());
    }

    fn park(&self, timeout: Option<Duration>) -> Parked {
        self.park_since(self.wake_epoch(), timeout)
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
}
