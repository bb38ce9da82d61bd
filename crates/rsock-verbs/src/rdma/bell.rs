//! Doorbells: an epoll descriptor over those of all armed queues, and an event for explicit rings.
#![forbid(unsafe_code)]

use super::waiters::Event;
use crate::device;
use crate::error::Error;
use crate::high_fd::{HighFd, verb};
use rustix::event::epoll;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A thread's doorbell.
#[derive(Debug)]
pub struct RdmaBell {
    epoll: HighFd,
    event: Arc<Event>,
}

impl RdmaBell {
    pub(super) fn new() -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(verb("epoll_create"))?;
        let this = Self { epoll: HighFd::new(epoll), event: Arc::new(Event::new()?) };
        this.watch(this.event.as_fd())?;
        Ok(this)
    }

    pub(super) fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// Rings for `fd` too, until [`Self::forget`].
    pub(super) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        let data = epoll::EventData::new_u64(0);
        match epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(()),
            Err(e) => Err(verb("epoll_ctl")(e)),
        }
    }

    pub(super) fn forget(&self, fd: BorrowedFd<'_>) {
        // Not watched: nothing to forget.
        let _ = epoll::delete(&self.epoll, fd);
    }
}

impl AsFd for RdmaBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl device::Bell for RdmaBell {
    fn ring(&self) {
        self.event.ring();
    }

    fn drain(&self) {
        self.event.drain();
    }
}
