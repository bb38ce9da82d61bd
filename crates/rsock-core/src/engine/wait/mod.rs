//! Waiting for a stream: spin, yield, sleep on descriptors.

pub(super) mod coalesce;
pub mod cpu_contention;
pub(super) mod event_count;
pub(super) mod hold_back;
pub(super) mod spin;
mod thread_bell;
mod yields;

pub(crate) use hold_back::HoldBack;
pub(crate) use spin::offer_cpu;
pub use spin::{longest_spin, spin_briefly_on, spin_on, spin_on_peers};
pub use thread_bell::{ThreadBell, poll_entries};

use crate::engine::QpStream;
use crate::engine::wait::spin::Spin;
use rsock_verbs::{Backend, CompletionQueue};

/// What a waiter waits for. Each has a spin budget of its own.
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

impl<B: Backend> QpStream<B> {
    /// The number of events so far. Take it *before* a `try_` call: a wait with it returns at once
    /// if anything has been dispatched since.
    #[must_use]
    pub fn mark(&self) -> u32 {
        let events = self.ring.shared.mail.events.now();
        // Room for a send is not dispatched: it shows in the epoch of the completion queue.
        if B::SENDS_WAIT { events.wrapping_add(self.resources.cq.wake_epoch()) } else { events }
    }

    /// Whether anything has been dispatched since `mark`, or is ready to be. Cheap; for spinning.
    #[must_use]
    pub fn has_changed(&self, mark: u32) -> bool {
        self.mark() != mark || self.resources.cq.is_ready()
    }

    /// Spins and yields within this stream's budget. True if something changed.
    #[must_use]
    pub fn spin(&self, interest: Interest, mark: u32) -> bool {
        self.spin_of(interest).wait(|| self.is_peer_elsewhere(), || self.has_changed(mark))
    }

    /// As [`Self::spin`], for a microsecond at most: before a call asks the kernel whether and for
    /// how long it may wait.
    #[must_use]
    pub fn spin_at_first(&self, interest: Interest, mark: u32) -> bool {
        self.spin_of(interest).first_turns(false, || self.has_changed(mark))
    }

    /// As [`Self::spin_at_first`], for a caller that holds the `recv` lock, so that no other thread
    /// dispatches, and has `hold_back` from behind it.
    #[inline(always)]
    pub(crate) fn spin_for_arrival(&self, hold_back: &mut HoldBack) -> bool {
        let mail = &self.ring.shared.mail;
        let holds_back = hold_back.begin_wait(mail.n_sends());
        mail.recv_spin.first_turns(holds_back, || self.resources.cq.is_ready())
    }

    fn spin_of(&self, interest: Interest) -> &Spin {
        let mail = &self.ring.shared.mail;
        match interest {
            Interest::Read => &mail.recv_spin,
            Interest::Write => &mail.send_spin,
        }
    }

    /// Whether the peer's thread that last woke a sleeper of this stream ran on another CPU than
    /// the calling thread; `None` if that is unknown.
    #[must_use]
    pub fn is_peer_elsewhere(&self) -> Option<bool> {
        self.resources.cq.is_peer_elsewhere()
    }
}
