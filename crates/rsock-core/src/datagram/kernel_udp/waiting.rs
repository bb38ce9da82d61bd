//! Waiting: for the queue and the kernel's socket at once. Also what polls of several descriptors,
//! and epoll sets, need.

use crate::closing::notice;
use crate::datagram::kernel_udp::{AcceleratedUdp, NOT_OPEN, Queue};
use crate::engine::{ThreadBell, poll_entries, spin_on};
use crate::interrupt::{Section, Watch};
use crate::sys;
use rsock_verbs::soft::{Soft, SoftBell, SoftContext};
use rsock_verbs::{Bell, Context, DatagramQueue};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A thread that sleeps where the queue cannot wake it. Meanwhile the queue does not open.
#[derive(Debug)]
#[must_use]
pub struct KernelWait<'a>(&'a AcceleratedUdp);

impl Drop for KernelWait<'_> {
    fn drop(&mut self) {
        self.0.opening.end_kernel_wait();
    }
}

/// A bell that is armed for the queue, and disarmed when this is dropped.
#[derive(Debug)]
#[must_use]
pub(crate) struct ArmedQueue<'a> {
    queue: &'a Queue,
    bell: &'a SoftBell,
    has_bell: bool,
}

impl ArmedQueue<'_> {
    /// Longest time that the caller may sleep; `None` is without limit.
    pub(crate) fn bound(&self) -> Option<Duration> {
        (!self.has_bell).then_some(WITHOUT_BELL)
    }
}

impl Drop for ArmedQueue<'_> {
    fn drop(&mut self) {
        let _section = Section::enter();
        self.queue.ud.disarm(self.bell);
    }
}

/// Longest sleep of a thread for whose bell there was no room.
const WITHOUT_BELL: Duration = Duration::from_millis(1);

