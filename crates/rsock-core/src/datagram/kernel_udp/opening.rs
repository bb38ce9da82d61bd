//! When senders may find a socket's queue: not while a thread sleeps in the kernel, where the queue
//! cannot wake it, and not while an epoll set watches the socket without the queue's proxy.
//!
//! rsock-models runs this file under loom.

use crate::sync::atomic::{AtomicU8, AtomicU32, Ordering};
use crate::sync::sequential;

/// The state of one socket.
#[derive(Debug)]
pub(super) struct Opening {
    /// [`NOT_OPEN`], [`OPEN`] or [`ENDED`].
    pub(super) state: AtomicU8,
    /// Threads that sleep where the queue cannot wake them.
    pub(super) kernel_waits: AtomicU32,
    /// How often the epoll sets that watch the socket have begun to change, or have changed. If not
    /// 0, they get the epoll proxy before a sender can find the queue.
    n_epoll_changes: AtomicU32,
}

/// The queue has not opened yet.
pub(super) const NOT_OPEN: u8 = 0;
pub(super) const OPEN: u8 = 1;
/// The queue never opens again.
pub(super) const ENDED: u8 = 2;

/// The result of an attempt to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OpenAttempt {
    /// The queue is open.
    Open,
    /// The queue was open, or had ended, already.
    AlreadyDecided,
    /// A thread or an epoll set would miss wake-ups: the caller calls [`Opening::give_up`].
    WouldMissWakeups,
}

impl Opening {
    pub(super) fn new() -> Self {
        Self {
            state: AtomicU8::new(NOT_OPEN),
            kernel_waits: AtomicU32::new(0),
            n_epoll_changes: AtomicU32::new(0),
        }
    }

    pub(super) fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    /// Notes that a thread is about to sleep in the kernel alone, until [`Self::end_kernel_wait`].
    /// False if it must not, because the queue is open.
    pub(super) fn begin_kernel_wait(&self) -> bool {
        // SYNC(kernel_waits): this thread counts itself and then loads the state; `attempt` changes
        // the state and then loads the count. At least one of the two sees the other.
        self.kernel_waits.fetch_add(1, Ordering::SeqCst);
        sequential();
        self.state.load(Ordering::SeqCst) != OPEN
    }

    /// Ends a [`Self::begin_kernel_wait`], whatever that returned.
    pub(super) fn end_kernel_wait(&self) {
        self.kernel_waits.fetch_sub(1, Ordering::Release);
    }

    /// Notes that the epoll sets which watch the socket are about to change, or have just changed:
    /// to be called before and after, while a [`Self::begin_kernel_wait`] lasts.
    pub(super) fn note_epoll_change(&self) {
        self.n_epoll_changes.fetch_add(1, Ordering::SeqCst);
    }

    pub(super) fn n_epoll_changes(&self) -> u32 {
        self.n_epoll_changes.load(Ordering::SeqCst)
    }

    /// Opens the queue, unless a thread or an epoll set would miss wake-ups. `n_changes` is the
    /// result of [`Self::n_epoll_changes`] before the epoll sets, if there are any, got the proxy.
    pub(super) fn attempt(&self, n_changes: u32) -> OpenAttempt {
        // SYNC(kernel_waits): pairs with `begin_kernel_wait`.
        let opened =
            self.state.compare_exchange(NOT_OPEN, OPEN, Ordering::SeqCst, Ordering::SeqCst);
        if opened.is_err() {
            return OpenAttempt::AlreadyDecided;
        }
        sequential();
        // An epoll set that has begun to watch the socket meanwhile lacks the proxy. The count of
        // waits comes first: the end of one follows the second note of its change.
        if self.kernel_waits.load(Ordering::SeqCst) == 0 && self.n_epoll_changes() == n_changes {
            OpenAttempt::Open
        } else {
            OpenAttempt::WouldMissWakeups
        }
    }

    /// Undoes an attempt before a sender could find the queue, unless the queue was ended
    /// meanwhile.
    pub(super) fn give_up(&self) {
        let _ = self.state.compare_exchange(OPEN, NOT_OPEN, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Ends the queue unless it is open: it never opens.
    pub(super) fn rule_out(&self) {
        let _ = self.state.compare_exchange(NOT_OPEN, ENDED, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Ends the queue. True if it was open.
    pub(super) fn end(&self) -> bool {
        self.state.swap(ENDED, Ordering::AcqRel) == OPEN
    }
}
