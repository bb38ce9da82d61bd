//! Waiting for a socket in the event loop of an async runtime, where tasks wait instead of threads.
//!
//! The order is that of `crate::accelerate`: take a mark, try, and if that would block, arm a
//! [`Doorbell`] with the mark, then wait. The event loop also watches the
//! [hang-up descriptor](Socket::hang_up_fd), which shows the end of the connection. While a socket
//! connects or listens, the loop watches a [`WaitSet`](Socket::wait_set) instead. No call of this
//! file waits, and none checks for a hang-up unless it says so.

use crate::Doorbell;
use crate::doorbell::Kind;
use crate::engine::QpStream;
use crate::interrupt::Section;
use crate::rsocket::any_device::{self, AnyConnection};
use crate::rsocket::connection::WaitPolicy;
use crate::rsocket::socket::Socket;
use crate::sys;
use rsock_verbs::Context;
use rsock_verbs::soft::{ReadyNumber, Soft, SoftReadySet};
use rustix::event::{PollFlags, epoll};
use rustix::net::RecvFlags;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// One descriptor for several: it becomes readable with any of them, or when a time limit is over.
#[derive(Debug)]
pub struct WaitSet {
    epoll: OwnedFd,
    /// Closing it would take it out of the set.
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

/// A descriptor that is readable from `until` on.
fn timer(until: Instant) -> io::Result<OwnedFd> {
    let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
    let timer = timerfd_create(TimerfdClockId::Monotonic, flags)?;
    // Zero would disarm the timer.
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
    ($socket:expr, $connection:ident => $do:expr, $else:expr) => {
        match $socket.connection() {
            Some(AnyConnection::Soft($connection)) => $do,
            Some(AnyConnection::Rdma($connection)) => $do,
            None => $else,
        }
    };
}

impl Socket {
    /// Advances a connect that answered `EINPROGRESS`. True once the socket is connected.
    ///
    /// # Errors
    /// As [`Self::connect`].
    pub fn continue_connect(&self) -> io::Result<bool> {
        self.progress_connect_and_listeners()
    }

    /// What to wait for before [`Self::continue_connect`] or [`Self::accept`] is tried again. It
    /// must be made anew for each wait.
    ///
    /// # Errors
    /// When descriptors or memory run out (`EMFILE`, `ENFILE`, `ENOMEM`).
    pub fn wait_set(&self) -> io::Result<WaitSet> {
        let (entries, until) = self.poll_entries();
        let set = WaitSet::new(&entries, until)?;
        if self.is_connecting() {
            for listener in any_device::listeners() {
                listener.add_handshakes_to(set.as_fd())?;
            }
        }
        Ok(set)
    }

    /// A doorbell for this connected socket.
    ///
    /// # Errors
    /// `ENOTCONN`; when descriptors or memory run out.
    pub fn doorbell(&self) -> io::Result<Doorbell> {
        match self.connection() {
            Some(AnyConnection::Soft(e)) => Ok(e.context().create_bell()?.into()),
            Some(AnyConnection::Rdma(e)) => Ok(e.context().create_bell()?.into()),
            None => Err(not_connected()),
        }
    }

    /// A mark of the connection's state, to take before a try.
    #[must_use]
    pub fn mark(&self) -> u32 {
        self.connection().map_or(0, AnyConnection::mark)
    }

    /// Whether the connection has changed since `mark`. It costs a few loads, so it is fit to spin
    /// on.
    #[must_use]
    pub fn has_changed(&self, mark: u32) -> bool {
        on_stream!(self, e => e.stream.has_changed(mark), false)
    }

    /// Arms `bell` for any change, until [`Self::disarm`]. False if the connection has changed
    /// since `mark`: then nothing is armed, and the caller tries again.
    #[must_use]
    pub fn arm(&self, bell: &Doorbell, mark: u32) -> bool {
        let _section = Section::enter();
        let is_armed = match (self.connection(), bell.kind()) {
            (Some(AnyConnection::Soft(e)), Kind::Soft(bell)) => e.stream.arm_persistent(bell),
            (Some(AnyConnection::Rdma(e)), Kind::Rdma(bell)) => e.stream.arm_persistent(bell),
            // The bell was made for a socket on another device.
            _ => return false,
        };
        if is_armed && !self.has_changed(mark) {
            return true;
        }
        self.disarm(bell);
        false
    }

