//! An epoll set, through the functions of the C library, as ordinary programs call them, so that
//! the preload library sees the calls.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Descriptors that wait for input, each with a number of the caller's.
#[derive(Debug)]
pub(super) struct Epoll {
    set: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Epoll {
    pub(super) fn new() -> io::Result<Self> {
        const EVENTS: usize = 256;
        // SAFETY: the call takes no pointer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        let set = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { set, events: vec![libc::epoll_event { events: 0, u64: 0 }; EVENTS] })
    }

    /// Adds a descriptor: a wait returns `number` whenever it is readable.
    pub(super) fn add(&self, fd: &impl AsRawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: number };
        let (set, fd) = (self.set.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: `event` is valid during the call.
        match unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    }

    /// Waits, and returns the numbers of descriptors that are readable.
    pub(super) fn wait(&mut self) -> io::Result<Vec<u64>> {
        let room = i32::try_from(self.events.len()).unwrap_or(i32::MAX);
        let (set, events) = (self.set.as_raw_fd(), self.events.as_mut_ptr());
        // SAFETY: `events` has room for so many events.
        let n = unsafe { libc::epoll_wait(set, events, room, -1) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        Ok(self.events[..n].iter().map(|event| event.u64).collect())
    }
}
