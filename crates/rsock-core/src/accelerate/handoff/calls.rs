//! The other calls of this process on a stream that is handed off.

use crate::accelerate::AcceleratedStream;
use crate::accelerate::call_stops::{GO_ON, REPLACED, STOP};
use crate::closing::wake_calls_until;
use rustix::fd::BorrowedFd;

impl AcceleratedStream {
    /// Has the calls in progress stop, as many as `others` says. Returns whether all of them have:
    /// then nothing uses the stream until [`Self::resume_calls`] or [`Self::replace_for_calls`].
    /// The caller lets no further call begin.
    #[must_use]
    pub fn stop_calls(&self, others: impl Fn() -> u64) -> bool {
        if others() == 0 {
            return true;
        }
        self.call_stops.set(STOP);
        let have_stopped = || {
            if let Some(path) = self.path() {
                path.wake_waiters();
            }
            others() <= self.call_stops.n_stopped()
        };
        let have_stopped = wake_calls_until(have_stopped);
        if !have_stopped {
            self.resume_calls();
        }
        have_stopped
    }

    /// Lets the calls that have stopped go on as if nothing had been.
    pub fn resume_calls(&self) {
        if self.call_stops.is_asked() {
            self.call_stops.set(GO_ON);
        }
    }

    /// Has the calls that have stopped, as many as `others` says, continue on `proxy`, which has
    /// taken the place of the stream's descriptors.
    pub fn replace_for_calls(&self, proxy: BorrowedFd<'_>, others: impl Fn() -> u64) {
        let replaced = || self.call_stops.set(REPLACED);
        if others() == 0 {
            return replaced();
        }
        self.closings.keep(Some(proxy), replaced, others);
    }

    /// To be called in a forked child: its only thread is in no call.
    pub fn forget_calls(&self) {
        self.closings.forget_calls();
        self.call_stops.forget();
    }
}
