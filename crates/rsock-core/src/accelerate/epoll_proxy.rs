//! A descriptor that stands in for the twin in somebody else's epoll set, while bytes may still come
//! on the ring.
//!
//! A stream that enters an epoll set goes back to TCP, but what the peer has written to the ring, and
//! writes until it has left, the kernel's socket does not show. Until then a doorbell does:
//! readable from the moment that the ring may have something until a read found it empty.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::ask::Subject;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_BROKEN, FLAG_STANDIN, Receiving};
use crate::doorbell::Doorbell;
use crate::interrupt::Section;
use crate::sys;
use rsock_proto::switch::{Receiver, RingInput};
use rsock_verbs::HighFd;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::io;

/// The doorbell of a twin in an epoll set.
#[derive(Debug)]
pub(super) struct StandIn {
    bell: Doorbell,
    /// Of a twin without TCP: the doorbell, and what tells of the peer's end as TCP would.
    both: Option<HighFd>,
}

impl StandIn {
    fn new(path: &Path, is_sole: bool) -> io::Result<Self> {
        let bell = path.create_doorbell()?;
        let fate = path.fate_fd().filter(|_| is_sole);
        let both = match fate {
            None => None,
            Some(fate) => {
                let both = HighFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
                for fd in [bell.as_fd().as_raw_fd(), fate] {
                    sys::epoll_add(both.as_fd(), fd)?;
                }
                Some(both)
            }
        };
        Ok(Self { bell, both })
    }
}

impl AsFd for StandIn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.as_ref().map_or(self.bell.as_fd(), HighFd::as_fd)
    }
}

impl AcceleratedStream {
    /// The descriptor to add to an epoll set beside the twin's, with the same data and interest in
    /// input; `None` if the kernel's socket shows everything. It closes, and so leaves the set, when
    /// it is no longer needed. Call after [`AcceleratedStream::pin`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: there is no descriptor for it. A set without it may sleep
    /// although there are bytes.
    pub fn stand_in(&self, fd: BorrowedFd<'_>) -> io::Result<Option<RawFd>> {
        let Some(path) = self.path() else { return Ok(None) };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        if !self.is_sole() {
            let mut subject = Subject::new(fd, Some(path));
            let mut seen = self.begin(&*rx, &subject);
            let input = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::poll_input)?;
            if input.fault.is_none() && input.ring == RingInput::Unused {
                return Ok(None);
            }
        }
        // Both users hold the lock of the direction, so this one is free, but in a child of a fork that came
        // between: there it is for ever that of a thread of its parent.
        let Ok(mut slot) = self.stand_in.try_lock() else { return Ok(None) };
        if slot.is_none() {
            let stand_in = StandIn::new(path, self.is_sole())?;
            listen(path, &stand_in.bell);
            *slot = Some(stand_in);
            self.dirs.raise(FLAG_STANDIN);
        }
        Ok(slot.as_ref().map(|stand_in| stand_in.as_fd().as_raw_fd()))
    }

    /// A read found the ring empty: the stand-in is quiet until something comes, or gone if nothing
    /// can. The caller holds the lock of the direction.
    pub(super) fn quiet_stand_in(&self, rx: &Receiving, path: &Path) {
        if !self.has(FLAG_STANDIN) {
            return;
        }
        let Ok(mut slot) = self.stand_in.try_lock() else { return };
        let Some(stand_in) = slot.take() else { return };
        path.disarm(&stand_in.bell);
        stand_in.bell.drain();
        // A native stream is never on TCP; its proxy goes when it is broken.
        let is_unused = if self.is_sole() { self.has(FLAG_BROKEN) } else { rx.switch.is_on_tcp() };
        if is_unused {
            self.dirs.lower(FLAG_STANDIN);
            return;
        }
        listen(path, &stand_in.bell);
        *slot = Some(stand_in);
    }
}

/// Arms, and rings if something is there already (or nobody else could).
fn listen(path: &Path, bell: &Doorbell) {
    if !path.arm_standing(bell) || path.has_input() {
        bell.ring();
    }
}
