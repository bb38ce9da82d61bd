//! A descriptor that shows an epoll set of the program that the ring may have bytes (an *epoll
//! proxy*).
//!
//! A stream that enters an epoll set goes back to TCP. But the kernel's socket does not show what
//! the peer has written to the ring, and still writes until it has left. A doorbell shows that: it
//! is readable from the moment that the ring may have something until a read found the ring empty.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::ask::Subject;
use crate::accelerate::path::Path;
use crate::accelerate::state::{FLAG_EPOLL_PROXY, FlagBits, Receiving};
use crate::doorbell::Doorbell;
use crate::interrupt::Section;
use crate::sys;
use rsock_proto::switch::{DirectionSwitch, Receiver, RingInput};
use rsock_verbs::HighFd;
use rustix::event::epoll;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::Mutex;

/// The doorbell of a stream in an epoll set.
#[derive(Debug)]
pub(super) struct EpollProxy {
    bell: Doorbell,
    /// For a native stream: an epoll set of the doorbell and of the descriptor that shows the
    /// peer's end, as TCP would.
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

impl EpollProxy {
    fn new(path: &Path, shows: Shows) -> io::Result<Self> {
        let bell = path.create_doorbell()?;
        let connection = path.connection_fd().filter(|_| shows == Shows::RingAndEnd);
        let both = match connection {
            None => None,
            Some(connection) => {
                let both = HighFd::new(epoll::create(epoll::CreateFlags::CLOEXEC)?);
                for fd in [bell.as_fd().as_raw_fd(), connection] {
                    sys::epoll_add(both.as_fd(), fd)?;
                }
                Some(both)
            }
        };
        Ok(Self { bell, both })
    }
}

impl AsFd for EpollProxy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.both.as_ref().map_or(self.bell.as_fd(), HighFd::as_fd)
    }
}

impl AcceleratedStream {
    /// The descriptor to add to an epoll set beside the stream's, with the same data and interest
    /// in input; `None` if the kernel's socket shows everything. It closes, and so leaves the set,
    /// when it is no longer needed. Call after [`AcceleratedStream::pin`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: there is no descriptor for it. A set without it may sleep
    /// although there are bytes.
    pub fn epoll_proxy(&self, fd: BorrowedFd<'_>) -> io::Result<Option<RawFd>> {
        let Some(path) = self.path() else { return Ok(None) };
        let _section = Section::enter();
        let mut rx = self.dirs.rx.0.lock();
        let mut subject = Subject::new(fd, Some(path));
        let mut seen = self.begin(&*rx, &subject);
        let input = self.ask(&mut *rx, &mut seen, &mut subject, Receiver::poll_input)?;
        if input.fault.is_none() && input.ring == RingInput::Unused {
            return Ok(None);
        }
        self.epoll_proxy.open(path, Shows::Ring, &self.dirs.shared.0.bits)
    }

    /// To be called when a read found the ring empty: silences the epoll proxy until something
    /// comes, or removes it if nothing can come. The caller holds the lock of the direction.
    pub(super) fn quiet_epoll_proxy(&self, rx: &Receiving, path: &Path) {
        self.epoll_proxy.quiet(path, &self.dirs.shared.0.bits, rx.switch.is_on_tcp());
    }
}

/// The place of a stream's [`EpollProxy`]. Callers hold the lock of the receiving direction.
#[derive(Debug, Default)]
pub(super) struct ProxySlot(Mutex<Option<EpollProxy>>);

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
        // All users hold the lock of the direction, so this lock is free, except in a child of a
        // fork that came in between: there it stays locked for good, by a thread that only the
        // parent has.
        let Ok(mut slot) = self.0.try_lock() else { return Ok(None) };
        if slot.is_none() {
            let epoll_proxy = EpollProxy::new(path, shows)?;
            arm_or_ring(path, &epoll_proxy.bell);
            *slot = Some(epoll_proxy);
            flags.raise(FLAG_EPOLL_PROXY);
        }
        Ok(slot.as_ref().map(|epoll_proxy| epoll_proxy.as_fd().as_raw_fd()))
    }

    /// To be called when a read found the ring empty: silences the proxy until something comes, or
    /// removes it if it `is_unused`, because nothing can come.
    pub(super) fn quiet(&self, path: &Path, flags: &FlagBits, is_unused: bool) {
        if !flags.has(FLAG_EPOLL_PROXY) {
            return;
        }
        let Ok(mut slot) = self.0.try_lock() else { return };
        let Some(epoll_proxy) = slot.take() else { return };
        path.disarm(&epoll_proxy.bell);
        epoll_proxy.bell.drain();
        if is_unused {
            flags.lower(FLAG_EPOLL_PROXY);
            return;
        }
        arm_or_ring(path, &epoll_proxy.bell);
        *slot = Some(epoll_proxy);
    }

    /// Drops the proxy without closing its descriptor, in a process that does not have it.
    pub(super) fn forget(&self) {
        // Either the lock is free, or a thread that is not in this process holds it for good.
        if let Ok(mut slot) = self.0.try_lock() {
            std::mem::forget(slot.take());
        }
    }
}

/// Arms `bell`, and rings it at once if there is input already, or if it could not be armed.
fn arm_or_ring(path: &Path, bell: &Doorbell) {
    if !path.arm_persistent(bell) || path.has_input() {
        bell.ring();
    }
}
