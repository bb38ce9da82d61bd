//! Completion channels: one descriptor over the queues that were asked to notify.
//!
//! This is not the device's completion channel, of which each queue has its own (`cq.rs`): it is an
//! epoll set, in which that channel is from `req_notify` to the next event.

use super::RdmaChannel;
use super::device_cq::DeviceCq;
use super::waiters::Event;
use crate::device::CompletionChannel;
use crate::error::Error;
use crate::high_fd::{HighFd, verb};
use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError, Weak};

/// Event data of `event`; queues have their index.
const RUNG: u64 = u64::MAX;

impl RdmaChannel {
    pub(super) fn new() -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(verb("epoll_create"))?;
        let (epoll, event) = (HighFd::new(epoll), Event::new()?);
        epoll::add(&epoll, &event, epoll::EventData::new_u64(RUNG), epoll::EventFlags::IN)
            .map_err(verb("epoll_ctl"))?;
        Ok(Self { epoll, event, queues: Mutex::default() })
    }

    /// The entry of a queue.
    pub(super) fn join(&self, cq: Weak<DeviceCq>) -> u64 {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let free = queues.iter().position(|queue| queue.strong_count() == 0);
        let place = free.unwrap_or(queues.len());
        if place == queues.len() {
            queues.push(cq);
        } else {
            queues[place] = cq;
        }
        place as u64
    }

    pub(super) fn watch(&self, fd: BorrowedFd<'_>, place: u64) -> Result<(), Error> {
        let data = epoll::EventData::new_u64(place);
        match epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(verb("epoll_ctl")(e)),
        }
    }

    pub(super) fn forget(&self, fd: BorrowedFd<'_>) {
        // Not watched: nothing to forget.
        let _ = epoll::delete(&self.epoll, fd);
    }

    pub(super) fn ring(&self) {
        self.event.ring();
    }
}

impl CompletionChannel for RdmaChannel {
    fn drain(&self) -> io::Result<bool> {
        let mut any = false;
        loop {
            let mut events = [epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            }; 16];
            let n = epoll::wait(&self.epoll, &mut events, Some(&Timespec::default()))?;
            for event in &events[..n] {
                any = true;
                let place = event.data.u64();
                if place == RUNG {
                    self.event.drain();
                    continue;
                }
                let queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
                let place = usize::try_from(place).unwrap_or(usize::MAX);
                let cq = queues.get(place).and_then(Weak::upgrade);
                drop(queues);
                if let Some(cq) = cq {
                    cq.notified();
                }
            }
            if n < events.len() {
                return Ok(any);
            }
        }
    }
}

impl AsFd for RdmaChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
