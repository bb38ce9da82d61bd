//! Sleeping: on the device's completion queue alone, or on a doorbell beside other descriptors.

use crate::engine::QpStream;
use crate::engine::shared::Mailbox;
use crate::engine::wait::Wake;
use rsock_verbs::family::{self, ProcessId};
use rsock_verbs::{Backend, CompletionQueue, Parked};
use std::time::Duration;

impl<B: Backend> QpStream<B> {
    /// Sleeps until something changes, at most for `timeout`. It is the cheapest sleep, but watches
    /// no descriptor: the end of the peer's process does not end it.
    #[must_use]
    pub fn park(&self, mark: u32, timeout: Duration) -> Wake {
        let _waiting = WaiterGuard::new(&self.ring.shared.mail);
        // A wake-up between the check and the sleep changes the epoch.
        let epoch = self.resources.cq.wake_epoch();
        if self.has_changed(mark) {
            return Wake::Changed;
        }
        match self.resources.cq.park_since(epoch, Some(timeout)) {
            Parked::Woken => Wake::Changed,
            Parked::TimedOut if self.has_changed(mark) => Wake::Changed,
            Parked::TimedOut => Wake::TimedOut,
            Parked::Interrupted => Wake::Interrupted,
        }
    }

    /// Arms `bell` for anything after `mark`. Returns the armed stream, or `None` if something has
    /// changed already. The caller polls the bell's descriptor, with others, while the result
    /// lives.
    pub fn arm<'a>(&'a self, bell: &'a B::Bell, mark: u32) -> Option<Armed<'a, B>> {
        let check_after = self.check_after();
        let waiting = WaiterGuard::new(&self.ring.shared.mail);
        let has_bell = self.resources.cq.arm(bell);
        let armed = Armed { stream: self, bell, has_bell, check_after, _waiting: waiting };
        if self.has_changed(mark) { None } else { Some(armed) }
    }

    /// Checks whether what was sent has arrived, and whether the peer lives. Returns after which
    /// time a thread that sleeps has to check again.
    pub(crate) fn check_after(&self) -> Option<Duration> {
        [self.check_delivery(), self.keep_alive()].into_iter().flatten().min()
    }

    /// Arms `bell` until [`Self::disarm`]: for a descriptor in an epoll set of the program. False
    /// if something is there already, or the queue has no room for the bell.
    #[must_use]
    pub fn arm_persistent(&self, bell: &B::Bell) -> bool {
        self.ring.shared.mail.events.enter();
        self.resources.cq.arm(bell)
    }

    /// Undoes [`Self::arm_persistent`].
    pub fn disarm(&self, bell: &B::Bell) {
        self.resources.cq.disarm(bell);
        self.ring.shared.mail.events.leave();
    }
}

/// A stream with an armed doorbell, which is disarmed when this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Armed<'a, B: Backend> {
    stream: &'a QpStream<B>,
    bell: &'a B::Bell,
    /// False if the queue has no room for another bell: then the caller may sleep a bounded time
    /// only.
    has_bell: bool,
    /// After this time the caller must check whether what was sent has arrived, and whether the
    /// peer lives.
    check_after: Option<Duration>,
    _waiting: WaiterGuard<'a>,
}

impl<B: Backend> Armed<'_, B> {
    /// Longest time that the caller may sleep; `None` is without limit.
    #[must_use]
    pub fn bound(&self) -> Option<Duration> {
        if self.has_bell { self.check_after } else { Some(WITHOUT_BELL) }
    }
}

impl<B: Backend> Drop for Armed<'_, B> {
    fn drop(&mut self) {
        self.stream.resources.cq.disarm(self.bell);
    }
}

/// How often a waiter without a bell checks the queue.
pub(crate) const WITHOUT_BELL: Duration = Duration::from_millis(5);

/// Counts a waiter, from its creation until it is dropped. A signal handler may fork while the
/// thread sleeps: the child has counted none.
#[derive(Debug)]
struct WaiterGuard<'a> {
    mail: &'a Mailbox,
    process: ProcessId,
}

impl<'a> WaiterGuard<'a> {
    fn new(mail: &'a Mailbox) -> Self {
        mail.events.enter();
        Self { mail, process: family::process() }
    }
}

impl Drop for WaiterGuard<'_> {
    fn drop(&mut self) {
        if family::process() == self.process {
            self.mail.events.leave();
        }
    }
}
