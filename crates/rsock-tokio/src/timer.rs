//! A one-shot timer on a descriptor.
//!
//! A writer in front of a full ring gives its reader a few milliseconds before it moves to TCP. A
//! runtime may have been built without Tokio's timers, but streams only exist where descriptors can
//! be watched.

use crate::watched;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::unix::AsyncFd;

/// The timer.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: AsyncFd<OwnedFd>,
    is_running: AtomicBool,
}

impl Timer {
    /// A timer that is not running. Must be called inside a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let fd = watched::watch(fd)?;
        Ok(Self { fd, is_running: AtomicBool::new(false) })
    }

    /// Starts it, unless it is running already.
    pub(crate) fn start(&self, after: Duration) -> io::Result<()> {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let after = after.max(Duration::from_micros(1));
        let it_value = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(after.subsec_nanos()),
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let value = Itimerspec { it_interval, it_value };
        timerfd_settime(self.fd.get_ref(), TimerfdTimerFlags::empty(), &value)?;
        Ok(())
    }

    /// Whether it has run out; registers `cx` if not.
    pub(crate) fn poll(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.fd.poll_read_ready(cx) {
            Poll::Ready(guard) => {
                guard?.clear_ready();
                self.is_running.store(false, Ordering::Release);
                Poll::Ready(Ok(()))
            }
            Poll::Pending => Poll::Pending,
        }
    }
}
