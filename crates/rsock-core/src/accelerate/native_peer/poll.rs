//! `poll(2)` of a native stream.

#![forbid(unsafe_code)]

use crate::accelerate::native_peer::NativeStream;
use crate::accelerate::poll_state::State;
use crate::accelerate::state::FLAG_BROKEN;
use crate::interrupt::Section;
use crate::sys::{INPUT, OUTPUT};
use rustix::event::PollFlags;

impl NativeStream {
    /// The readiness of the ring, for the `state` of an entry; the device knows whether the peer is
    /// there.
    pub(in crate::accelerate) fn poll_state<'a>(
        &'a self,
        events: PollFlags,
        state: &mut State<'a>,
    ) {
        let _section = Section::enter();
        state.kernel = events.difference(INPUT | OUTPUT);
        let Some(path) = self.path() else {
            // The stream is the parent's: a receive, or a send, returns the error.
            state.ready |= events & (INPUT | OUTPUT);
            return;
        };
        let mark = path.mark();
        if self.has(FLAG_BROKEN) {
            state.kernel |= events & (INPUT | OUTPUT);
            state.ready |= events & (INPUT | OUTPUT);
            return;
        }
        let is_disconnected = path.is_disconnected();
        state.ring = Some((path, mark));
        if events.intersects(INPUT) {
            state.kernel |= PollFlags::RDHUP;
            state.end_is_input = true;
            if path.has_input() || is_disconnected {
                state.ready |= events & INPUT;
            }
            if is_disconnected || path.has_eof() {
                state.ready |= events & PollFlags::RDHUP;
            }
        }
        if events.intersects(OUTPUT) && (path.has_room() || is_disconnected) {
            state.ready |= events & OUTPUT;
        }
    }
}
