//! Completion channels: a real descriptor that becomes readable when an armed queue completes
//! something, or when the peer of one of its queue pairs dies.

use super::Link;
use super::bell::SoftBell;
use crate::device::CompletionChannel;
use crate::error::Error;
use crate::high_fd::{HighFd, verb};
use rustix::event::{Timespec, epoll};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A completion channel.
#[derive(Debug)]
pub struct SoftChannel {
    epoll: HighFd,
    bell: SoftBell,
    /// Links watched for a hang-up; the index of each is its event data.
    links: Mutex<Vec<Weak<Link>>>,
}

/// Event data of the bell; a link's event data is its index.
const BELL: u64 = u64::MAX;

impl SoftChannel {
    pub(super) fn new() -> Result<Self, Error> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(verb("epoll_create"))?;
        let epoll = HighFd::new(epoll);
        let bell = SoftBell::new()?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)
            .map_err(verb("epoll_ctl"))?;
        Ok(Self { epoll, bell, links: Mutex::default() })
    }

    pub(super) fn bell(&self) -> u64 {
        self.bell.id()
    }

    /// Watches for the death of `link`'s peer.
    pub(super) fn watch(&self, link: &Arc<Link>) -> Result<(), Error> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if links.iter().any(|l| std::ptr::eq(l.as_ptr(), Arc::as_ptr(link))) {
            return Ok(());
        }
        // Indices of links that are gone are reused: closing removed their sockets from the epoll
        // set.
        let place = match links.iter().position(|l| l.strong_count() == 0) {
            Some(place) => {
                links[place] = Arc::downgrade(link);
                place
            }
            None => {
                links.push(Arc::downgrade(link));
                links.len() - 1
            }
        };
        let data = epoll::EventData::new_u64(place as u64);
        // epoll always reports hang-ups; no other event is wanted.
        epoll::add(&self.epoll, link.as_fd(), data, epoll::EventFlags::empty())
            .map_err(verb("epoll_ctl"))
    }
}

impl CompletionChannel for SoftChannel {
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
                match event.data.u64() {
                    BELL => {
                        self.bell.take();
                    }
                    place => self.hung_up(place),
                }
            }
            if n < events.len() {
                return Ok(any);
            }
        }
    }
}

impl SoftChannel {
    /// A link's peer may have died: if so, stops watching the link.
    fn hung_up(&self, place: u64) {
        let place = usize::try_from(place).unwrap_or(usize::MAX);
        let links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        let link = links.get(place).and_then(Weak::upgrade);
        drop(links);
        if let Some(link) = link
            && !link.probe()
        {
            // Fails if another thread was faster.
            let _ = epoll::delete(&self.epoll, link.as_fd());
        }
    }
}

impl AsFd for SoftChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
