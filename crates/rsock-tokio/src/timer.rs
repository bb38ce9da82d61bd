//! A one-shot timer on a descriptor.
//!
//! A writer waits a few milliseconds for its reader to make room before it moves to TCP, and a
//! stream with keepalive probes its peer now and then. The runtime may have been built without
//! Tokio's timers, but streams exist only where descriptors can be registered.

use crate::async_fd;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::unix::AsyncFd;

/// See the module.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: AsyncFd<OwnedFd>,
    is_running: AtomicBool,
    /// When it expires, in nanoseconds after `created`.
    due: AtomicU64,
    created: Instant,
}

impl Timer {
    /// A timer that is not running. Must be called inside a runtime.
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let fd = async_fd::register(fd)?;
        let (is_running, due) = (AtomicBool::new(false), AtomicU64::new(0));
        Ok(Self { fd, is_running, due, created: Instant::now() })
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

    /// Starts it, unless it is running already and expires by then.
    pub(crate) fn start_no_later(&self, after: Duration) -> io::Result<()> {
        let due = self.created.elapsed().saturating_add(after).as_nanos();
        let due = u64::try_from(due).unwrap_or(u64::MAX);
        if self.due.load(Ordering::Relaxed) > due {
            self.is_running.store(false, Ordering::Release);
        }
        if !self.is_running.load(Ordering::Acquire) {
            self.due.store(due, Ordering::Relaxed);
        }
        self.start(after)
    }

    /// Ready once it has expired; otherwise registers `cx`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_timer_expires_at_the_earliest_of_the_times_it_was_given() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
        runtime.expect("a runtime").block_on(async {
            let timer = Timer::new().expect("a timer");
            for times in [[Duration::ZERO, HOUR], [HOUR, Duration::ZERO]] {
                for time in times {
                    timer.start_no_later(time).expect("started");
                }
                poll_fn(|cx| timer.poll(cx)).await.expect("expired");
            }
        });
    }
}