impl AcceleratedUdp {
    /// For a thread that is about to wait in the kernel alone.
    /// `None` if it must wait for the queue as well, because a datagram may come by it.
    #[must_use]
    pub fn begin_kernel_wait(&self) -> Option<KernelWait<'_>> {
        let may_sleep = self.opening.begin_kernel_wait();
        let wait = KernelWait(self);
        may_sleep.then_some(wait)
    }

    /// Whether a datagram may come by the queue, so that a wait must include it.
    pub(crate) fn queue_may_receive(&self) -> bool {
        self.state() != NOT_OPEN && !self.has_ended()
    }

    /// Whether datagrams have come by the queue, so that spinning for it is likely to succeed.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Spins if that is likely to succeed. True if the queue has a datagram.
    pub(super) fn spin(&self) -> bool {
        self.is_active() && spin_on(|| self.is_ready())
    }

    /// Arms `bell` for the queue; `None` if it has a datagram already.
    pub(crate) fn arm<'a>(&'a self, bell: &'a SoftBell) -> Option<ArmedQueue<'a>> {
        let _section = Section::enter();
        let queue = self.queue()?;
        let has_bell = queue.ud.arm(bell);
        let armed = ArmedQueue { queue, bell, has_bell };
        if queue.ud.is_ready() { None } else { Some(armed) }
    }

    /// Sleeps until there may be a datagram, or until `deadline`.
    pub(super) fn sleep(
        &self,
        fd: BorrowedFd<'_>,
        deadline: Option<Instant>,
        watch: Watch,
    ) -> io::Result<()> {
        self.progress(fd, true);
        // The device of this process: a child opens its own.
        let ctx = SoftContext::open().map_err(io::Error::from)?;
        Soft::with_bell(&ctx, |bell| {
            let Some(armed) = self.arm(bell) else {
                bell.drain();
                return Ok(());
            };
            let entry = |fd: RawFd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let side = self.listener_fd().unwrap_or(-1);
            let [bell_entry, pipe] = poll_entries(bell);
            let mut fds = [entry(fd.as_raw_fd()), bell_entry, pipe, entry(side), notice::entry()];
            let soon = armed.bound().map(|bound| sys::now() + bound);
            let until = [deadline, soon].into_iter().flatten().min();
            let result = sys::sleep(&mut fds, sys::time_left(until), None, watch);
            drop(armed);
            bell.drain();
            result.map(drop)
        })?
    }

    /// Admits senders, after [`Self::listener_fd`] has become readable.
    pub(crate) fn on_listener_ready(&self, fd: BorrowedFd<'_>) {
        self.progress(fd, true);
    }

    /// The epoll proxy: the descriptor to add to an epoll set beside the socket's, with the same
    /// data and interest in input. `None` if the kernel's socket shows everything. It is open as
    /// long as the socket. Call it after [`AcceleratedUdp::pin`].
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`, `ENOMEM`: a set without the proxy may sleep although there are
    /// datagrams.
    pub fn epoll_proxy(&self) -> io::Result<Option<RawFd>> {
        if !self.queue_may_receive() {
            return Ok(None);
        }
        let Some(queue) = self.queue() else { return Ok(None) };
        let _section = Section::enter();
        let epoll_proxy = if self.is_own_process() {
            Ok(self.epoll_proxy.lock().unwrap_or_else(PoisonError::into_inner))
        } else {
            // In a child, a thread that does not exist may hold the lock.
            self.epoll_proxy.try_lock().map_err(|_| io::Error::from(rustix::io::Errno::NOMEM))
        };
        self.make_epoll_proxy(queue, &mut *epoll_proxy?).map(Some)
    }

    fn make_epoll_proxy(&self, queue: &Queue, place: &mut Option<SoftBell>) -> io::Result<RawFd> {
        if let Some(bell) = place {
            return Ok(bell.as_fd().as_raw_fd());
        }
        let bell = queue.ctx.create_bell().map_err(io::Error::from)?;
        self.listen(queue, &bell);
        let fd = bell.as_fd().as_raw_fd();
        *place = Some(bell);
        self.has_epoll_proxy.store(true, Ordering::Release);
        Ok(fd)
    }

    /// Notes, before any thread tries to open the queue, that epoll sets may watch the socket.
    pub fn note_in_epoll_set(&self) {
        self.opening.note_epoll_change();
    }

    /// Runs `change`, which changes the epoll sets that watch the socket. If the queue is open,
    /// `change` adds the epoll proxy to a set that begins to watch; a queue that opens later adds
    /// it to all ([`register_epoll_sets`]).
    pub fn while_epoll_sets_change<R>(&self, change: impl FnOnce() -> R) -> R {
        self.opening.note_epoll_change();
        // Also where the queue seems open: the attempt that has opened it may be given up.
        self.opening.begin_kernel_wait();
        let counted = KernelWait(self);
        let result = change();
        self.opening.note_epoll_change();
        drop(counted);
        result
    }

    /// Adds the epoll proxy to all epoll sets that watch the socket. False if one lacks it.
    pub(super) fn join_epoll_sets(&self, queue: &Queue) -> bool {
        let mut place = self.epoll_proxy.lock().unwrap_or_else(PoisonError::into_inner);
        let Ok(epoll_proxy) = self.make_epoll_proxy(queue, &mut place) else { return false };
        let entered = EPOLL_SETS
            .get()
            .and_then(|update_sets| update_sets(self.inode, epoll_proxy, ProxyChange::Add));
        if entered == Some(EpollTrigger::Edge) {
            self.note_edge_triggered();
        }
        entered.is_some()
    }

    /// Notes that an epoll set watches the socket for edges. A reader that has taken some datagrams
    /// of an edge is notified of the rest before it waits: the kernel would report the next arrival
    /// as an edge.
    pub fn note_edge_triggered(&self) {
        self.is_edge_triggered.store(true, Ordering::Relaxed);
    }

    /// Whether [`Self::report_unreported`] is due, for some socket.
    #[must_use]
    #[inline]
    pub fn any_has_unreported() -> bool {
        ANY_HAS_UNREPORTED.load(Ordering::Relaxed)
            && ANY_HAS_UNREPORTED.swap(false, Ordering::Relaxed)
    }

    /// For a thread that is about to wait for epoll sets: an edge-triggered set shows the socket
    /// again if some datagrams of the last edge, and not all, were taken.
    pub fn report_unreported(&self) {
        if !self.has_unreported.swap(false, Ordering::Relaxed) || !self.is_ready() {
            return;
        }
        let _section = Section::enter();
        let Ok(epoll_proxy) = self.epoll_proxy.try_lock() else { return };
        if let (Some(bell), Some(queue)) = (&*epoll_proxy, self.queue()) {
            self.rung_at.store(queue.ud.n_rung().wrapping_sub(1), Ordering::Relaxed);
            bell.ring();
        }
    }

    /// Undoes [`Self::join_epoll_sets`].
    pub(super) fn leave_epoll_sets(&self) {
        let place = self.epoll_proxy.lock().unwrap_or_else(PoisonError::into_inner);
        if let (Some(bell), Some(update_sets)) = (&*place, EPOLL_SETS.get()) {
            update_sets(self.inode, bell.as_fd().as_raw_fd(), ProxyChange::Remove);
        }
    }

    /// Clears the epoll proxy after a receive has emptied the queue, or found it empty: it stays
    /// unreadable until the next datagram.
    #[inline]
    pub(super) fn reset_epoll_proxy(&self) {
        if self.has_epoll_proxy.load(Ordering::Acquire) {
            self.rearm_epoll_proxy();
        }
    }

    /// Notes that a receive has taken one datagram, and there may be others.
    #[inline]
    pub(super) fn note_taken(&self, queue: &Queue) {
        if !self.has_epoll_proxy.load(Ordering::Acquire) {
            return;
        }
        self.found_nothing.store(false, Ordering::Relaxed);
        if !queue.ud.is_ready() {
            self.rearm_epoll_proxy();
        } else if self.is_edge_triggered.load(Ordering::Relaxed) {
            self.has_unreported.store(true, Ordering::Relaxed);
            ANY_HAS_UNREPORTED.store(true, Ordering::Relaxed);
        }
    }

    #[cold]
    fn rearm_epoll_proxy(&self) {
        // A thread that holds the lock does the same; in a child, that thread may not exist.
        let Ok(epoll_proxy) = self.epoll_proxy.try_lock() else { return };
        if let (Some(bell), Some(queue)) = (&*epoll_proxy, self.queue())
            // PERF: otherwise the bell is still armed, and there is nothing to drain: two system
            // calls.
            && self.rung_at.load(Ordering::Relaxed) != queue.ud.n_rung()
        {
            queue.ud.disarm(bell);
            bell.drain();
            self.listen(queue, bell);
        }
    }

    /// Notes that a receive that does not wait has found nothing. If the one before it found
    /// nothing either, the epoll proxy may be readable by a late ring: the sender has rung the bell
    /// after its datagram was taken, and the bell was armed again.
    pub(super) fn note_nothing(&self) {
        if self.has_epoll_proxy.load(Ordering::Acquire)
            && self.found_nothing.swap(true, Ordering::Relaxed)
        {
            self.silence_epoll_proxy();
        }
    }

    #[cold]
    fn silence_epoll_proxy(&self) {
        let _section = Section::enter();
        let Ok(epoll_proxy) = self.epoll_proxy.try_lock() else { return };
        let (Some(bell), Some(queue)) = (&*epoll_proxy, self.queue()) else { return };
        queue.ud.disarm(bell);
        bell.drain();
        if !self.has_ended() {
            self.listen(queue, bell);
        }
    }

    /// Arms the bell, and rings it if a datagram is there already, or the queue has no room for the
    /// bell.
    fn listen(&self, queue: &Queue, bell: &SoftBell) {
        let n_rung = queue.ud.n_rung();
        let is_rung = !queue.ud.arm(bell) || queue.ud.is_ready();
        // A ring by this thread has to be drained as well.
        self.rung_at.store(n_rung.wrapping_sub(is_rung.into()), Ordering::Relaxed);
        if is_rung {
            bell.ring();
        }
    }
}

/// How epoll sets watch a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollTrigger {
    /// All of them level-triggered.
    Level,
    /// At least one edge-triggered.
    Edge,
}

/// Called with a socket's inode and its epoll proxy, to change all epoll sets that watch the
/// socket; `None` if a set could not be changed.
type UpdateEpollSets = fn(u64, RawFd, ProxyChange) -> Option<EpollTrigger>;

/// A change of the epoll sets that watch a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyChange {
    /// The epoll proxy is added to them.
    Add,
    /// The epoll proxy is removed from them.
    Remove,
}

static ANY_HAS_UNREPORTED: AtomicBool = AtomicBool::new(false);
static EPOLL_SETS: OnceLock<UpdateEpollSets> = OnceLock::new();

/// Registers the function that knows the epoll sets of the process. Without it, the queue of a
/// watched socket does not open.
pub fn register_epoll_sets(update_sets: UpdateEpollSets) {
    let _ = EPOLL_SETS.set(update_sets);
}
