//! A descriptor that stands in for the twin in somebody else's epoll set, while bytes may still come
//! on the ring.
//!
//! A stream that enters an epoll set goes back to TCP, but what the peer has written to the ring, and
//! writes until it has left, the kernel's socket does not show. Until then a doorbell does:
//! readable from the moment that the ring may have something until a read found it empty.

use super::Twin;
use super::path::{AnyBell, Path};
use super::state::{FLAG_STANDIN, Rx, RxMode};
use crate::interrupt::Section;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::PoisonError;

/// The doorbell of a twin in an epoll set.
pub(super) type StandIn = AnyBell;

impl Twin {
    /// The descriptor to add to an epoll set beside the twin's, with the same data and interest in
    /// input; `None` if the kernel's socket shows everything. It closes, and so leaves the set, when
    /// it is no longer needed. Call after [`Twin::pin`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: there is no descriptor for it. A set without it may sleep
    /// although there are bytes.
    pub fn stand_in(&self, fd: BorrowedFd<'_>) -> io::Result<Option<RawFd>> {
        let Some(path) = self.path() else { return Ok(None) };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        if self.steer_rx(fd, &mut rx, path).is_ok() && rx.mode == RxMode::Tcp {
            return Ok(None);
        }
        let mut slot = self.stand_in.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            let bell = path.create_bell()?;
            listen(path, &bell);
            *slot = Some(bell);
            self.dirs.raise(FLAG_STANDIN);
        }
        Ok(slot.as_ref().map(|bell| bell.as_fd().as_raw_fd()))
    }

    /// A read found the ring empty: the stand-in is quiet until something comes, or gone if nothing
    /// can. The caller holds the lock of the direction.
    pub(super) fn quiet_stand_in(&self, rx: &Rx, path: &Path) {
        if !self.has(FLAG_STANDIN) {
            return;
        }
        let mut slot = self.stand_in.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bell) = slot.take() else { return };
        path.disarm(&bell);
        bell.drain();
        if rx.mode == RxMode::Tcp {
            self.dirs.lower(FLAG_STANDIN);
            return;
        }
        listen(path, &bell);
        *slot = Some(bell);
    }
}

/// Arms, and rings if something is there already (or nobody else could).
fn listen(path: &Path, bell: &StandIn) {
    if !path.arm_standing(bell) || path.has_input() {
        bell.ring();
    }
}
