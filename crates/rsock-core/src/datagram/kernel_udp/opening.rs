//! When senders may find a socket's queue: not while a thread sleeps in the kernel, where the queue cannot
//! wake it, and not while an epoll set watches the socket without the queue.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use crate::sync::sequential;

/// The words of one socket.
#[derive(Debug)]
pub(super) struct Opening {
    /// [`SHUT`], [`OPEN`] or [`OVER`].
    pub(super) state: AtomicU8,
    /// Threads that sleep where the queue does not wake them.
    pub(super) kernel_waits: AtomicU32,
    /// Whether epoll sets may watch the socket: they get the stand-in before anything can come by the queue.
    pub(super) is_in_epoll_set: AtomicBool,
}

/// Not open yet.
pub(super) const SHUT: u8 = 0;
pub(super) const OPEN: u8 = 1;
/// Closed for good.
pub(super) const OVER: u8 = 2;

/// What came of an attempt to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenAttempt {
    /// It is open.
    Open,
    /// It was open, or over, already.
    NotShut,
    /// A thread or an epoll set would not hear of what comes: call [`Opening::give_up`].
    WouldMissWakeups,
}

impl Opening {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU8::new(SHUT),
            kernel_waits: AtomicU32::new(0),
            is_in_epoll_set: AtomicBool::new(false),
        }
    }

    pub(super) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// A thread is about to sleep in the kernel alone, until [`Self::end_kernel_wait`]. Whether it may: otherwise the
    /// queue may bring something.
    pub(super) fn begin_kernel_wait(&self) -> bool {
        // SYNC(kernel_waits): we count ourselves and then look at the state; `attempt` changes the state and then
        // looks at the count. One of the two sees the other.
        self.kernel_waits.fetch_add(1, Ordering::SeqCst);
        sequential();
        self.state.load(Ordering::SeqCst) != OPEN
    }

    /// Ends a [`Self::begin_kernel_wait`], whatever that answered.
    pub(super) fn end_kernel_wait(&self) {
        self.kernel_waits.fetch_sub(1, Ordering::Release);
    }

    /// Epoll sets may watch the socket from now on.
    pub(super) fn note_in_epoll_set(&self) {
        self.is_in_epoll_set.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_in_epoll_set(&self) -> bool {
        self.is_in_epoll_set.load(Ordering::SeqCst)
    }

    /// Opens, unless a thread or a set would not hear of what comes. `was_in_epoll_set` is what
    /// [`Self::is_in_epoll_set`] said before the sets, if there are any, were told of the queue.
    pub(super) fn attempt(&self, was_in_epoll_set: bool) -> OpenAttempt {
        // SYNC(kernel_waits): pairs with `begin_kernel_wait`.
        let opened = self.state.compare_exchange(SHUT, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        if opened.is_err() {
            return OpenAttempt::NotShut;
        }
        sequential();
        // A set that has come to watch it meanwhile does not know the queue.
        if self.kernel_waits.load(Ordering::SeqCst) == 0
            && was_in_epoll_set == self.is_in_epoll_set()
        {
            OpenAttempt::Open
        } else {
            OpenAttempt::WouldMissWakeups
        }
    }

    /// Takes back an attempt that came to nothing, before a sender could find the queue, unless it was
    /// ended meanwhile.
    pub(super) fn give_up(&self) {
        let _ = self.state.compare_exchange(OPEN, SHUT, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Never opens from now on, unless it has.
    pub(super) fn rule_out(&self) {
        let _ = self.state.compare_exchange(SHUT, OVER, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Ends; whether it was open.
    pub(super) fn end(&self) -> bool {
        self.state.swap(OVER, Ordering::AcqRel) == OPEN
    }
}
