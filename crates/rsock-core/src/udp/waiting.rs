//! Waiting: for the queue and the kernel's socket at once; and what polls of several descriptors, and epoll sets,
//! need to know.

use super::{OPEN, Queue, SHUT, Udp};
use crate::engine::{ThreadBell, spin_on};
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_verbs::soft::{Soft, SoftBell, SoftContext};
use rsock_verbs::{Bell, Context, DatagramQueue};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A thread that sleeps where the queue cannot wake it. Meanwhile the socket does not open.
#[derive(Debug)]
#[must_use]
pub struct Deaf<'a>(&'a Udp);

impl Drop for Deaf<'_> {
    fn drop(&mut self) {
        self.0.deaf.fetch_sub(1, Ordering::Release);
    }
}

/// A bell that is armed for the queue.
#[derive(Debug)]
#[must_use]
pub(crate) struct Armed<'a> {
    queue: &'a Queue,
    bell: &'a SoftBell,
    has_bell: bool,
}

impl Armed<'_> {
    /// Longest time that it is safe to sleep, `None` for any.
    pub(crate) fn bound(&self) -> Option<Duration> {
        (!self.has_bell).then_some(CROWDED)
    }
}

impl Drop for Armed<'_> {
    fn drop(&mut self) {
        self.queue.ud.disarm(self.bell);
    }
}

/// How long a thread sleeps for which there is no place for a bell.
const CROWDED: Duration = Duration::from_millis(1);

impl Udp {
    /// For a thread that is about to wait in the kernel alone; `None` if it must not, because the queue may
    /// bring something.
    pub(crate) fn deafen(&self) -> Option<Deaf<'_>> {
        // SYNC(deaf): pairs with `try_open`.
        self.deaf.fetch_add(1, Ordering::SeqCst);
        let deaf = Deaf(self);
        (self.state.load(Ordering::SeqCst) != OPEN).then_some(deaf)
    }

    /// Whether the queue may bring something, so that waiting takes more than the kernel.
    pub(crate) fn may_bring(&self) -> bool {
        self.state() != SHUT && !self.is_over()
    }

    /// Whether datagrams have come by the queue: then spinning for it may pay.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Spins where that is likely to pay. True if the queue has something.
    pub(super) fn spin(&self) -> bool {
        self.is_active() && spin_on(|| self.is_ready())
    }

    /// Arms `bell` for the queue; `None` if it has something already.
    pub(crate) fn arm<'a>(&'a self, bell: &'a SoftBell) -> Option<Armed<'a>> {
        let queue = self.queue()?;
        let has_bell = queue.ud.arm(bell);
        let armed = Armed { queue, bell, has_bell };
        if queue.ud.is_ready() { None } else { Some(armed) }
    }

    /// Sleeps until there may be something, or `deadline`.
    pub(super) fn sleep(
        &self,
        fd: BorrowedFd<'_>,
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        self.progress(fd, true);
        // Of this process: a child has a device of its own.
        let ctx = SoftContext::open().map_err(io::Error::from)?;
        Soft::with_bell(&ctx, |bell| {
            let Some(armed) = self.arm(bell) else {
                bell.drain();
                return Ok(());
            };
            let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let side = self.side_fd().unwrap_or(-1);
            let bell_fd = bell.as_fd().as_raw_fd();
            let mut fds = [entry(fd.as_raw_fd()), entry(bell_fd), entry(side)];
            let soon = armed.bound().map(|bound| sys::now() + bound);
            let until = [deadline, soon].into_iter().flatten().min();
            let result = sys::sleep(&mut fds, sys::time_left(until), None, watch);
            drop(armed);
            bell.drain();
            result.map(drop)
        })?
    }

    /// Lets in who asks, after [`Self::side_fd`] has become readable.
    pub(crate) fn on_side_ready(&self, fd: BorrowedFd<'_>) {
        self.progress(fd, true);
    }

    /// The descriptor to add to an epoll set beside the socket's, with the same data and interest in input;
    /// `None` if the kernel's socket shows everything. It stays as long as the socket. Call after
    /// [`Udp::pin`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: a set without it may sleep although there are datagrams.
    pub fn stand_in(&self) -> io::Result<Option<RawFd>> {
        if !self.may_bring() {
            return Ok(None);
        }
        let Some(queue) = self.queue() else { return Ok(None) };
        let _section = Section::enter();
        let stand_in = if self.is_ours() {
            Ok(self.stand_in.lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            // In a child it may be held by a thread that does not exist.
            self.stand_in.try_lock().map_err(|_| io::Error::from(rustix::io::Errno::NOMEM))
        };
        let mut stand_in = stand_in?;
        if stand_in.is_none() {
            let bell = queue.ctx.create_bell().map_err(io::Error::from)?;
            listen(queue, &bell);
            *stand_in = Some(bell);
            self.has_stand_in.store(true, Ordering::Release);
        }
        Ok(stand_in.as_ref().map(|bell| bell.as_fd().as_raw_fd()))
    }

    /// A receive found the queue empty: the stand-in is quiet until something comes.
    #[inline]
    pub(super) fn quiet_stand_in(&self) {
        if self.has_stand_in.load(Ordering::Acquire) {
            self.renew_stand_in();
        }
    }

    #[cold]
    fn renew_stand_in(&self) {
        // Another thread at it does the same; in a child it may be one that does not exist.
        let Ok(stand_in) = self.stand_in.try_lock() else { return };
        if let (Some(bell), Some(queue)) = (&*stand_in, self.queue()) {
            queue.ud.disarm(bell);
            bell.drain();
            listen(queue, bell);
        }
    }
}

/// Arms, and rings if something is there already, or nobody else could.
fn listen(queue: &Queue, bell: &SoftBell) {
    if !queue.ud.arm(bell) || queue.ud.is_ready() {
        bell.ring();
    }
}
