//! What `poll(2)` is told of a socket, in each of its states.

use crate::engine::Ready;
use crate::rsocket::socket::{Socket, State};
use crate::sys;
use rustix::event::PollFlags;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Socket {
    /// Events that hold now, of those that `poll(2)` knows; makes progress first.
    pub(in crate::rsocket) fn readiness(&self, interest: PollFlags) -> PollFlags {
        if self.is_opening() {
            // A failure shows in `error`.
            let _ = self.drive();
        }
        if let Some(established) = self.established.get() {
            return stream_events(established.readiness(), interest);
        }
        let (input, output) =
            (PollFlags::IN | PollFlags::RDNORM, PollFlags::OUT | PollFlags::WRNORM);
        if self.error.load(Ordering::Relaxed) != 0 {
            return PollFlags::ERR | PollFlags::HUP | interest & (input | output);
        }
        let accepting = match &*self.state() {
            State::Listening(accepting) => Arc::clone(accepting),
            _ => return PollFlags::empty(),
        };
        if interest.intersects(input) && accepting.is_ready(sys::now()) {
            interest & input
        } else {
            PollFlags::empty()
        }
    }

    /// What to poll while waiting for an event on a socket that is not connected, and until when.
    pub(in crate::rsocket) fn poll_entries(&self) -> (Vec<libc::pollfd>, Option<Instant>) {
        match &*self.state() {
            State::Opening(opening) => {
                let (entry, until) = opening.poll_entry();
                (vec![entry], Some(until))
            }
            State::Listening(accepting) => (accepting.poll_entries(), None),
            State::Idle | State::Connected => (Vec::new(), None),
        }
    }
}

/// COMPAT: the end of a stream is `POLLIN`, and `POLLHUP` once both directions are over. A sending
/// half that is shut down is writable: a write fails at once.
fn stream_events(ready: Ready, interest: PollFlags) -> PollFlags {
    let mut events = PollFlags::empty();
    if ready.readable {
        events |= interest & (PollFlags::IN | PollFlags::RDNORM);
    }
    if ready.writable {
        events |= interest & (PollFlags::OUT | PollFlags::WRNORM);
    }
    if ready.hung_up {
        events |= PollFlags::HUP | interest & PollFlags::RDHUP;
    }
    if ready.failed {
        events |= PollFlags::ERR;
    }
    events
}
