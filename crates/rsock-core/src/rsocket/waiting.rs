//! Waiting for a pure socket in an event loop that is not ours: tasks, not threads, wait.
//!
//! Above `either` and `rsocket`, beside `poll`. The order is the twin's (`crate::accelerate`): take a mark,
//! try, and if that would block, arm a [`Doorbell`] with the mark, then wait. The loop also watches a
//! stream's [anchor](Socket::anchor), which shows the end of the connection; while a socket connects
//! or listens, it watches a [set](Socket::wait_set) instead. Calls from here never wait, and look at no
//! anchor by themselves.

use crate::Doorbell;
use crate::doorbell::Kind;
use crate::interrupt::Section;
use crate::rsocket::any_device::{self, Established};
use crate::rsocket::connection::Patience;
use crate::rsocket::socket::Socket;
use crate::sys;
use rsock_verbs::Context;
use rustix::event::{PollFlags, epoll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Descriptors to wait for together, as one that becomes readable with any of them, and when a
/// certain time has come.
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
    /// In the set for as long as it is open.
    _timer: Option<OwnedFd>,
}

impl WaitSet {
    fn new(entries: &[libc::pollfd], until: Option<Instant>) -> io::Result<Self> {
        let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for entry in entries.iter().filter(|entry| entry.fd >= 0) {
            sys::epoll_add(set.as_fd(), entry.fd)?;
        }
        let timer = until.map(timer).transpose()?;
        if let Some(timer) = &timer {
            sys::epoll_add(set.as_fd(), timer.as_raw_fd())?;
        }
        Ok(Self { epoll: set, _timer: timer })
    }
}

impl AsFd for WaitSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

impl AsRawFd for WaitSet {
    fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }
}

/// A descriptor that is readable from then on.
fn timer(until: Instant) -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    // Zero would stop it.
    let left = until.saturating_duration_since(sys::now()).max(Duration::from_micros(1));
    let it_value = Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(left.subsec_nanos()),
    };
    let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &Itimerspec { it_interval, it_value })?;
    Ok(timer)
}

/// Runs the same expression on the stream of either device, if there is one.
macro_rules! on_stream {
    ($socket:expr, $established:ident => $do:expr, $else:expr) => {
        match $socket.established() {
            Some(Established::Soft($established)) => $do,
            Some(Established::Rdma($established)) => $do,
            None => $else,
        }
    };
}

impl Socket {
    /// Takes a connect that answered `EINPROGRESS` further. True once connected.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn go_on_connecting(&self) -> io::Result<bool> {
        self.drive_alone()
    }

    /// What to wait for before [`Self::go_on_connecting`], or accepting, is tried again. Made anew each
    /// time.
    ///
    /// # Errors
    /// When descriptors or memory run out (`EMFILE`, `ENFILE`, `ENOMEM`).
    pub fn wait_set(&self) -> io::Result<WaitSet> {
        let (mut entries, until) = self.poll_entries();
        // Held until the set has their descriptors.
        let listeners = if self.is_opening() { any_device::listeners() } else { Vec::new() };
        for listener in &listeners {
            entries.extend(listener.handshake_entries());
        }
        WaitSet::new(&entries, until)
    }

    /// A doorbell for this connected socket.
    ///
    /// # Errors
    /// `ENOTCONN`; when descriptors or memory run out.
    pub fn doorbell(&self) -> io::Result<Doorbell> {
        match self.established() {
            Some(Established::Soft(e)) => Ok(e.context().create_bell()?.into()),
            Some(Established::Rdma(e)) => Ok(e.context().create_bell()?.into()),
            None => Err(not_connected()),
        }
    }

    /// A mark of what has happened to the connection, to take before trying.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.established().map_or(0, Established::mark)
    }

    /// Whether anything has happened since. A few loads, for spinning.
    #[must_use]
    pub fn has_changed(&self, mark: u32) -> bool {
        on_stream!(self, e => e.stream.has_changed(mark), false)
    }

    /// Arms `bell` for whatever happens, until [`Self::disarm`]. False, and nothing is armed, if
    /// something has happened since `mark`: then try again.
    #[must_use]
    pub fn arm(&self, bell: &Doorbell, mark: u32) -> bool {
        let _section = Section::enter();
        let is_armed = match (self.established(), bell.kind()) {
            (Some(Established::Soft(e)), Kind::Soft(bell)) => e.stream.arm_persistent(bell),
            (Some(Established::Rdma(e)), Kind::Rdma(bell)) => e.stream.arm_persistent(bell),
            // Another socket's.
            _ => return false,
        };
        if is_armed && !self.has_changed(mark) {
            return true;
        }
        self.disarm(bell);
        false
    }

    /// For a task that waits: asks after the peer if `SO_KEEPALIVE` wants it now, and returns how long it may
    /// wait before it must call again; `None` for as long as it likes. A dead peer shows as a change.
    #[must_use]
    pub fn keep_alive(&self) -> Option<Duration> {
        on_stream!(self, e => e.stream.keep_alive(), None)
    }

    /// Takes back an [`Self::arm`] that returned true.
    pub fn disarm(&self, bell: &Doorbell) {
        let _section = Section::enter();
        match (self.established(), bell.kind()) {
            (Some(Established::Soft(e)), Kind::Soft(bell)) => e.stream.disarm(bell),
            (Some(Established::Rdma(e)), Kind::Rdma(bell)) => e.stream.disarm(bell),
            _ => {}
        }
    }

    /// A descriptor that becomes readable, or hangs up, when there may be news of the connection's
    /// end: then [look](Self::look_at_anchor). It is the caller's, who must close it with the socket.
    ///
    /// # Errors
    /// `ENOTCONN`; `EMFILE`.
    pub fn anchor(&self) -> io::Result<OwnedFd> {
        let established = self.established().ok_or_else(not_connected)?;
        established.as_fd().try_clone_to_owned()
    }

    /// Asks the anchor for news; never waits. True once the connection is over, and the anchor need
    /// not be watched any more.
    pub fn look_at_anchor(&self) -> bool {
        on_stream!(self, e => e.look_at_anchor_once(), true)
    }

    /// As [`Self::send`], and never waits.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let established = self.established().ok_or_else(not_connected)?;
        established.send(bufs, Patience::Watched)
    }

    /// As [`Self::recv`], and never waits; with `peek` what is received stays.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], peek: bool) -> io::Result<usize> {
        let established = self.established().ok_or_else(not_connected)?;
        established.recv(bufs, peek, false, Patience::Watched)
    }

    /// As [`Self::put`], and never waits.
    ///
    /// # Errors
    /// As [`Self::put`].
    pub fn try_put(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let established = self.established().ok_or_else(not_connected)?;
        established.put(bytes, offset, Patience::Watched)
    }

    /// Bytes that a receive could return now.
    #[must_use]
    pub fn bytes_readable(&self) -> usize {
        on_stream!(self, e => e.stream.bytes_readable(), 0)
    }

    /// Which of `events` hold now, as `poll(2)` tells them, errors and hang-ups included.
    #[must_use]
    pub fn events(&self, events: PollFlags) -> PollFlags {
        self.readiness(events)
    }

    /// Whether [`Self::close`] has nothing to wait for.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        on_stream!(self, e => e.stream.is_drained(), true)
    }
}

fn not_connected() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTCONN)
}
