//! Calls in progress on a stream that is handed off: each stops between two tries, where it holds
//! no lock and no byte, and continues on the socket that has taken the stream's place.
//!
//! Without this a thread that waits for room, say, would keep the stream where it is, and the
//! program that gets the descriptor would miss what lies on the ring.

#![forbid(unsafe_code)]

use crate::interrupt::{Section, Watch};
use crate::metrics::Direction;
use crate::sys;
use rustix::fd::BorrowedFd;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Pause between two checks of a call that has stopped.
const PAUSE: Duration = Duration::from_micros(100);

/// A stream whose calls may end before they have done what the program asked for.
pub(super) trait EndsCalls {
    /// What stops calls for a handoff, if the stream can be handed off.
    fn call_stops(&self) -> Option<&CallStops>;

    /// Ends the stream by a reset that has been found, and which the call is about to report.
    /// Returns the error for a call `by` this direction.
    fn report_reset(&self, fd: BorrowedFd<'_>, by: Direction) -> io::Error;
}

/// What calls in progress have to do.
#[derive(Debug, Default)]
pub(super) struct CallStops {
    /// [`GO_ON`], [`STOP`] or [`REPLACED`].
    state: AtomicU32,
    /// Calls that have stopped.
    n_stopped: AtomicU32,
}

pub(super) const GO_ON: u32 = 0;
/// Calls stop until this changes.
pub(super) const STOP: u32 = 1;
/// The stream belongs to a relay, and a proxy has taken its place in this process.
pub(super) const REPLACED: u32 = 2;

impl CallStops {
    /// Whether a proxy has taken the stream's place in this process.
    #[inline]
    pub(super) fn is_replaced(&self) -> bool {
        self.state.load(Ordering::Relaxed) == REPLACED
    }

    /// Whether a call has to stop, or is to continue on the proxy.
    #[inline]
    pub(super) fn is_asked(&self) -> bool {
        self.state.load(Ordering::Acquire) != GO_ON
    }

    /// Stops while a handoff is under way. The caller holds no lock and waits nowhere. Returns
    /// whether a proxy has taken the stream's place.
    #[cold]
    pub(super) fn stop(&self) -> bool {
        // A handler of the program that leaves this by `longjmp` would stay counted.
        let _section = Section::enter();
        self.n_stopped.fetch_add(1, Ordering::AcqRel);
        while self.state.load(Ordering::Acquire) == STOP {
            let _ = sys::sleep(&mut [], Some(PAUSE), None, Watch::begin());
        }
        self.n_stopped.fetch_sub(1, Ordering::AcqRel);
        self.is_replaced()
    }

    pub(super) fn set(&self, state: u32) {
        self.state.store(state, Ordering::Release);
    }

    /// In a forked child: the thread that asked, and those that have stopped, are its parent's.
    pub(super) fn forget(&self) {
        if self.state.load(Ordering::Relaxed) == STOP {
            self.set(GO_ON);
        }
        self.n_stopped.store(0, Ordering::Relaxed);
    }
}

impl CallStops {
    /// Calls that have stopped.
    pub(super) fn n_stopped(&self) -> u64 {
        self.n_stopped.load(Ordering::Acquire).into()
    }
}
