//! Waiting for a stream: spin, yield, park, or sleep on descriptors.

use crate::engine::shared::Mailbox;
use crate::engine::stream::Stream;
use rsock_verbs::rdma::Rdma;
use rsock_verbs::soft::Soft;
use rsock_verbs::{Backend, CompletionQueue, Context, Parked};
use rustix::fd::{AsFd, BorrowedFd};
use std::cell::RefCell;
use std::io;
use std::thread::LocalKey;
use std::time::Duration;

/// What a waiter waits for: picks the spin budget that learns from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Data, or the end of the stream.
    Read,
    /// Room to write.
    Write,
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Something changed: try again.
    Changed,
    /// Nothing changed in the time given.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

impl<B: Backend> Stream<B> {
    /// A mark to take *before* a `try_` call: waiting with it returns at once if anything has
    /// been dispatched since.
    #[must_use]
    pub fn mark(&self) -> u32 {
        let events = self.ring.shared.mail.marks.now();
        // Room for a send is nothing to dispatch.
        if B::SENDS_WAIT { events.wrapping_add(self.parts.cq.wake_epoch()) } else { events }
    }

    /// Whether anything has been dispatched since `mark`, or waits to be. Cheap; for spinning.
    #[must_use]
    pub fn has_changed(&self, mark: u32) -> bool {
        self.mark() != mark || self.parts.cq.is_ready()
    }

    /// Spins and yields within this stream's budget. True if something changed.
    #[must_use]
    pub fn spin(&self, interest: Interest, mark: u32) -> bool {
        let mail = &self.ring.shared.mail;
        let spin = match interest {
            Interest::Read => &mail.recv_spin,
            Interest::Write => &mail.send_spin,
        };
        spin.wait(|| self.has_changed(mark))
    }

    /// Sleeps until something changes, at most for `timeout`. The cheapest sleep there is, but it
    /// watches no descriptor: the peer's death does not end it.
    #[must_use]
    pub fn park(&self, mark: u32, timeout: Duration) -> Wake {
        let _waiting = Waiting::new(&self.ring.shared.mail);
        // A wake-up between the look and the sleep changes the epoch.
        let epoch = self.parts.cq.wake_epoch();
        if self.has_changed(mark) {
            return Wake::Changed;
        }
        match self.parts.cq.park_since(epoch, Some(timeout)) {
            Parked::Woken => Wake::Changed,
            Parked::TimedOut if self.has_changed(mark) => Wake::Changed,
            Parked::TimedOut => Wake::TimedOut,
            Parked::Interrupted => Wake::Interrupted,
        }
    }

    /// Arms `bell` for anything after `mark`. Returns the arming, or `None` if something has
    /// changed already. Poll the bell's descriptor with others while it lives.
    pub fn arm<'a>(&'a self, bell: &'a B::Bell, mark: u32) -> Option<Armed<'a, B>> {
        let look_after = [self.doubt(), self.keep_alive()].into_iter().flatten().min();
        let waiting = Waiting::new(&self.ring.shared.mail);
        let has_bell = self.parts.cq.arm(bell);
        let armed = Armed { stream: self, bell, has_bell, look_after, _waiting: waiting };
        if self.has_changed(mark) { None } else { Some(armed) }
    }
}

impl<B: Backend> Stream<B> {
    /// Arms `bell` until [`Self::disarm`]: for a descriptor that somebody else's epoll set watches. False
    /// if there is something already, or no room for the bell.
    #[must_use]
    pub fn arm_standing(&self, bell: &B::Bell) -> bool {
        self.ring.shared.mail.marks.enter();
        self.parts.cq.arm(bell)
    }

    /// Takes an [`Self::arm_standing`] back.
    pub fn disarm(&self, bell: &B::Bell) {
        self.parts.cq.disarm(bell);
        self.ring.shared.mail.marks.leave();
    }
}

impl Stream<Soft> {
    /// The descriptor that hangs up when the peer's process is gone. As long as anyone holds it, we
    /// are not gone for the peer.
    pub(crate) fn link_fd(&self) -> BorrowedFd<'_> {
        self.parts.path.as_fd()
    }
}

/// An armed stream; disarms when dropped.
#[derive(Debug)]
#[must_use]
pub struct Armed<'a, B: Backend> {
    stream: &'a Stream<B>,
    bell: &'a B::Bell,
    /// False if the queue has no room for another bell: then sleep a bounded time only.
    has_bell: bool,
    /// Whether what was sent has arrived, or whether the peer lives, is to be looked for after that time.
    look_after: Option<Duration>,
    _waiting: Waiting<'a>,
}

impl<B: Backend> Armed<'_, B> {
    /// Longest time that it is safe to sleep, `None` for any.
    #[must_use]
    pub fn bound(&self) -> Option<Duration> {
        if self.has_bell { self.look_after } else { Some(WITHOUT_BELL) }
    }
}

impl<B: Backend> Drop for Armed<'_, B> {
    fn drop(&mut self) {
        self.stream.parts.cq.disarm(self.bell);
    }
}

/// How often a waiter without a bell looks by itself.
pub(crate) const WITHOUT_BELL: Duration = Duration::from_millis(5);

/// Counts a waiter in, and out again.
#[derive(Debug)]
struct Waiting<'a> {
    mail: &'a Mailbox,
}

impl<'a> Waiting<'a> {
    fn new(mail: &'a Mailbox) -> Self {
        mail.marks.enter();
        Self { mail }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.mail.marks.leave();
    }
}

/// Backends whose doorbells a thread can keep.
pub trait ThreadBell: Backend {
    /// Runs `f` with the calling thread's doorbell, made on first use.
    ///
    /// # Errors
    /// When no doorbell can be made.
    fn with_bell<R>(ctx: &Self::Context, f: impl FnOnce(&Self::Bell) -> R) -> io::Result<R>;
}

thread_local! {
    /// The process that made it (a forked child needs its own), and the bell.
    static SOFT_BELL: Kept<Soft> = const { RefCell::new(None) };
    static RDMA_BELL: Kept<Rdma> = const { RefCell::new(None) };
}

/// Where a thread keeps its bell.
type Kept<B> = RefCell<Option<(u32, <B as Backend>::Bell)>>;

fn with_kept<B: Backend, R>(
    key: &'static LocalKey<Kept<B>>,
    ctx: &B::Context,
    f: impl FnOnce(&B::Bell) -> R,
) -> io::Result<R> {
    let here = rsock_verbs::family::process().0;
    // Out of the cell while in use: a signal handler may wait too, and makes a bell of its own.
    let kept = key.try_with(|cell| cell.take()).ok().flatten();
    let bell = match kept {
        Some((at, bell)) if at == here => bell,
        _ => ctx.create_bell()?,
    };
    let result = f(&bell);
    let _ = key.try_with(|cell| cell.replace(Some((here, bell))));
    Ok(result)
}

impl ThreadBell for Soft {
    fn with_bell<R>(ctx: &Self::Context, f: impl FnOnce(&Self::Bell) -> R) -> io::Result<R> {
        with_kept::<Self, R>(&SOFT_BELL, ctx, f)
    }
}

impl ThreadBell for Rdma {
    fn with_bell<R>(ctx: &Self::Context, f: impl FnOnce(&Self::Bell) -> R) -> io::Result<R> {
        with_kept::<Self, R>(&RDMA_BELL, ctx, f)
    }
}
