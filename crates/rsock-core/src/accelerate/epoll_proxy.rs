//! A descriptor that stands in for the twin in somebody else's epoll set, while bytes may still come
//! on the ring.
//!
//! A stream that enters an epoll set goes back to TCP, but what the peer has written to the ring, and
//! writes until it has left, the kernel's socket does not show. Until then a doorbell does:
//! readable from the moment that the ring may have something until a read found it empty.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::ask::Subject;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_STANDIN, FlagBits, Receiving};
use crate::doorbell::Doorbell;
use crate::interrupt::Section;
use crate::sys;
use rsock_proto::switch::{Receiver, RingInput};
use rsock_verbs::HighFd;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::Mutex;

/// The doorbell of a twin in an epoll set.
#[derive(Debug)]
pub(super) struct StandIn {
    bell: Doorbell,
    /// Of a native stream: the doorbell, and what shows the peer's end as TCP would.
    both: Option<HighFd>,
}

/// What the descriptor in the epoll set shows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shows {
    /// What comes on the ring: the kernel's socket shows the end of the connection.
    Ring,
    /// The end of the connection too.
    RingAndEnd,
}

impl StandIn {
    fn new(path: &Path, shows: Shows) -> io::Result<Self> {
        let bell = path.create_doorbell()?;
        let fate = path.fate_fd().filter(|_| shows == Shows::RingAndEnd);
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
        let mut subject = Subject::new(fd, Some(path));
        let mut seen = self.begin(&*rx, &subject);
        let input = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::poll_input)?;
        if input.fault.is_none() && input.ring == RingInput::Unused {
            return Ok(None);
        }
        self.stand_in.open(path, Shows::Ring, &self.dirs.shared.0.bits)
    }

    /// A read found the ring empty: the stand-in is quiet until something comes, or gone if nothing
    /// can. The caller holds the lock of the direction.
    pub(super) fn quiet_stand_in(&self, rx: &Receiving, path: &Path) {
        self.stand_in.quiet(path, &self.dirs.shared.0.bits, rx.switch.is_on_tcp());
    }
}

/// The place of a stream's [`StandIn`]. Callers hold the lock of the receiving direction.
#[derive(Debug, Default)]
pub(super) struct ProxySlot(Mutex<Option<StandIn>>);

impl ProxySlot {
    /// The descriptor for the epoll set, made if there is none. `None` if it cannot be used here.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(super) fn open(
        &self,
        path: &Path,
        shows: Shows,
        flags: &FlagBits,
    ) -> io::Result<Option<RawFd>> {
        // The callers hold the lock of the direction, so this one is free, except in a child of a
        // fork that came between: there a thread of its parent holds it for ever.
        let Ok(mut slot) = self.0.try_lock() else { return Ok(None) };
        if slot.is_none() {
            let stand_in = StandIn::new(path, shows)?;
            listen(path, &stand_in.bell);
            *slot = Some(stand_in);
            flags.raise(FLAG_STANDIN);
        }
        Ok(slot.as_ref().map(|stand_in| stand_in.as_fd().as_raw_fd()))
    }

    /// A read found the ring empty: the descriptor is not readable until something comes. It is
    /// closed if nothing can come any more, which `is_unused` says.
    pub(super) fn quiet(&self, path: &Path, flags: &FlagBits, is_unused: bool) {
        if !flags.has(FLAG_STANDIN) {
            return;
        }
        let Ok(mut slot) = self.0.try_lock() else { return };
        let Some(stand_in) = slot.take() else { return };
        path.disarm(&stand_in.bell);
        stand_in.bell.drain();
        if is_unused {
            flags.lower(FLAG_STANDIN);
            return;
        }
        listen(path, &stand_in.bell);
        *slot = Some(stand_in);
    }

    /// In a process that has none of this one's descriptors: the descriptor is not closed there.
    pub(super) fn forget(&self) {
        if let Ok(mut slot) = self.0.try_lock() {
            std::mem::forget(slot.take());
        }
    }
}

/// Arms, and rings if something is there already (or nobody else could).
fn listen(path: &Path, bell: &Doorbell) {
    if !path.arm_standing(bell) || path.has_input() {
        bell.ring();
    }
}
