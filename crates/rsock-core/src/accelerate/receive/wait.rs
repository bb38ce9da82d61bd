//! Waiting for something to receive: on the ring, on the socket, or on both.

use crate::accelerate::bells::{Arming, Bells};
use crate::accelerate::path::{ConnectionState, Path};
use crate::accelerate::peer_check::SOCKET_CHECK_INTERVAL;
use crate::accelerate::state::{FLAG_RX_SLEEPY, FlagBits};
use crate::accelerate::time_limit::at_most;
use crate::accelerate::{AcceleratedStream, PARK, Waited};
use crate::engine::{Interest, Wake};
use crate::interrupt::Watch;
use crate::metrics::{self, Direction};
use crate::page_reclaim::rest;
use crate::sys::{self, LazyDeadline};
use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::io::Errno;
use std::io;
use std::time::Duration;

/// How long `MSG_PEEK | MSG_WAITALL` waits before it looks for more bytes again.
const PEEK_RETRY: Duration = Duration::from_millis(1);

impl AcceleratedStream {
    pub(super) fn wait_for_ring(
        &self,
        fd: BorrowedFd<'_>,
        path: &Path,
        mark: u32,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<()> {
        let (flags, stat) = (&self.dirs.shared.0.bits, self.stat.get());
        if (RingWait { path, flags, stat }).sleep(fd, mark, left, watch)? == Woken::ByDescriptor {
            self.pin_if_device_removed(path);
            self.dirs.rx.0.lock().idle_reads = SOCKET_CHECK_INTERVAL - 1;
        }
        Ok(())
    }
}

/// A wait for something to receive on the ring alone.
pub(in crate::accelerate) struct RingWait<'a> {
    pub(in crate::accelerate) path: &'a Path,
    pub(in crate::accelerate) flags: &'a FlagBits,
    pub(in crate::accelerate) stat: Option<&'a metrics::StreamSlot>,
}

/// What ended a [`RingWait`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::accelerate) enum Woken {
    /// The ring, or nothing.
    ByRing,
    /// The socket, or the device: the next receive has to look at them.
    ByDescriptor,
}

impl RingWait<'_> {
    fn count(&self, waited: Waited) {
        if let Some(stat) = self.stat {
            waited.count(stat, Direction::Recv);
        }
    }

    /// Naps or spins, parks, then sleeps on descriptors. Parking is cheap but does not notice that
    /// the peer died, so it is bounded, and skipped where the last wait was long.
    pub(in crate::accelerate) fn sleep(
        &self,
        fd: BorrowedFd<'_>,
        mark: u32,
        left: Option<Duration>,
        watch: Watch,
    ) -> io::Result<Woken> {
        let path = self.path;
        let mut time = LazyDeadline::new(left);
        time.begin();
        if let Some(woken) = path.nap(mark, left, watch) {
            self.count(Waited::Sleeping);
            match woken {
                Wake::Changed => return Ok(Woken::ByRing),
                Wake::Interrupted => return Err(Errno::INTR.into()),
                Wake::TimedOut => {}
            }
        }
        if path.spin(Interest::Read, mark) {
            self.count(Waited::Spinning);
            return Ok(Woken::ByRing);
        }
        self.count(Waited::Sleeping);
        let began = sys::now();
        let left = time.left();
        if !self.flags.has(FLAG_RX_SLEEPY) {
            match path.park(mark, at_most(PARK, left)) {
                Wake::Changed => return Ok(Woken::ByRing),
                Wake::Interrupted => return Err(Errno::INTR.into()),
                Wake::TimedOut => self.flags.raise(FLAG_RX_SLEEPY),
            }
            if left.is_some_and(|l| l <= PARK) {
                return Ok(Woken::ByRing);
            }
        }
        if sleep_with_bell(fd, libc::POLLRDHUP, path, mark, time.left(), watch)? {
            return Ok(Woken::ByDescriptor);
        }
        if began.elapsed() < PARK {
            self.flags.lower(FLAG_RX_SLEEPY);
        }
        Ok(Woken::ByRing)
    }
}

/// Sleeps before a call looks for more bytes than it has seen: no descriptor shows them.
pub(in crate::accelerate) fn sleep_for_more(
    left: Option<Duration>,
    watch: Watch,
) -> io::Result<()> {
    let moment = at_most(PEEK_RETRY, left);
    sys::sleep(&mut [], Some(moment), None, watch).map(drop)
}

/// Sleeps on the socket and the thread's doorbell. Returns whether the socket has something.
/// Without a descriptor for a doorbell it sleeps for short times.
pub(in crate::accelerate) fn sleep_with_bell(
    fd: BorrowedFd<'_>,
    events: i16,
    path: &Path,
    mark: u32,
    left: Option<Duration>,
    watch: Watch,
) -> io::Result<bool> {
    Bells::with(std::iter::once(path), false, |bells| {
        let armed = bells.arm(path, mark);
        if matches!(armed, Arming::Changed) {
            return Ok(false);
        }
        let left = [left, armed.bound()].into_iter().flatten().min();
        let socket = libc::pollfd { fd: fd.as_raw_fd(), events, revents: 0 };
        let [first, second, third] = bells.entries();
        let connection = path.connection_fd().unwrap_or(-1);
        let connection = libc::pollfd { fd: connection, events: libc::POLLIN, revents: 0 };
        let mut fds = [socket, first, second, third, connection];
        let sleep = |left| sys::sleep(&mut fds, left, None, watch);
        let slept = rest::sleep(left, sleep);
        drop(armed);
        bells.drain(&fds[1..=Bells::MOST]);
        let has_news = fds[4].revents != 0 && path.connection_state() != ConnectionState::Open;
        slept.map(|_| fds[0].revents != 0 || has_news)
    })
}