    /// As [`crate::accelerate::AcceleratedStream::join_set`].
    #[must_use]
    pub fn join_set(&self, set: &SoftReadySet) -> Option<ReadyNumber> {
        let _section = Section::enter();
        self.soft_stream()?.join_set(set)
    }

    /// As [`crate::accelerate::AcceleratedStream::leave_set`].
    pub fn leave_set(&self, set: &SoftReadySet, number: ReadyNumber) {
        let _section = Section::enter();
        if let Some(stream) = self.soft_stream() {
            stream.leave_set(set, number);
        }
    }

    /// As [`crate::accelerate::AcceleratedStream::announce`].
    #[must_use]
    pub fn announce(&self, mark: u32) -> bool {
        let _section = Section::enter();
        self.soft_stream().is_some_and(|stream| stream.announce_to_waiter(mark))
    }

    /// As [`crate::accelerate::AcceleratedStream::stop_announcing`].
    pub fn stop_announcing(&self) {
        let _section = Section::enter();
        if let Some(stream) = self.soft_stream() {
            stream.stop_announcing();
        }
    }

    fn soft_stream(&self) -> Option<&QpStream<Soft>> {
        match self.connection() {
            Some(AnyConnection::Soft(e)) => Some(&e.stream),
            _ => None,
        }
    }

    /// For a task that waits: sends a keepalive probe if one is due, and returns after which time
    /// the task must call again; `None` if it need not. A peer found dead shows as a change.
    #[must_use]
    pub fn keep_alive(&self) -> Option<Duration> {
        on_stream!(self, e => e.stream.keep_alive(), None)
    }

    /// Undoes an [`Self::arm`] that returned true.
    pub fn disarm(&self, bell: &Doorbell) {
        let _section = Section::enter();
        match (self.connection(), bell.kind()) {
            (Some(AnyConnection::Soft(e)), Kind::Soft(bell)) => e.stream.disarm(bell),
            (Some(AnyConnection::Rdma(e)), Kind::Rdma(bell)) => e.stream.disarm(bell),
            _ => {}
        }
    }

    /// A descriptor that becomes readable or hangs up when the connection may have ended: then call
    /// [`Self::has_hung_up`]. The caller owns it, and must close it no later than the socket.
    ///
    /// # Errors
    /// `ENOTCONN`; `EMFILE`.
    pub fn hang_up_fd(&self) -> io::Result<OwnedFd> {
        let connection = self.connection().ok_or_else(not_connected)?;
        connection.as_fd().try_clone_to_owned()
    }

    /// Checks whether the connection has ended, without waiting. True once it has: then the hang-up
    /// descriptor need not be watched any more.
    pub fn has_hung_up(&self) -> bool {
        on_stream!(self, e => e.has_hung_up(), true)
    }

    /// As [`Self::send`], and never waits.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn try_send(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        let connection = self.connection().ok_or_else(not_connected)?;
        connection.send(bufs, WaitPolicy::NonblockingWatched)
    }

    /// As [`Self::recv`], and never waits; of the flags `MSG_PEEK` counts.
    ///
    /// # Errors
    /// As [`Self::recv`].
    pub fn try_recv(&self, bufs: &mut [IoSliceMut<'_>], flags: RecvFlags) -> io::Result<usize> {
        let connection = self.connection().ok_or_else(not_connected)?;
        connection.recv(bufs, flags & RecvFlags::PEEK, WaitPolicy::NonblockingWatched)
    }

    /// As [`Self::write_remote`], and never waits.
    ///
    /// # Errors
    /// As [`Self::write_remote`].
    pub fn try_write_remote(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let connection = self.connection().ok_or_else(not_connected)?;
        connection.write_remote(bytes, offset, WaitPolicy::NonblockingWatched)
    }

    /// Bytes that a receive could return now.
    #[must_use]
    pub fn bytes_readable(&self) -> usize {
        on_stream!(self, e => e.stream.bytes_readable(), 0)
    }

    /// Which of `events` hold now, as `poll(2)` reports them, with errors and hang-ups.
    #[must_use]
    pub fn events(&self, events: PollFlags) -> PollFlags {
        self.readiness(events)
    }

    /// Whether the peer has all that was sent, so that [`Self::close`] does not wait.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        on_stream!(self, e => e.stream.is_drained(), true)
    }
}

fn not_connected() -> io::Error {
    io::Error::from_raw_os_error(libc::ENOTCONN)
}
