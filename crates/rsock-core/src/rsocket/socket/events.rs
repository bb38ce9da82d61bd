//! The events that `poll(2)` reports for a socket, in each of its states.

use crate::engine::Ready;
use crate::rsocket::socket::{Socket, State};
use crate::sys::{self, INPUT, OUTPUT};
use rustix::event::PollFlags;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

impl Socket {
    /// The events of `poll(2)` that hold now. Advances handshakes first.
    pub(in crate::rsocket) fn readiness(&self, interest: PollFlags) -> PollFlags {
        if self.is_connecting() {
            // A failure is kept in `error`.
            let _ = self.progress_connect();
        }
        if let Some(connection) = self.connection.get() {
            return stream_events(connection.readiness(), interest);
        }
        if self.error.load(Ordering::Relaxed) != 0 {
            return PollFlags::ERR | PollFlags::HUP | interest & (INPUT | OUTPUT);
        }
        let queue = match &*self.state() {
            State::Listening(queue) => Arc::clone(queue),
            _ => return PollFlags::empty(),
        };
        if interest.intersects(INPUT) && queue.is_ready(sys::now()) {
            interest & INPUT
        } else {
            PollFlags::empty()
        }
    }

    /// For a socket that is not connected: what to poll while waiting for an event, and until when.
    pub(in crate::rsocket) fn poll_entries(&self) -> (Vec<libc::pollfd>, Option<Instant>) {
        match &*self.state() {
            State::Connecting(pending) => {
                let (entry, until) = pending.poll_entry();
                (vec![entry], Some(until))
            }
            State::Listening(queue) => (queue.poll_entries(), None),
            State::Idle | State::Connected => (Vec::new(), None),
        }
    }
}

/// The events of a connected stream. COMPAT: the end of the peer's bytes is `POLLIN`, and `POLLHUP`
/// follows once both directions have ended. A sending half that was shut down is writable, because
/// a write fails at once.
fn stream_events(ready: Ready, interest: PollFlags) -> PollFlags {
    let mut events = PollFlags::empty();
    if ready.readable {
        events |= interest & INPUT;
    }
    if ready.writable {
        events |= interest & OUTPUT;
    }
    if ready.hung_up {
        events |= PollFlags::HUP | interest & PollFlags::RDHUP;
    }
    if ready.failed {
        events |= PollFlags::ERR;
    }
    events
}
